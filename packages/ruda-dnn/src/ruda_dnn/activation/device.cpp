/* The activation's kernels on the cuda target; the choices are those of launch.py. */
#include "device.hpp"

#include "device_entries.hpp"
#include "entries.hpp"

namespace ruda {
namespace {

device_kernel forward_kernel{"silu_mul.forward"};
device_kernel backward_kernel{"silu_mul.backward"};

constexpr int64_t block = 1024;

}  // namespace

int32_t silu_mul_forward_cuda(const silu_mul_forward_args& args, ruda_error* error) {
  const int64_t count = element_count(*args.gate);
  RUDA_TRY(check_device_limit(ceil_div(count, block), "silu_mul", "blocks of 1024 elements", error));
  if (count == 0) return RUDA_OK;
  return forward_kernel.launch(programs(ceil_div(count, block)), {}, error, args.gate, args.up,
                               args.out, integer(count), integer(block));
}

int32_t silu_mul_backward_cuda(const silu_mul_backward_args& args, ruda_error* error) {
  const int64_t count = element_count(*args.gate);
  RUDA_TRY(check_device_limit(ceil_div(count, block), "silu_mul_backward",
                              "blocks of 1024 elements", error));
  if (count == 0 || (args.dgate == nullptr && args.dup == nullptr)) return RUDA_OK;
  return backward_kernel.launch(programs(ceil_div(count, block)), {}, error, args.gate, args.up,
                                args.grad, args.dgate, args.dup, integer(count), integer(block));
}

}  // namespace ruda
