// In-place distributions: uniform_, normal_, random_, bernoulli_, exponential_, geometric_,
// cauchy_, log_normal_. The checks are ATen's own templates; the numbers are ours.

#include "host_call.h"
#include "random.h"

#include "../cuda/random.h"
#include "../cuda/target.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/native/DistributionTemplates.h>
#include <torch/library.h>

#include <cmath>

namespace ruda_torch {

namespace {

using at::Tensor;
using at::TensorIterator;
using Gen = std::optional<at::Generator>;
namespace templates = at::native::templates;

// ---- continuous distributions of one number an element ------------------------------------------

// value(words) -> Compute<T> for every element of `self`.
template <class T, class Value>
void fill_each(const Tensor& self, const Gen& generator, const Value& value) {
  fill_contiguous(self, [&](const Tensor& target) {
    T* data = target.mutable_data_ptr<T>();
    draw<kWordsFor<T>>(target.numel(), generator,
                       [&](const uint32_t* words, int64_t begin, int64_t count) {
                         for (int64_t i = 0; i < count; ++i) {
                           data[begin + i] = static_cast<T>(value(words + i * kWordsFor<T>));
                         }
                       });
  });
}

template <class>
struct Uniform {
  void operator()(TensorIterator& iter, double from, double to, const Gen& generator) const {
    const Tensor& self = iter.output();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "uniform_", [&] {
      using C = Compute<scalar_t>;
      const auto low = static_cast<scalar_t>(from);
      const auto high = static_cast<scalar_t>(to);
      const C range = static_cast<C>(to) - static_cast<C>(from);
      if (on_cuda()) return cuda::fill_uniform(self, low, high, range, generator);
      fill_each<scalar_t>(self, generator, [=](const uint32_t* words) {
        const auto value = static_cast<scalar_t>(unit_closed_open<scalar_t>(words) * range +
                                                 static_cast<C>(low));
        // Rounding may reach the excluded end.
        return static_cast<C>(value < high || low == high ? value : low);
      });
    });
  }
};

template <class>
struct Exponential {
  void operator()(TensorIterator& iter, double lambda, const Gen& generator) const {
    const Tensor& self = iter.output();
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, self.scalar_type(), "exponential_", [&] {
          using C = Compute<scalar_t>;
          const C scale = static_cast<C>(-1.0 / lambda);
          // 0 is outside of the distribution: a divisor of samplers.
          const C least = static_cast<C>(std::numeric_limits<scalar_t>::denorm_min());
          if (on_cuda()) return cuda::fill_exponential(self, scale, least, generator);
          fill_each<scalar_t>(self, generator, [=](const uint32_t* words) {
            return std::max(std::log(unit_open<scalar_t>(words)) * scale, least);
          });
        });
  }
};

template <class>
struct Cauchy {
  void operator()(TensorIterator& iter, double median, double sigma, const Gen& generator) const {
    const Tensor& self = iter.output();
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, self.scalar_type(), "cauchy_", [&] {
          if (on_cuda()) return cuda::fill_cauchy(self, median, sigma, generator);
          using C = Compute<scalar_t>;
          fill_each<scalar_t>(self, generator, [=](const uint32_t* words) {
            const C angle = static_cast<C>(M_PI) * (unit_open<scalar_t>(words) - C(0.5));
            return static_cast<C>(median) + static_cast<C>(sigma) * std::tan(angle);
          });
        });
  }
};

template <class>
struct Geometric {
  void operator()(TensorIterator& iter, double p, const Gen& generator) const {
    const Tensor& self = iter.output();
    const double scale = 1.0 / std::log1p(-p);
    if (on_cuda()) {
      const Tensor trials = at::empty(self.sizes(), self.options().dtype(at::kDouble));
      cuda::fill_exponential(trials, scale, 0.0, generator);
      self.copy_(trials.ceil_());
      return;
    }
    AT_DISPATCH_ALL_TYPES_AND2(
        at::kHalf, at::kBFloat16, self.scalar_type(), "geometric_", [&] {
          fill_contiguous(self, [&](const Tensor& target) {
            auto* data = target.mutable_data_ptr<scalar_t>();
            draw<2>(target.numel(), generator,
                    [&](const uint32_t* words, int64_t begin, int64_t count) {
                      for (int64_t i = 0; i < count; ++i) {
                        const double trials =
                            std::ceil(std::log(unit_open<double>(words + 2 * i)) * scale);
                        data[begin + i] = static_cast<scalar_t>(trials);
                      }
                    });
          });
        });
  }
};

// ---- normal: a pair of elements from a pair of numbers (Box and Muller) -------------------------

template <class T, class Value>
void fill_normal(const Tensor& self, const Gen& generator, const Value& value) {
  using C = Compute<T>;
  constexpr int kWords = kWordsFor<T>;
  fill_contiguous(self, [&](const Tensor& target) {
    T* data = target.mutable_data_ptr<T>();
    draw<kWords>(target.numel(), generator,
                 [&](const uint32_t* words, int64_t begin, int64_t count) {
      for (int64_t i = 0; i < count; i += 2) {
        const uint32_t* pair = words + i * kWords;
        C first;
        C angle;
        if constexpr (std::is_same_v<C, double>) {
          first = (static_cast<double>(wide(pair) >> 11) + 0.5) * 0x1p-53;
          angle = static_cast<double>(wide(pair + 2) >> 11) * 0x1p-53;
        } else {
          first = (static_cast<float>(pair[0]) + 0.5f) * 0x1p-32f;  // tails up to 6.8
          angle = static_cast<float>(pair[1] >> 8) * 0x1p-24f;
        }
        const C radius = std::sqrt(C(-2) * std::log(first));
        const C turn = static_cast<C>(2.0 * M_PI) * angle;
        data[begin + i] = static_cast<T>(value(radius * std::cos(turn)));
        if (i + 1 < count) data[begin + i + 1] = static_cast<T>(value(radius * std::sin(turn)));
      }
    });
  });
}

template <class>
struct Normal {
  void operator()(Tensor& self, double mean, double std, const Gen& generator) const {
    at::assert_no_internal_overlap(self);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "normal_", [&] {
      if (on_cuda()) return cuda::fill_normal(self, mean, std, generator);
      using C = Compute<scalar_t>;
      fill_normal<scalar_t>(self, generator, [=](C value) {
        return value * static_cast<C>(std) + static_cast<C>(mean);
      });
    });
  }
};

template <class>
struct LogNormal {
  void operator()(TensorIterator& iter, double mean, double std, const Gen& generator) const {
    const Tensor& self = iter.output();
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, self.scalar_type(), "log_normal_", [&] {
          using C = Compute<scalar_t>;
          if (on_cuda()) {
            const auto type = c10::CppTypeToScalarType<C>::value;
            const Tensor normal = at::empty(self.sizes(), self.options().dtype(type));
            cuda::fill_normal(normal, mean, std, generator);
            self.copy_(at::exp(normal));
            return;
          }
          fill_normal<scalar_t>(self, generator, [=](C value) {
            return std::exp(value * static_cast<C>(std) + static_cast<C>(mean));
          });
        });
  }
};

// ---- integers -----------------------------------------------------------------------------------

// value(64 random bits) -> T for every element.
template <class T, class Value>
void fill_integers(const Tensor& self, const Gen& generator, const Value& value) {
  fill_contiguous(self, [&](const Tensor& target) {
    T* data = target.mutable_data_ptr<T>();
    draw<2>(target.numel(), generator, [&](const uint32_t* words, int64_t begin, int64_t count) {
      for (int64_t i = 0; i < count; ++i) data[begin + i] = value(wide(words + 2 * i));
    });
  });
}

// One of 0..range-1, by the high part of a product: no division, and a bias below range / 2^64.
uint64_t below(uint64_t bits, uint64_t range) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * range) >> 64);
}

#define RUDA_INTEGERS(tensor, name, ...)                                                         \
  AT_DISPATCH_V2((tensor).scalar_type(), name, AT_WRAP(__VA_ARGS__), AT_EXPAND(AT_ALL_TYPES),    \
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16)

template <class>
struct RandomRange {
  void operator()(TensorIterator& iter, uint64_t range, int64_t base, const Gen& generator) const {
    const Tensor& self = iter.output();
    if (on_cuda()) return cuda::fill_integers(self, range, base, generator);
    RUDA_INTEGERS(self, "random_", [&] {
      fill_integers<scalar_t>(self, generator, [=](uint64_t bits) {
        return static_cast<scalar_t>(
            static_cast<int64_t>(below(bits, range) + static_cast<uint64_t>(base)));
      });
    });
  }

  // All 2^64 values: int64 only.
  void operator()(TensorIterator& iter, const Gen& generator) const {
    const Tensor& self = iter.output();
    if (on_cuda()) return cuda::fill_integers(self, 0, 0, generator);
    RUDA_INTEGERS(self, "random_", [&] {
      fill_integers<scalar_t>(self, generator, [](uint64_t bits) {
        return static_cast<scalar_t>(static_cast<int64_t>(bits));
      });
    });
  }
};

// 0..the largest integer that the dtype holds together with all below it.
template <class>
struct RandomAny {
  void operator()(TensorIterator& iter, const Gen& generator) const {
    const Tensor& self = iter.output();
    RUDA_INTEGERS(self, "random_", [&] {
      uint64_t count = 2;
      if constexpr (std::is_same_v<scalar_t, bool>) {
        count = 2;
      } else if constexpr (std::is_integral_v<scalar_t>) {
        count = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;
      } else {
        count = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1;
      }
      if (on_cuda()) return cuda::fill_integers(self, count, 0, generator);
      fill_integers<scalar_t>(self, generator, [=](uint64_t bits) {
        return static_cast<scalar_t>(count == 0 ? bits : below(bits, count));
      });
    });
  }
};

// ---- bernoulli ----------------------------------------------------------------------------------

template <class>
struct BernoulliScalar {
  void operator()(Tensor& self, double p, const Gen& generator) const {
    const auto threshold = static_cast<uint64_t>(p * 0x1p32);  // p = 1: every number is below
    if (on_cuda()) return cuda::fill_bernoulli(self, threshold, generator);
    AT_DISPATCH_ALL_TYPES_AND3(
        at::kBool, at::kHalf, at::kBFloat16, self.scalar_type(), "bernoulli_", [&] {
          fill_contiguous(self, [&](const Tensor& target) {
            auto* data = target.mutable_data_ptr<scalar_t>();
            draw<1>(target.numel(), generator,
                    [&](const uint32_t* words, int64_t begin, int64_t count) {
                      for (int64_t i = 0; i < count; ++i) {
                        data[begin + i] = static_cast<scalar_t>(words[i] < threshold ? 1 : 0);
                      }
                    });
          });
        });
  }
};

template <class>
struct BernoulliTensor {
  void operator()(Tensor& self, const Tensor& given, const Gen& generator) const {
    TORCH_CHECK(given.is_privateuseone() || given.dim() == 0, "[aten::bernoulli_] Expected all "
                "tensors to be on the same device: argument p is on ", given.device());
    TORCH_CHECK(at::isFloatingType(given.scalar_type()),
                "[aten::bernoulli_] expected probabilities tensor to have floating type, got ",
                given.scalar_type());
    if (on_cuda()) {
      const Tensor p = given.to(self.device()).expand(self.sizes());
      return cuda::fill_bernoulli_each(self, p, generator);
    }
    const Tensor p = given.to(self.device(), at::kDouble).expand(self.sizes()).contiguous();
    const double* chance = p.const_data_ptr<double>();
    AT_DISPATCH_ALL_TYPES_AND3(
        at::kBool, at::kHalf, at::kBFloat16, self.scalar_type(), "bernoulli_", [&] {
          fill_contiguous(self, [&](const Tensor& target) {
            auto* data = target.mutable_data_ptr<scalar_t>();
            draw<1>(target.numel(), generator,
                    [&](const uint32_t* words, int64_t begin, int64_t count) {
                      for (int64_t i = 0; i < count; ++i) {
                        const double limit = chance[begin + i];
                        TORCH_CHECK(limit >= 0.0 && limit <= 1.0, "[aten::bernoulli_] Expected "
                                    "p_in >= 0 && p_in <= 1, got ", limit);
                        data[begin + i] =
                            static_cast<scalar_t>(words[i] * 0x1p-32 < limit ? 1 : 0);
                      }
                    });
          });
        });
  }
};

// ---- operators ----------------------------------------------------------------------------------

Tensor& uniform_(Tensor& self, double from, double to, Gen generator) {
  return templates::uniform_impl_<Uniform, void>(self, from, to, std::move(generator));
}

Tensor& exponential_(Tensor& self, double lambda, Gen generator) {
  return templates::exponential_impl_<Exponential, void>(self, lambda, std::move(generator));
}

Tensor& cauchy_(Tensor& self, double median, double sigma, Gen generator) {
  return templates::cauchy_impl_<Cauchy, void>(self, median, sigma, std::move(generator));
}

Tensor& geometric_(Tensor& self, double p, Gen generator) {
  return templates::geometric_impl_<Geometric, void>(self, p, std::move(generator));
}

Tensor& log_normal_(Tensor& self, double mean, double std, Gen generator) {
  return templates::log_normal_impl_<LogNormal, void>(self, mean, std, std::move(generator));
}

Tensor& normal_(Tensor& self, double mean, double std, Gen generator) {
  return templates::normal_impl_<Normal, void>(self, mean, std, std::move(generator));
}

Tensor& normal_tensor_float_out(const Tensor& mean, double std, Gen generator, Tensor& out) {
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(generator));
}

Tensor& normal_float_tensor_out(double mean, const Tensor& std, Gen generator, Tensor& out) {
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(generator));
}

Tensor& normal_tensor_tensor_out(const Tensor& mean, const Tensor& std, Gen generator,
                                 Tensor& out) {
  require_ruda("aten::normal", {{"mean", mean}, {"std", std}, {"out", out}});
  return templates::normal_out_impl<Normal, void>(out, mean, std, std::move(generator));
}

Tensor normal_tensor_float(const Tensor& mean, double std, Gen generator) {
  return templates::normal_impl<Normal, void>(mean, std, std::move(generator));
}

Tensor normal_float_tensor(double mean, const Tensor& std, Gen generator) {
  return templates::normal_impl<Normal, void>(mean, std, std::move(generator));
}

Tensor normal_tensor_tensor(const Tensor& mean, const Tensor& std, Gen generator) {
  require_ruda("aten::normal", {{"mean", mean}, {"std", std}});
  return templates::normal_impl<Normal, void>(mean, std, std::move(generator));
}

Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, Gen generator) {
  return templates::random_from_to_impl<RandomRange, void>(self, from, to, std::move(generator));
}

Tensor& random_to(Tensor& self, int64_t to, Gen generator) {
  return random_from(self, 0, to, std::move(generator));
}

Tensor& random_any(Tensor& self, Gen generator) {
  return templates::random_impl<RandomAny, void>(self, std::move(generator));
}

Tensor& bernoulli_float(Tensor& self, double p, Gen generator) {
  return templates::bernoulli_impl_<BernoulliScalar, void>(self, p, std::move(generator));
}

Tensor& bernoulli_tensor(Tensor& self, const Tensor& p, Gen generator) {
  return templates::bernoulli_impl_<BernoulliTensor, void>(self, p, std::move(generator));
}

Tensor& bernoulli_out(const Tensor& self, Gen generator, Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliTensor, void>(out, self, std::move(generator));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("uniform_", TORCH_FN(uniform_));
  library.impl("exponential_", TORCH_FN(exponential_));
  library.impl("cauchy_", TORCH_FN(cauchy_));
  library.impl("geometric_", TORCH_FN(geometric_));
  library.impl("log_normal_", TORCH_FN(log_normal_));
  library.impl("normal_", TORCH_FN(normal_));
  library.impl("normal.Tensor_float", TORCH_FN(normal_tensor_float));
  library.impl("normal.float_Tensor", TORCH_FN(normal_float_tensor));
  library.impl("normal.Tensor_Tensor", TORCH_FN(normal_tensor_tensor));
  library.impl("normal.Tensor_float_out", TORCH_FN(normal_tensor_float_out));
  library.impl("normal.float_Tensor_out", TORCH_FN(normal_float_tensor_out));
  library.impl("normal.Tensor_Tensor_out", TORCH_FN(normal_tensor_tensor_out));
  library.impl("random_.from", TORCH_FN(random_from));
  library.impl("random_.to", TORCH_FN(random_to));
  library.impl("random_", TORCH_FN(random_any));
  library.impl("bernoulli_.float", TORCH_FN(bernoulli_float));
  library.impl("bernoulli_.Tensor", TORCH_FN(bernoulli_tensor));
  library.impl("bernoulli.out", TORCH_FN(bernoulli_out));
}

}  // namespace

}  // namespace ruda_torch
