#include "cuda/random.h"

#include "cuda/operators.h"
#include "generator.h"
#include "runtime.h"
#include "state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout_backward_native.h>
#include <ATen/ops/zeros.h>
#include <ruda/device.hpp>

#include <algorithm>
#include <array>
#include <limits>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;

constexpr int64_t kBlock = 256;  // counter blocks of a program, as in ruda_dnn/random/launch.py

ruda_argument pointer(const Tensor& tensor) {
  return ruda::pointer(tensor.const_data_ptr(), *ruda_dtype_of(tensor.scalar_type()));
}

ruda_argument written(const Tensor& tensor) {
  return ruda::pointer(tensor.mutable_data_ptr(), *ruda_dtype_of(tensor.scalar_type()));
}

// Reserves the numbers of `numel` elements that own `words` each, and launches with what they begin
// at: kernel(before..., numel, seed, first, after..., BLOCK).
class Draw {
 public:
  Draw(int64_t numel, int64_t words, const OptionalGenerator& generator)
      : numel_(numel), words_(words) {
    ensure_usable();
    range_ = reserve_random(generator, static_cast<uint64_t>(numel * words));
  }

  template <size_t tensors, class... After>
  void launch(ruda::device_kernel& kernel, const std::array<ruda_argument, tensors>& before,
              const After&... after) const {
    constexpr int32_t count = tensors + 3 + sizeof...(after) + 1;
    std::array<ruda_argument, count> list;
    size_t at = 0;
    for (const ruda_argument& each : before) list[at++] = each;
    list[at++] = ruda::integer(numel_);
    list[at++] = ruda::integer(static_cast<int64_t>(range_.seed));
    list[at++] = ruda::integer(static_cast<int64_t>(range_.offset / 4));
    ((list[at++] = after), ...);
    list[at++] = ruda::integer(kBlock);
    const int64_t programs = (numel_ * words_ + 4 * kBlock - 1) / (4 * kBlock);
    TORCH_CHECK_NOT_IMPLEMENTED(programs <= std::numeric_limits<int32_t>::max(), "[random] got ",
                                numel_, " elements, wanted at most 2^31 programs of them on the "
                                "cuda target");
    ruda_error error{};
    check(kernel.launch_list({static_cast<uint32_t>(programs)}, {}, &error, list.data(), count),
          error);
  }

 private:
  int64_t numel_;
  int64_t words_;
  PhiloxRange range_;
};

bool takes(const Tensor& self, std::initializer_list<at::ScalarType> types) {
  return self.is_contiguous() && !self.is_neg() &&
         std::find(types.begin(), types.end(), self.scalar_type()) != types.end();
}

// Calls fill(tensor) with `self` if the kernel takes its dtype and it is contiguous, or else with a
// contiguous tensor of `type` that is copied into it.
template <class Fill>
void through(const Tensor& self, std::initializer_list<at::ScalarType> types, at::ScalarType type,
             const Fill& fill) {
  if (takes(self, types)) {
    fill(self);
    return;
  }
  const Tensor drawn = at::empty(self.sizes(), self.options().dtype(type));
  fill(drawn);
  self.copy_(drawn);
}

constexpr std::initializer_list<at::ScalarType> kFloating = {at::kFloat, at::kHalf, at::kBFloat16,
                                                             at::kDouble};

int64_t words_of(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? 2 : 1; }

template <class... After>
void fill_floating(ruda::device_kernel& kernel, const Tensor& self,
                   const OptionalGenerator& generator, const After&... after) {
  if (self.numel() == 0) return;
  through(self, kFloating, self.scalar_type(), [&](const Tensor& target) {
    Draw(target.numel(), words_of(target), generator)
        .launch(kernel, std::array{written(target)}, after...);
  });
}

}  // namespace

void fill_uniform(const Tensor& self, double low, double high, double extent,
                  const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.uniform"};
  const double end = low == high ? std::numeric_limits<double>::infinity() : high;
  fill_floating(kernel, self, generator, ruda::real(low), ruda::real(end), ruda::real(extent));
}

void fill_exponential(const Tensor& self, double scale, double least,
                      const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.exponential"};
  fill_floating(kernel, self, generator, ruda::real(scale), ruda::real(least));
}

void fill_cauchy(const Tensor& self, double median, double sigma,
                 const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.cauchy"};
  fill_floating(kernel, self, generator, ruda::real(median), ruda::real(sigma));
}

void fill_normal(const Tensor& self, double mean, double std, const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.normal"};
  fill_floating(kernel, self, generator, ruda::real(mean), ruda::real(std));
}

void fill_integers(const Tensor& self, uint64_t extent, int64_t base,
                   const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.integers"};
  if (self.numel() == 0) return;
  through(self, {at::kLong, at::kInt, at::kByte, at::kBool}, at::kLong, [&](const Tensor& target) {
    Draw(target.numel(), 2, generator)
        .launch(kernel, std::array{written(target)},
                ruda::integer(static_cast<int64_t>(extent)), ruda::integer(base));
  });
}

void fill_bernoulli(const Tensor& self, uint64_t threshold, const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.bernoulli"};
  if (self.numel() == 0) return;
  through(self, {at::kFloat, at::kHalf, at::kBFloat16, at::kByte, at::kBool}, at::kBool,
          [&](const Tensor& target) {
            Draw(target.numel(), 1, generator)
                .launch(kernel, std::array{written(target)},
                        ruda::integer(static_cast<int64_t>(threshold)));
          });
}

void fill_bernoulli_each(const Tensor& self, const Tensor& p, const OptionalGenerator& generator) {
  static ruda::device_kernel kernel{"random.bernoulli_each"};
  if (self.numel() == 0) return;
  const Tensor chances = p.contiguous();
  const Tensor wrong = at::zeros({1}, self.options().dtype(at::kInt));
  through(self, {at::kByte, at::kBool}, at::kBool, [&](const Tensor& target) {
    Draw(target.numel(), 1, generator)
        .launch(kernel, std::array{written(target), pointer(chances), written(wrong)});
  });
  TORCH_CHECK(wrong.item<int32_t>() == 0, "[aten::bernoulli_] Expected p_in >= 0 && p_in <= 1, got "
              "a tensor of probabilities with others");
}

std::tuple<Tensor, Tensor> dropout(const Tensor& input, uint64_t threshold, double scale) {
  static ruda::device_kernel kernel{"random.dropout"};
  const Tensor source = input.contiguous();
  Tensor out = at::empty_like(source);
  Tensor mask = at::empty(source.sizes(), source.options().dtype(at::kBool));
  Draw(source.numel(), 1, std::nullopt)
      .launch(kernel, std::array{pointer(source), written(out), written(mask)},
              ruda::integer(static_cast<int64_t>(threshold)), ruda::real(scale));
  return {std::move(out), std::move(mask)};
}

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::native_dropout_backward", TORCH_FN(at::native::native_dropout_backward));
}

}  // namespace ruda_torch::cuda
