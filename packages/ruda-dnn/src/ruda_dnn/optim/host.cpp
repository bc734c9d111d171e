/* AdamW and gradient statistics on the host. */
#include "host.hpp"

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* torch.optim.AdamW's order of operations: decay, first moment (lerp), second moment, update. */
template <class P, class G, bool has_master>
void update(const adamw_tensor& tensor, const adamw_numbers& n, int64_t begin, int64_t end) {
  P* parameter = static_cast<P*>(tensor.parameter);
  const G* gradient = static_cast<const G*>(tensor.gradient);
  auto one = [&](int64_t i, auto get, auto put) {
    vec value;
    if constexpr (has_master) {
      value = get(tensor.master + i);
    } else {
      value = get(parameter + i);
    }
    const vec grad = get(gradient + i) * n.gradient_scale;
    vec first = get(tensor.first + i);
    vec second = get(tensor.second + i);
    value = value * n.decay;
    // The two forms of a lerp: exact at both ends (beta1 = 0 keeps the gradient itself).
    first = n.one_minus_beta1 < 0.5f ? first + n.one_minus_beta1 * (grad - first)
                                     : grad - n.beta1 * (grad - first);
    second = second * n.beta2 + (n.one_minus_beta2 * grad) * grad;
    value = value - (n.step_size * first) / (square_root(second) / n.correction + n.epsilon);
    put(tensor.first + i, first);
    put(tensor.second + i, second);
    if constexpr (has_master) put(tensor.master + i, value);
    put(parameter + i, value);
  };
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    one(i, [](auto* p) { return load(p); }, [](auto* p, vec v) { store(p, v); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    one(i, [rest](auto* p) { return load_tail(p, rest); },
        [rest](auto* p, vec v) { store_tail(p, v, rest); });
  }
}

}  // namespace

void adamw_update(const adamw_tensor& tensor, const adamw_numbers& numbers, int64_t begin,
                  int64_t end) {
  with_storage(tensor.parameter_dtype, [&](auto parameter) {
    using P = decltype(parameter);
    if (tensor.gradient_dtype == tensor.parameter_dtype) {
      if (tensor.master != nullptr) {
        update<P, P, true>(tensor, numbers, begin, end);
      } else {
        update<P, P, false>(tensor, numbers, begin, end);
      }
    } else {  // a float32 gradient of a parameter stored in 16 bits
      if (tensor.master != nullptr) {
        update<P, float, true>(tensor, numbers, begin, end);
      } else {
        update<P, float, false>(tensor, numbers, begin, end);
      }
    }
  });
}

bool scale_in_place(void* values, int32_t dtype, float scale, int64_t begin, int64_t end) {
  vec check = {};  // value * 0 is 0 for finite values and NaN for the others
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    T* data = static_cast<T*>(values);
    int64_t i = begin;
    if (scale == 1.0f) {
      for (; i + lanes <= end; i += lanes) check += load(data + i) * 0.0f;
      if (i < end) check += load_tail(data + i, end - i) * 0.0f;
      return;
    }
    for (; i + lanes <= end; i += lanes) {
      const vec value = round_to(load(data + i) * scale, data);
      check += value * 0.0f;
      store(data + i, value);
    }
    if (i < end) {
      const vec value = round_to(load_tail(data + i, end - i) * scale, data);
      check += value * 0.0f;
      store_tail(data + i, value, end - i);
    }
  });
  return sum_lanes(check) == 0.0f;
}

double scaled_square_sum(const void* values, int32_t dtype, float scale, int64_t begin,
                         int64_t end) {
  typedef double wide __attribute__((vector_size(32)));  // four of eight lanes
  wide sums[2] = {};
  const auto add = [&](vec value) {
    const vec scaled = value * scale;
    const wide low = __builtin_convertvector(__builtin_shufflevector(scaled, scaled, 0, 1, 2, 3),
                                             wide);
    const wide high = __builtin_convertvector(__builtin_shufflevector(scaled, scaled, 4, 5, 6, 7),
                                              wide);
    sums[0] += low * low;
    sums[1] += high * high;
  };
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = static_cast<const T*>(values);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) add(load(data + i));
    if (i < end) add(load_tail(data + i, end - i));
  });
  const wide total = sums[0] + sums[1];
  return (total[0] + total[1]) + (total[2] + total[3]);
}

}  // namespace ruda::RUDA_VARIANT
