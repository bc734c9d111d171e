// Random numbers on a GPU (ruda-dnn's kernels): an element's numbers are those of the host target.
// Results may have any strides and any dtype of their distribution; `extent`, `threshold` and the
// like are what ops/random.cpp computes with.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace ruda_torch::cuda {

using OptionalGenerator = std::optional<at::Generator>;

// low and high are numbers of the dtype, extent is their distance in its arithmetic.
void fill_uniform(const at::Tensor& self, double low, double high, double extent,
                  const OptionalGenerator& generator);
// scale * log(u), `least` or more.
void fill_exponential(const at::Tensor& self, double scale, double least,
                      const OptionalGenerator& generator);
// median + sigma * tan(pi * (u - 1/2)).
void fill_cauchy(const at::Tensor& self, double median, double sigma,
                 const OptionalGenerator& generator);
void fill_normal(const at::Tensor& self, double mean, double std,
                 const OptionalGenerator& generator);
// base .. base + extent - 1; extent 0: all 2^64.
void fill_integers(const at::Tensor& self, uint64_t extent, int64_t base,
                   const OptionalGenerator& generator);
// 1 where the element's word is below the threshold, else 0.
void fill_bernoulli(const at::Tensor& self, uint64_t threshold, const OptionalGenerator& generator);
// The same with a floating probability for every element (of the same sizes, on ruda). Waits for
// the device, to refuse numbers that are no probabilities.
void fill_bernoulli_each(const at::Tensor& self, const at::Tensor& p,
                         const OptionalGenerator& generator);
// input * scale and true where the element's word is below the threshold, input * 0 and false
// elsewhere.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, uint64_t threshold,
                                           double scale);

}  // namespace ruda_torch::cuda
