/* SiLU times a second operand on the host. */
#include "host.hpp"

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* Calls fn(offset, load, store) for whole vectors and then for the tail. */
template <class F>
inline void for_vectors(int64_t begin, int64_t end, F&& fn) {
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    fn(i, [](auto* p) { return load(p); }, [](auto* p, vec v) { store(p, v); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    fn(i, [rest](auto* p) { return load_tail(p, rest); },
       [rest](auto* p, vec v) { store_tail(p, v, rest); });
  }
}

template <class T>
void forward(const silu_mul_range& args, int64_t begin, int64_t end) {
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  T* out = static_cast<T*>(args.out);
  for_vectors(begin, end, [=](int64_t i, auto get, auto put) {
    const vec g = get(gate + i);
    put(out + i, round_to(g * sigmoid(g), out) * get(up + i));
  });
}

/* dup = grad * silu(gate) with the rounded SiLU of the forward pass;
 * dgate = grad * up * s * (1 + gate * (1 - s)),  s = sigmoid(gate). */
template <class T, bool want_gate, bool want_up>
void backward(const silu_mul_range& args, int64_t begin, int64_t end) {
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  const T* grad = static_cast<const T*>(args.grad);
  T* dgate = static_cast<T*>(args.dgate);
  T* dup = static_cast<T*>(args.dup);
  for_vectors(begin, end, [=](int64_t i, auto get, auto put) {
    const vec g = get(gate + i);
    const vec upper = get(grad + i);
    const vec s = sigmoid(g);
    if constexpr (want_gate) {
      put(dgate + i, (upper * get(up + i)) * (s * (1.0f + g * (1.0f - s))));
    }
    if constexpr (want_up) put(dup + i, upper * round_to(g * s, dup));
  });
}

}  // namespace

void silu_mul_forward(const silu_mul_range& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    forward<decltype(type)>(args, begin, end);
  });
}

void silu_mul_backward(const silu_mul_range& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.dgate != nullptr && args.dup != nullptr) {
      backward<T, true, true>(args, begin, end);
    } else if (args.dgate != nullptr) {
      backward<T, true, false>(args, begin, end);
    } else if (args.dup != nullptr) {
      backward<T, false, true>(args, begin, end);
    }
  });
}

}  // namespace ruda::RUDA_VARIANT
