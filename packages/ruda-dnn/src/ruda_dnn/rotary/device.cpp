/* The rotary kernel on the cuda target; the choices are those of launch.py. */
#include "device.hpp"

#include <algorithm>
#include <bit>

#include "device_entries.hpp"
#include "entries.hpp"

namespace ruda {
namespace {

device_kernel kernel{"rotary"};

}  // namespace

int32_t rotary_cuda(const rotary_args& args, const char* operation, bool transposed,
                    ruda_error* error) {
  if (element_count(*args.x) == 0) return RUDA_OK;
  const int64_t* sizes = args.x->sizes;
  const int64_t* strides = args.x->strides;
  const int64_t length = sizes[1], heads = sizes[2], features = sizes[3];
  const int64_t rotated = args.cos->sizes[2], half = rotated / 2;
  const auto pairs = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(half)));
  const int64_t tile_pairs = std::clamp<int64_t>(pairs, 32, 1024);
  const int64_t tile_heads = std::max<int64_t>(1, 512 / tile_pairs);
  RUDA_TRY(check_device_limit(sizes[0] * length, operation, "tokens", error));
  RUDA_TRY(check_device_limit(features, operation, "features", error));
  RUDA_TRY(check_device_limit(heads, operation, "heads", error));
  RUDA_TRY(check_device_limit(ceil_div(heads, tile_heads), operation, "tiles of heads", error,
                              largest_grid_y));
  return kernel.launch(programs(sizes[0] * length, ceil_div(heads, tile_heads)), {}, error, args.x,
                       args.cos, args.sin, args.y, integer(strides[0]), integer(strides[1]),
                       integer(strides[2]),
                       integer(args.cos->sizes[0] == 1 ? 0 : length * rotated), integer(length),
                       integer(heads), integer(features), integer(half), boolean(transposed),
                       integer(tile_heads), integer(tile_pairs));
}

}  // namespace ruda
