#include "device_facts.hpp"
#include "entry.hpp"
#include "modules.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <algorithm>

using namespace driver_double;

DRIVER_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction of) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (CUresult code = need_function("cuFuncGetAttribute", of); code != CUDA_SUCCESS) return code;
  const settings& device = settings::get();
  const description* described = of->described();
  switch (attribute) {
    case 0:  // the largest block
      *value = described != nullptr ? static_cast<int>(described->threads)
                                    : device_facts::get().threads_per_block;
      break;
    // Static shared, constant and local memory, registers: facts of code generation, which is not
    // part of the double. Triton's kernels have dynamic shared memory only.
    case 1:
    case 2:
    case 3: *value = 0; break;
    case 4: *value = 32; break;
    case 5:
    case 6: *value = 10 * device.major + device.minor; break;
    case 7:
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
    case 15: *value = 0; break;
    case 8: *value = static_cast<int>(of->dynamic_shared_limit.load()); break;
    case 9: *value = of->carveout; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuFuncSetAttribute(CUfunction of, int attribute, int value) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (CUresult code = need_function("cuFuncSetAttribute", of); code != CUDA_SUCCESS) return code;
  switch (attribute) {
    case 8:
      if (value < 0 || value > device_facts::get().shared_per_block_optin) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      of->dynamic_shared_limit = static_cast<unsigned>(value);
      return CUDA_SUCCESS;
    case 9:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      of->carveout = value;
      return CUDA_SUCCESS;
    case 11:
    case 12:
    case 13:
    case 14:
    case 15:  // clusters
      return settings::get().major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

DRIVER_API CUresult cuFuncSetCacheConfig(CUfunction of, int preference) {
  if (CUresult code = need_function("cuFuncSetCacheConfig", of); code != CUDA_SUCCESS) return code;
  return preference >= 0 && preference <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API CUresult cuFuncGetModule(CUmodule* out, CUfunction of) {
  if (CUresult code = need_function("cuFuncGetModule", of); code != CUDA_SUCCESS) return code;
  *out = of->in;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuFuncGetName(const char** name, CUfunction of) {
  if (CUresult code = need_function("cuFuncGetName", of); code != CUDA_SUCCESS) return code;
  *name = of->name.c_str();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuFuncGetParamInfo(CUfunction of, size_t index, size_t* offset, size_t* bytes) {
  if (CUresult code = need_function("cuFuncGetParamInfo", of); code != CUDA_SUCCESS) return code;
  const description* described = of->described();
  if (described == nullptr) {
    return report(CUDA_ERROR_NOT_SUPPORTED, "[cuFuncGetParamInfo] kernel %s has no description",
                  of->name.c_str());
  }
  if (index >= described->packed.size()) return CUDA_ERROR_INVALID_VALUE;
  size_t at = 0;
  for (size_t i = 0; i <= index; ++i) {
    size_t size = described->packed[i].bytes;
    at = (at + size - 1) / size * size;
    if (i == index) {
      *offset = at;
      if (bytes != nullptr) *bytes = size;
    }
    at += size;
  }
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuFuncIsLoaded(int* state, CUfunction of) {
  if (CUresult code = need_function("cuFuncIsLoaded", of); code != CUDA_SUCCESS) return code;
  *state = 1;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuFuncLoad(CUfunction of) { return need_function("cuFuncLoad", of); }

DRIVER_API CUresult cuKernelGetFunction(CUfunction* out, CUkernel of) {
  if (CUresult code = need_function("cuKernelGetFunction", of); code != CUDA_SUCCESS) return code;
  *out = of;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel of) {
  if (CUresult code = need_function("cuKernelGetLibrary", of); code != CUDA_SUCCESS) return code;
  *out = of->in->from;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel of, CUdevice) {
  return cuFuncGetAttribute(value, attribute, of);
}

DRIVER_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel of, CUdevice) {
  return cuFuncSetAttribute(of, attribute, value);
}

DRIVER_API CUresult cuKernelSetCacheConfig(CUkernel of, int preference, CUdevice) {
  return cuFuncSetCacheConfig(of, preference);
}

DRIVER_API CUresult cuKernelGetName(const char** name, CUkernel of) {
  return cuFuncGetName(name, of);
}

DRIVER_API CUresult cuKernelGetParamInfo(CUkernel of, size_t index, size_t* offset, size_t* bytes) {
  return cuFuncGetParamInfo(of, index, offset, bytes);
}

DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction of,
                                                                         int threads, size_t shared,
                                                                         unsigned) {
  if (CUresult code = need_function("cuOccupancyMaxActiveBlocksPerMultiprocessor", of);
      code != CUDA_SUCCESS) {
    return code;
  }
  const device_facts& facts = device_facts::get();
  if (threads <= 0 || threads > facts.threads_per_block) return CUDA_ERROR_INVALID_VALUE;
  int by_threads = facts.threads_per_multiprocessor / ((threads + 31) / 32 * 32);
  int kept = settings::get().major >= 8 ? 1024 : 0;
  int by_shared = facts.shared_per_multiprocessor / std::max(1, static_cast<int>(shared) + kept);
  *blocks = std::min({by_threads, by_shared, facts.blocks_per_multiprocessor});
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction of,
                                                                int threads, size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, of, threads, shared, 0);
}

DRIVER_API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction of,
                                                     size_t (*shared_for)(int), size_t shared,
                                                     int limit) {
  int best = 0, chosen = 0;
  const device_facts& facts = device_facts::get();
  for (int threads = facts.warp; threads <= facts.threads_per_block; threads += facts.warp) {
    if (limit > 0 && threads > limit) break;
    int blocks = 0;
    CUresult code = cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, of, threads, shared_for != nullptr ? shared_for(threads) : shared);
    if (code != CUDA_SUCCESS) return code;
    if (blocks * threads >= best) best = blocks * threads, chosen = threads;
  }
  *block = chosen;
  *grid = best / chosen * facts.multiprocessors;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction of,
                                                            int blocks, int threads) {
  if (CUresult code = need_function("cuOccupancyAvailableDynamicSMemPerBlock", of);
      code != CUDA_SUCCESS) {
    return code;
  }
  if (blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const device_facts& facts = device_facts::get();
  int share = facts.shared_per_multiprocessor / blocks - (settings::get().major >= 8 ? 1024 : 0);
  *bytes = static_cast<size_t>(std::clamp(share, 0, facts.shared_per_block_optin));
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuFuncGetAttribute>("cuFuncGetAttribute", 2020),
    entry<&cuFuncSetAttribute>("cuFuncSetAttribute", 9000),
    entry<&cuFuncSetCacheConfig>("cuFuncSetCacheConfig", 3000),
    entry<&cuFuncGetModule>("cuFuncGetModule", 11000),
    entry<&cuFuncGetName>("cuFuncGetName", 12030),
    entry<&cuFuncGetParamInfo>("cuFuncGetParamInfo", 12040),
    entry<&cuFuncIsLoaded>("cuFuncIsLoaded", 12040),
    entry<&cuFuncLoad>("cuFuncLoad", 12040),
    entry<&cuKernelGetFunction>("cuKernelGetFunction", 12000),
    entry<&cuKernelGetLibrary>("cuKernelGetLibrary", 12050),
    entry<&cuKernelGetAttribute>("cuKernelGetAttribute", 12000),
    entry<&cuKernelSetAttribute>("cuKernelSetAttribute", 12000),
    entry<&cuKernelSetCacheConfig>("cuKernelSetCacheConfig", 12000),
    entry<&cuKernelGetName>("cuKernelGetName", 12030),
    entry<&cuKernelGetParamInfo>("cuKernelGetParamInfo", 12040),
    entry<&cuOccupancyMaxActiveBlocksPerMultiprocessor>(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050),
    entry<&cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags>(
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000),
    entry<&cuOccupancyMaxPotentialBlockSize>("cuOccupancyMaxPotentialBlockSize", 6050),
    entry<&cuOccupancyAvailableDynamicSMemPerBlock>("cuOccupancyAvailableDynamicSMemPerBlock",
                                                    10020),
};
}
