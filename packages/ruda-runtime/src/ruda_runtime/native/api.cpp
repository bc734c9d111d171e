#include "api.hpp"

#include "allocator.hpp"
#include "capture.hpp"
#include "cuda/api.hpp"
#include "cuda/copies.hpp"
#include "cuda/kernel.hpp"
#include "cuda/pinned.hpp"
#include "events.hpp"
#include "kernels.hpp"
#include "streams.hpp"
#include "system.hpp"
#include "thread_pool.hpp"

namespace ruda::native {

const ruda_api& api_table() {
  static constexpr ruda_api table{
      .abi_version = RUDA_ABI_VERSION,
      .struct_size = sizeof(ruda_api),
      .allocate = allocate,
      .release = release,
      .usable_size = usable_size,
      .memory_stats = memory_stats,
      .reset_peak_memory_stats = reset_peak_memory_stats,
      .empty_cache = empty_cache,
      .num_threads = promise_threads,
      .set_num_threads = set_num_threads,
      .parallel_for = parallel_for,
      .in_parallel = in_parallel,
      .register_kernel = register_kernel,
      .find_kernel = find_kernel,
      .launch = launch,
      .launch_count = launch_count,
      .cpu_level = cpu_level,
      .follow_threads = follow_threads,
      .asynchronous = asynchronous,
      .set_asynchronous = set_asynchronous,
      .open_stream = open_stream,
      .close_stream = close_stream,
      .stream_handle = stream_handle,
      .current_stream = current_stream,
      .set_current_stream = set_current_stream,
      .query_stream = query_stream,
      .synchronize = synchronize,
      .wait_stream = wait_stream,
      .create_event = create_event,
      .destroy_event = destroy_event,
      .record_event = record_event,
      .wait_event = wait_event,
      .query_event = query_event,
      .synchronize_event = synchronize_event,
      .elapsed_time = elapsed_time,
      .record_stream = record_stream,
      .target = cuda::target,
      .driver_stream = cuda::driver_stream_handle,
      .allocate_pinned = cuda::allocate_pinned,
      .release_pinned = cuda::release_pinned,
      .copy_to_device = cuda::upload,
      .copy_to_host = cuda::download,
      .copy_on_device = cuda::copy_on_device,
      .fill = cuda::fill,
      .find_device_kernel = cuda::find_device_kernel,
      .find_plan = cuda::find_plan,
      .launch_plan = cuda::launch_plan,
      .launch_device = cuda::launch_device,
      .is_capturing = is_capturing,
  };
  return table;
}

}  // namespace ruda::native
