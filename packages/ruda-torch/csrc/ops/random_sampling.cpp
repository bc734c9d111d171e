// Random operators that are more than a fill: dropout, randperm, multinomial, rrelu, and the
// distributions that draw an unknown count of numbers an element (poisson, gamma, Dirichlet,
// binomial).

#include "host_call.h"
#include "random.h"

#include "../cuda/operators.h"
#include "../cuda/random.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Distributions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

namespace ruda_torch {

namespace {

using at::Tensor;
using Gen = std::optional<at::Generator>;

// ---- dropout ------------------------------------------------------------------------------------

// Element i is kept when its number is below (1 - p) * 2^32: the same mask for any layout or dtype.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  TORCH_CHECK(p >= 0.0 && p <= 1.0, "dropout probability has to be between 0 and 1, but got ", p);
  const auto mask_options = input.options().dtype(at::kBool);
  if (input.numel() == 0) return {input.clone(), at::empty(input.sizes(), mask_options)};
  if (train.has_value() && !*train) {
    return {input.clone(), at::ones(input.sizes(), mask_options)};
  }
  const auto threshold = static_cast<uint64_t>((1.0 - p) * 0x1p32);
  if (on_cuda()) {
    TORCH_CHECK_TYPE(at::isFloatingType(input.scalar_type()), "[native_dropout] got dtype ",
                     input.scalar_type(), ", wanted a floating one");
    return cuda::dropout(input, threshold, p == 1.0 ? 0.0 : 1.0 / (1.0 - p));
  }
  const Tensor source = input.contiguous();
  Tensor out = at::empty_like(source);
  Tensor mask = at::empty(source.sizes(), mask_options);
  bool* kept = mask.mutable_data_ptr<bool>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, source.scalar_type(), "native_dropout", [&] {
        using C = Compute<scalar_t>;
        const C scale = p == 1.0 ? C(0) : static_cast<C>(1.0 / (1.0 - p));
        const auto* from = source.const_data_ptr<scalar_t>();
        auto* to = out.mutable_data_ptr<scalar_t>();
        draw<1>(source.numel(), std::nullopt,
                [&](const uint32_t* words, int64_t begin, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    const bool keep = words[i] < threshold;
                    kept[begin + i] = keep;
                    to[begin + i] = static_cast<scalar_t>(
                        static_cast<C>(from[begin + i]) * (keep ? scale : C(0)));
                  }
                });
      });
  return {out, mask};
}

// ---- randperm -----------------------------------------------------------------------------------

struct Keyed {
  uint64_t key;
  int64_t index;
  bool operator<(const Keyed& other) const {
    return key < other.key || (key == other.key && index < other.index);
  }
};

// The indices of `keys` in rising order of the keys, ties by index. The keys are uniform: their
// leading bits spread them over buckets of about one, and each bucket is sorted by insertion.
std::vector<Keyed> in_order(const std::vector<uint64_t>& keys) {
  const size_t n = keys.size();
  const int bits = std::max<int>(1, std::bit_width(n) - 1);
  const int shift = 64 - bits;
  std::vector<size_t> ends((size_t{1} << bits) + 1, 0);  // a bucket's begin, then its end
  for (const uint64_t key : keys) ++ends[(key >> shift) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<Keyed> sorted(n);
  for (size_t i = 0; i < n; ++i) {
    sorted[ends[keys[i] >> shift]++] = {keys[i], static_cast<int64_t>(i)};
  }
  size_t begin = 0;
  for (size_t bucket = 0; bucket + 1 < ends.size(); ++bucket) {
    for (size_t i = begin + 1; i < ends[bucket]; ++i) {
      const Keyed moved = sorted[i];
      size_t at = i;
      for (; at > begin && moved < sorted[at - 1]; --at) sorted[at] = sorted[at - 1];
      sorted[at] = moved;
    }
    begin = ends[bucket];
  }
  return sorted;
}

// Where the values of a result are made that the host computes on either target.
Tensor on_host(const Tensor& out) {
  return on_cuda() ? at::empty(out.sizes(), out.options().device(at::kCPU)) : out;
}

// The order of n random 64-bit keys, ties by index. The host sorts them on either target.
Tensor& randperm_out(int64_t n, Gen generator, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  TORCH_CHECK(n == 0 || at::scalar_tensor(n, out.options().device(at::kCPU)).item<int64_t>() == n,
              "n is too large for result tensor type: '", out.toString(), "'");
  out.resize_({n});
  if (n == 0) return out;
  std::vector<uint64_t> keys(static_cast<size_t>(n));
  draw<2>(n, generator, [&](const uint32_t* words, int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) keys[begin + i] = wide(words + 2 * i);
  });
  const std::vector<Keyed> order = in_order(keys);
  const Tensor values = on_host(out);
  fill_contiguous(values, [&](const Tensor& target) {
    AT_DISPATCH_ALL_TYPES_AND2(
        at::kHalf, at::kBFloat16, target.scalar_type(), "randperm", [&] {
          auto* data = target.mutable_data_ptr<scalar_t>();
          for (int64_t i = 0; i < n; ++i) data[i] = static_cast<scalar_t>(order[i].index);
        });
  });
  if (on_cuda()) out.copy_(values);
  return out;
}

// ---- multinomial --------------------------------------------------------------------------------

void check_multinomial(const Tensor& self, int64_t samples, bool replacement) {
  constexpr int64_t kMost = int64_t{1} << 24;  // categories: a float32 counts them exactly
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ",
              self.scalar_type());
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(categories > 0 || self.numel() == 0, "prob_dist must have categories");
  TORCH_CHECK(replacement || samples <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= kMost, "number of categories cannot exceed 2^24");
}

// Rows of weights, checked, and each row's sum.
std::vector<double> checked_sums(const double* weights, int64_t rows, int64_t categories) {
  std::vector<double> sums(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0.0;
    for (int64_t c = 0; c < categories; ++c) {
      const double weight = weights[r * categories + c];
      TORCH_CHECK(weight >= 0.0 && std::isfinite(weight),
                  "probability tensor contains either `inf`, `nan` or element < 0");
      sum += weight;
    }
    TORCH_CHECK(sum > 0.0, "invalid multinomial distribution (sum of probabilities <= 0)");
    TORCH_CHECK(std::isfinite(sum), "invalid multinomial distribution (sum of probabilities is "
                "beyond float64); divide them by the largest one");
    sums[r] = sum;
  }
  return sums;
}

// Without replacement: the categories of the largest weight / exponential(1), in falling order.
void sample_without(const double* weights, int64_t rows, int64_t categories, int64_t samples,
                    const Gen& generator, int64_t* result) {
  std::vector<double> scores(static_cast<size_t>(rows * categories));
  draw<2>(rows * categories, generator,
          [&](const uint32_t* words, int64_t begin, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              scores[begin + i] = -weights[begin + i] / std::log(unit_open<double>(words + 2 * i));
            }
          });
  parallel_parts(rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> order(static_cast<size_t>(categories));
    for (int64_t r = begin; r < end; ++r) {
      const double* row = scores.data() + r * categories;
      const auto better = [row](int64_t a, int64_t b) {
        return row[a] > row[b] || (row[a] == row[b] && a < b);
      };
      if (samples == 1) {
        result[r] = std::max_element(row, row + categories) - row;
        continue;
      }
      std::iota(order.begin(), order.end(), int64_t{0});
      std::partial_sort(order.begin(), order.begin() + samples, order.end(), better);
      std::copy_n(order.begin(), samples, result + r * samples);
    }
  });
}

// With replacement: the first category whose cumulated weight exceeds uniform * sum.
void sample_with(const double* weights, const std::vector<double>& sums, int64_t categories,
                 int64_t samples, const Gen& generator, int64_t* result) {
  const auto rows = static_cast<int64_t>(sums.size());
  std::vector<double> cumulated(static_cast<size_t>(rows * categories));
  for (int64_t r = 0; r < rows; ++r) {
    std::partial_sum(weights + r * categories, weights + (r + 1) * categories,
                     cumulated.begin() + r * categories);
  }
  draw<2>(rows * samples, generator,
          [&](const uint32_t* words, int64_t begin, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              const int64_t r = (begin + i) / samples;
              const double* row = cumulated.data() + r * categories;
              const double total = row[categories - 1];
              const double point = unit_closed_open<double>(words + 2 * i) * total;
              // A subnormal product can be rounded up to the total, which no category exceeds.
              const double* found = point < total ? std::upper_bound(row, row + categories, point)
                                                  : std::lower_bound(row, row + categories, total);
              result[begin + i] = found - row;
            }
          });
}

Tensor& multinomial_out(const Tensor& self, int64_t samples, bool replacement, Gen generator,
                        Tensor& out) {
  require_ruda("aten::multinomial", {{"self", self}, {"out", out}});
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial expects Long tensor out, got: ",
              out.scalar_type());
  check_multinomial(self, samples, replacement);
  const bool batched = self.dim() == 2;
  const int64_t rows = batched ? self.size(0) : 1;
  if (batched) {
    out.resize_({rows, samples});
  } else {
    out.resize_({samples});
  }
  if (out.numel() == 0) return out;
  // Checks of the weights wait for them; the host samples on either target.
  const Tensor weights = (on_cuda() ? self.cpu() : self).to(at::kDouble).contiguous();
  if (!on_cuda()) wait_for_current_stream();
  const double* data = weights.const_data_ptr<double>();
  const auto sums = checked_sums(data, rows, self.size(-1));
  const Tensor values = on_host(out);
  fill_contiguous(values, [&](const Tensor& target) {
    auto* result = target.mutable_data_ptr<int64_t>();
    if (replacement && samples > 1) {
      sample_with(data, sums, self.size(-1), samples, generator, result);
    } else {
      sample_without(data, rows, self.size(-1), samples, generator, result);
    }
  });
  if (on_cuda()) out.copy_(values);
  return out;
}

Tensor multinomial(const Tensor& self, int64_t samples, bool replacement, Gen generator) {
  Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  return multinomial_out(self, samples, replacement, std::move(generator), out);
}

// ---- rrelu --------------------------------------------------------------------------------------

// In training, a slope of its own for each element that is not positive; `noise` keeps the slopes.
Tensor& rrelu_out(const Tensor& self, Tensor& noise, const at::Scalar& lower,
                  const at::Scalar& upper, bool training, Gen generator, Tensor& out) {
  require_ruda("aten::rrelu_with_noise", {{"self", self}, {"noise", noise}, {"out", out}});
  TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ",
              self.sym_sizes(), " noise.shape = ", noise.sym_sizes());
  if (!training) {
    const double slope = (lower.to<double>() + upper.to<double>()) / 2;
    return at::leaky_relu_out(out, self, slope);
  }
  noise.uniform_(lower.to<double>(), upper.to<double>(), std::move(generator));
  noise.masked_fill_(self.gt(0), 1.0);
  return at::mul_out(out, self, noise);
}

Tensor rrelu(const Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
             bool training, Gen generator) {
  Tensor out = at::empty_like(self);
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), out);
}

Tensor& rrelu_(Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
               bool training, Gen generator) {
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), self);
}

// ---- an unknown count of numbers an element -----------------------------------------------------

constexpr uint64_t kReserved = 1024;  // numbers an element may take before its range ends

// value(stream, i) -> double for every element i of a contiguous result like `shape`.
template <class Value>
Tensor sample_each(const Tensor& shape, const Gen& generator, const Value& value) {
  const Tensor out = at::empty(shape.sizes(), shape.options().dtype(at::kDouble));
  double* data = out.mutable_data_ptr<double>();
  const PhiloxRange range = reserve_random(generator, kReserved);
  parallel_parts(out.numel(), 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      PhiloxStream stream(range.seed, range.offset, static_cast<uint64_t>(i));
      data[i] = value(stream, i);
    }
  });
  return out;
}

// Knuth's product of uniforms for small rates, Hoermann's transformed rejection (PTRS) above.
double poisson_sample(PhiloxStream& stream, double rate) {
  TORCH_CHECK(rate >= 0.0, "invalid Poisson rate, expected rate to be non-negative");
  if (rate == 0.0) return 0.0;
  if (rate < 10.0) {
    const double least = std::exp(-rate);
    double product = stream.uniform();
    double count = 0.0;
    for (; product > least; product *= stream.uniform()) count += 1.0;
    return count;
  }
  const double root = std::sqrt(rate);
  const double b = 0.931 + 2.53 * root;
  const double a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const double v_r = 0.9277 - 3.6224 / (b - 2.0);
  while (true) {
    const double u = stream.uniform() - 0.5;
    const double v = stream.uniform();
    const double us = 0.5 - std::fabs(u);
    const double k = std::floor((2.0 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= v_r) return k;
    if (k < 0.0 || (us < 0.013 && v > us)) continue;
    if (std::log(v) + std::log(inverse_alpha) - std::log(a / (us * us) + b) <=
        -rate + k * std::log(rate) - std::lgamma(k + 1.0)) {
      return k;
    }
  }
}

Tensor poisson(const Tensor& self, Gen generator) {
  if (on_cuda()) refuse_on_cuda("aten::poisson", self);
  const Tensor rates = self.to(at::kDouble).contiguous();
  const double* rate = rates.const_data_ptr<double>();
  return sample_each(rates, generator, [rate](PhiloxStream& stream, int64_t i) {
           return poisson_sample(stream, rate[i]);
         }).to(self.scalar_type());
}

double gamma_sample(PhiloxStream& stream, double alpha) {
  const auto uniform = [&stream] { return stream.uniform(); };
  const auto normal = [&stream] { return stream.normal(); };
  BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
  BaseSampler<double, decltype(normal)> standard_normal(normal);
  return sample_gamma<double, double>(alpha, standard_uniform, standard_normal);
}

Tensor standard_gamma(const Tensor& self, Gen generator) {
  if (on_cuda()) refuse_on_cuda("aten::_standard_gamma", self);
  const Tensor alphas = self.to(at::kDouble).contiguous();
  const double* alpha = alphas.const_data_ptr<double>();
  const Tensor drawn = sample_each(alphas, generator, [alpha](PhiloxStream& stream, int64_t i) {
    return gamma_sample(stream, alpha[i]);
  });
  Tensor out = drawn.to(self.scalar_type());
  const double least = c10::isReducedFloatingType(self.scalar_type())
                           ? std::numeric_limits<float>::min()
                           : (self.scalar_type() == at::kFloat
                                  ? static_cast<double>(std::numeric_limits<float>::min())
                                  : std::numeric_limits<double>::min());
  return out.clamp_min_(least);
}

Tensor sample_dirichlet(const Tensor& self, Gen generator) {
  if (on_cuda()) refuse_on_cuda("aten::_sample_dirichlet", self);
  const Tensor alphas = self.to(at::kDouble).contiguous();
  const double* alpha = alphas.const_data_ptr<double>();
  const Tensor drawn =
      sample_each(alphas, generator, [alpha](PhiloxStream& stream, int64_t i) {
        return std::max(gamma_sample(stream, alpha[i]), std::numeric_limits<double>::min());
      });
  return (drawn / drawn.sum(-1, true)).to(self.scalar_type());
}

Tensor binomial(const Tensor& count, const Tensor& prob, Gen generator) {
  require_ruda("aten::binomial", {{"count", count}, {"prob", prob}});
  if (on_cuda()) refuse_on_cuda("aten::binomial", count);
  const auto pair = at::broadcast_tensors({count.to(at::kDouble), prob.to(at::kDouble)});
  const Tensor counts = pair[0].contiguous();
  const Tensor probs = pair[1].contiguous();
  const double* n = counts.const_data_ptr<double>();
  const double* p = probs.const_data_ptr<double>();
  return sample_each(counts, generator, [n, p](PhiloxStream& stream, int64_t i) {
           const auto uniform = [&stream] { return stream.uniform(); };
           BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
           return sample_binomial<double>(n[i], p[i], standard_uniform);
         }).to(count.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("randperm.generator_out", TORCH_FN(randperm_out));
  library.impl("multinomial", TORCH_FN(multinomial));
  library.impl("multinomial.out", TORCH_FN(multinomial_out));
  library.impl("rrelu_with_noise", TORCH_FN(rrelu));
  library.impl("rrelu_with_noise_", TORCH_FN(rrelu_));
  library.impl("rrelu_with_noise.out", TORCH_FN(rrelu_out));
  library.impl("poisson", TORCH_FN(poisson));
  library.impl("_standard_gamma", TORCH_FN(standard_gamma));
  library.impl("_sample_dirichlet", TORCH_FN(sample_dirichlet));
  library.impl("binomial", TORCH_FN(binomial));
}

}  // namespace

}  // namespace ruda_torch
