#include "launch.hpp"

#include "arguments.hpp"
#include "capture.hpp"
#include "device_facts.hpp"
#include "entry.hpp"
#include "reports.hpp"
#include "server_link.hpp"
#include "settings.hpp"

namespace driver_double {
namespace {

CUresult check_shape(const char* call, function& what, const launch_shape& shape) {
  const device_facts& facts = device_facts::get();
  constexpr char axes[] = "xyz";
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > facts.grid[i]) [[unlikely]] {
      return report(CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: grid %c is %u, wanted 1 to %u", call,
                    what.name.c_str(), axes[i], shape.grid[i], facts.grid[i]);
    }
    if (shape.block[i] == 0 || shape.block[i] > facts.block[i]) [[unlikely]] {
      return report(CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: block %c is %u, wanted 1 to %u",
                    call, what.name.c_str(), axes[i], shape.block[i], facts.block[i]);
    }
    threads *= shape.block[i];
  }
  if (threads > static_cast<uint64_t>(facts.threads_per_block)) [[unlikely]] {
    return report(
        CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: %llu threads a block, wanted at most %d", call,
        what.name.c_str(), static_cast<unsigned long long>(threads), facts.threads_per_block);
  }
  if (shape.shared > what.dynamic_shared_limit) [[unlikely]] {
    return report(
        CUDA_ERROR_INVALID_VALUE,
        "[%s] kernel %s: %u bytes of shared memory a block, wanted at most %u: above 48 KiB "
        "the function's attribute MAX_DYNAMIC_SHARED_SIZE_BYTES has to be raised first",
        call, what.name.c_str(), shape.shared, what.dynamic_shared_limit.load());
  }
  if (const description* described = what.described(); described != nullptr) {
    if (threads != described->threads) [[unlikely]] {
      return report(
          CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: %llu threads a block, compiled for %u", call,
          what.name.c_str(), static_cast<unsigned long long>(threads), described->threads);
    }
    if (shape.shared < described->shared) [[unlikely]] {
      return report(CUDA_ERROR_INVALID_VALUE,
                    "[%s] kernel %s: %u bytes of shared memory a block, the kernel uses %u", call,
                    what.name.c_str(), shape.shared, described->shared);
    }
  }
  if (shape.cooperative) {
    uint64_t blocks = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
    uint64_t resident = static_cast<uint64_t>(facts.multiprocessors) *
                        (static_cast<uint64_t>(facts.threads_per_multiprocessor) / threads);
    if (blocks > resident) {
      return report(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                    "[%s] kernel %s: %llu blocks, a cooperative launch can have %llu here", call,
                    what.name.c_str(), static_cast<unsigned long long>(blocks),
                    static_cast<unsigned long long>(resident));
    }
  }
  return CUDA_SUCCESS;
}

void count_launch(const launch_shape& shape) {
  counters& all = counters::get();
  all.launches.fetch_add(1, std::memory_order_relaxed);
  all.grid_x.fetch_add(shape.grid[0], std::memory_order_relaxed);
  all.grid_y.fetch_add(shape.grid[1], std::memory_order_relaxed);
  all.grid_z.fetch_add(shape.grid[2], std::memory_order_relaxed);
}

CUresult launch(const char* call, CUfunction what, const launch_shape& shape, CUstream handle,
                void** parameters, void** extra) {
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (CUresult code = need_function(call, what); code != CUDA_SUCCESS) return code;
  if (what->in->in != nullptr && what->in->in != &on->in) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_HANDLE,
                  "[%s] kernel %s was loaded in another context than that of %s", call,
                  what->name.c_str(), on->name());
  }
  const bool recorded = settings::get().record_only && on->capturing == nullptr;
  if (recorded) {
    // Nothing will run, so that nothing has to be queued: what comes behind is not held up.
    if (CUresult code = check_shape(call, *what, shape); code != CUDA_SUCCESS) return code;
    std::array<uint64_t, most_recorded> values;
    CUresult code = decode_arguments(call, *what, parameters, extra, values.data(), values.size());
    if (code != CUDA_SUCCESS) return code;
    count_launch(shape);
    return CUDA_SUCCESS;
  }
  std::shared_ptr<kernel_operation> work;
  if (CUresult code = make_launch(call, what, shape, parameters, extra, &work);
      code != CUDA_SUCCESS) {
    return code;
  }
  return submit(call, *on, std::move(work));
}

}  // namespace

CUresult make_launch(const char* call, function* what, const launch_shape& shape, void** parameters,
                     void** extra, std::shared_ptr<kernel_operation>* out) {
  if (CUresult code = need_function(call, what); code != CUDA_SUCCESS) return code;
  if (CUresult code = check_shape(call, *what, shape); code != CUDA_SUCCESS) return code;
  const description* described = what->described();
  if (described == nullptr && !settings::get().record_only) {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[%s] kernel %s of image %.12s has no description: give it one with "
                  "ruda_double_describe before the module is loaded",
                  call, what->name.c_str(), what->in->code.digest.c_str());
  }
  std::vector<uint64_t> values(described != nullptr ? described->packed.size() : 0);
  if (CUresult code =
          decode_arguments(call, *what, parameters, extra, values.data(), values.size());
      code != CUDA_SUCCESS) {
    return code;
  }
  *out = std::make_shared<kernel_operation>(*what, shape, std::move(values));
  return CUDA_SUCCESS;
}

void kernel_operation::addresses(const std::function<void(uint64_t)>& each) const {
  const description* described = what->described();
  for (size_t i = 0; described != nullptr && i < described->packed.size(); ++i) {
    if (described->packed[i].pointer && values[i] != 0) each(values[i]);
  }
}

CUresult kernel_operation::run(stream& on) {
  count_launch(shape);
  if (settings::get().record_only) return CUDA_SUCCESS;
  const description* described = what->described();
  if (described->built_in != nullptr) return described->built_in->run(values.data());
  return server_link::get().launch(*this, on);
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuLaunchKernel(CUfunction what, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, CUstream on,
                                   void** parameters, void** extra) {
  return launch("cuLaunchKernel", what,
                {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared}, on, parameters,
                extra);
}

DRIVER_API CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction what, void** parameters,
                                     void** extra) {
  if (how == nullptr) return CUDA_ERROR_INVALID_VALUE;
  launch_shape shape{{how->gridDimX, how->gridDimY, how->gridDimZ},
                     {how->blockDimX, how->blockDimY, how->blockDimZ},
                     how->sharedMemBytes};
  for (unsigned i = 0; i < how->numAttrs; ++i) {
    const CUlaunchAttribute& each = how->attrs[i];
    if (each.id == 2) shape.cooperative = each.value.cooperative != 0;
    if (each.id == 4 && settings::get().major < 9) {
      return report(CUDA_ERROR_INVALID_VALUE, "[cuLaunchKernelEx] sm_%d%d has no clusters",
                    settings::get().major, settings::get().minor);
    }
  }
  return launch("cuLaunchKernelEx", what, shape, how->hStream, parameters, extra);
}

DRIVER_API CUresult cuLaunchCooperativeKernel(CUfunction what, unsigned grid_x, unsigned grid_y,
                                              unsigned grid_z, unsigned block_x, unsigned block_y,
                                              unsigned block_z, unsigned shared, CUstream on,
                                              void** parameters) {
  return launch("cuLaunchCooperativeKernel", what,
                {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, true}, on,
                parameters, nullptr);
}

namespace {
const entry_table entries{
    entry<&cuLaunchKernel>("cuLaunchKernel", 4000),
    entry<&cuLaunchKernelEx>("cuLaunchKernelEx", 11060),
    entry<&cuLaunchCooperativeKernel>("cuLaunchCooperativeKernel", 9000),
};
}
