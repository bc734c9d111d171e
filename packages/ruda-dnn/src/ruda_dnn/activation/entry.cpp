/* "silu_mul.forward" and "silu_mul.backward": checks, choice and launch. */
#include "device.hpp"
#include "entries.hpp"
#include "host.hpp"
#include "streaming.hpp"

namespace ruda {
namespace {

constexpr int64_t grain = 16384;

int32_t forward(const void* raw, ruda_error* error) {
  const char* operation = "silu_mul";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const silu_mul_forward_args*>(raw);
    RUDA_TRY(check_activation(args.gate, operation, "gate", error));
    RUDA_TRY(check_like(args.up, args.gate, operation, "up", "gate", error));
    RUDA_TRY(check_like(args.out, args.gate, operation, "out", "gate", error));
    if (on_device(*args.gate)) return silu_mul_forward_cuda(args, error);
    silu_mul_range work{};
    work.gate = args.gate->data;
    work.up = args.up->data;
    work.out = args.out->data;
    work.dtype = args.gate->dtype;
    work.streamed = writes_past_caches(*args.out, grain);
    const auto run = RUDA_HOST(silu_mul_forward);
    parallel_for(0, element_count(*args.gate), grain,
                 [&](int64_t begin, int64_t end, int32_t) { run(work, begin, end); });
    return RUDA_OK;
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  const char* operation = "silu_mul_backward";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const silu_mul_backward_args*>(raw);
    RUDA_TRY(check_activation(args.gate, operation, "gate", error));
    RUDA_TRY(check_like(args.up, args.gate, operation, "up", "gate", error));
    RUDA_TRY(check_like(args.grad, args.gate, operation, "grad", "gate", error));
    silu_mul_range work{};
    work.gate = args.gate->data;
    work.up = args.up->data;
    work.grad = args.grad->data;
    work.dtype = args.gate->dtype;
    if (args.dgate != nullptr) {
      RUDA_TRY(check_like(args.dgate, args.gate, operation, "dgate", "gate", error));
      work.dgate = args.dgate->data;
    }
    if (args.dup != nullptr) {
      RUDA_TRY(check_like(args.dup, args.gate, operation, "dup", "gate", error));
      work.dup = args.dup->data;
    }
    if (on_device(*args.gate)) return silu_mul_backward_cuda(args, error);
    if (work.dgate == nullptr && work.dup == nullptr) return RUDA_OK;
    const auto run = RUDA_HOST(silu_mul_backward);
    parallel_for(0, element_count(*args.gate), grain,
                 [&](int64_t begin, int64_t end, int32_t) { run(work, begin, end); });
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_activation(ruda_error* error) {
  RUDA_TRY(register_kernel("silu_mul.forward", "ruda-dnn", silu_mul_forward_args_layout, forward,
                           error));
  return register_kernel("silu_mul.backward", "ruda-dnn", silu_mul_backward_args_layout, backward,
                         error);
}

}  // namespace ruda
