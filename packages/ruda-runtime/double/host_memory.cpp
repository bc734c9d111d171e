#include "arena.hpp"
#include "capture.hpp"
#include "entry.hpp"
#include "memory.hpp"
#include "reports.hpp"

#include <cinttypes>

namespace driver_double {
namespace {

CUresult allocate_host(const char* call, uint64_t bytes, allocation::kind kind, uint64_t* out) {
  context* current = nullptr;
  if (CUresult code = need_context(call, &current); code != CUDA_SUCCESS) return code;
  if (CUresult code = refuse_unsafe(call); code != CUDA_SUCCESS) return code;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  allocation_ref made;
  CUresult code = allocate({call, bytes, kind, current}, &made);
  if (code == CUDA_SUCCESS) *out = made->start;
  return code;
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  CUresult code = allocate_host("cuMemHostAlloc", bytes, allocation::kind::host, &address);
  if (code == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return code;
}

DRIVER_API CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return cuMemHostAlloc(out, bytes, 0);
}

DRIVER_API CUresult cuMemFreeHost(void* pointer) {
  const char* call = "cuMemFreeHost";
  context* current = nullptr;
  if (CUresult code = need_context(call, &current); code != CUDA_SUCCESS) return code;
  if (pointer == nullptr) return CUDA_SUCCESS;
  allocation_ref freed;
  auto address = reinterpret_cast<uint64_t>(pointer);
  if (CUresult code = begin_free(call, address, call, &freed); code != CUDA_SUCCESS) return code;
  wait_for_context(*freed->in);
  retire(*freed);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE;
  return allocate_host("cuMemAllocManaged", bytes, allocation::kind::managed, out);
}

DRIVER_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  auto address = reinterpret_cast<uint64_t>(pointer);
  if (flags != 0 || out == nullptr || !is_pinned(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  *out = address;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!is_pinned(reinterpret_cast<uint64_t>(pointer), 1)) return CUDA_ERROR_INVALID_VALUE;
  *flags = 3;  // portable and mapped: always so with unified addressing
  return CUDA_SUCCESS;
}

// Copies with it are asynchronous from now on. Interpreted kernels cannot reach it: only memory of
// the double itself is shared with the server.
DRIVER_API CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  context* current = nullptr;
  if (CUresult code = need_context("cuMemHostRegister", &current); code != CUDA_SUCCESS)
    return code;
  if (pointer == nullptr || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = register_host(reinterpret_cast<uint64_t>(pointer), bytes, current);
  if (code == CUDA_SUCCESS) return code;
  return report(code, "[cuMemHostRegister] %p + %zu bytes is page-locked already", pointer, bytes);
}

DRIVER_API CUresult cuMemHostUnregister(void* pointer) {
  context* current = nullptr;
  if (CUresult code = need_context("cuMemHostUnregister", &current); code != CUDA_SUCCESS) {
    return code;
  }
  wait_for_context(*current);
  CUresult code = unregister_host(reinterpret_cast<uint64_t>(pointer));
  if (code == CUDA_SUCCESS) return code;
  return report(code, "[cuMemHostUnregister] no registration begins at %p", pointer);
}

namespace {

// One attribute; the value's size is the attribute's.
CUresult pointer_attribute(void* value, int attribute, uint64_t address) {
  allocation_ref found = find_allocation(address);
  if (found != nullptr && found->freed) found = nullptr;
  const bool device = found != nullptr && found->is == allocation::kind::device;
  auto put = [value](auto number) { *static_cast<decltype(number)*>(value) = number; };
  switch (attribute) {
    case 2:  // memory type; managed memory counts as device memory
      if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
      put(device || found->is == allocation::kind::managed ? unsigned{CU_MEMORYTYPE_DEVICE}
                                                           : unsigned{CU_MEMORYTYPE_HOST});
      return CUDA_SUCCESS;
    case 6:
    case 8:
      put(static_cast<unsigned>(attribute == 8 && found != nullptr &&
                                found->is == allocation::kind::managed));
      return CUDA_SUCCESS;
    case 10:
    case 15: put(0u); return CUDA_SUCCESS;
    case 13: put(static_cast<unsigned>(found != nullptr)); return CUDA_SUCCESS;
    case 14: put(uint64_t{0}); return CUDA_SUCCESS;
    default: break;
  }
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case 1: put(found->in); break;
    case 3: put(address); break;
    case 4:
      if (device) return CUDA_ERROR_INVALID_VALUE;
      put(reinterpret_cast<void*>(address));
      break;
    case 7:
    case 20: put(found->serial); break;
    case 9: put(found->device); break;
    case 11:
    case 19: put(found->start); break;
    case 12:
    case 18: put(found->size); break;
    case 16: put(3u); break;
    case 17: put(found->from); break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

DRIVER_API CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(value, attribute, address);
}

// Unlike the call for one, this one gives zeros for an unknown pointer.
DRIVER_API CUresult cuPointerGetAttributes(unsigned count, int* attributes, void** values,
                                           CUdeviceptr address) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] < 1 || attributes[i] > 20) return CUDA_ERROR_INVALID_VALUE;
    if (pointer_attribute(values[i], attributes[i], address) == CUDA_SUCCESS) continue;
    const int number = attributes[i];
    bool narrow = number == 2 || number == 9 || number == 16;
    if (narrow) {
      *static_cast<int*>(values[i]) = number == 9 ? -2 : 0;
    } else {
      *static_cast<uint64_t*>(values[i]) = 0;
    }
  }
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuMemHostAlloc>("cuMemHostAlloc", 2020),
    entry<&cuMemAllocHost_v2>("cuMemAllocHost", 3020),
    entry<&cuMemFreeHost>("cuMemFreeHost", 2000),
    entry<&cuMemAllocManaged>("cuMemAllocManaged", 6000),
    entry<&cuMemHostGetDevicePointer_v2>("cuMemHostGetDevicePointer", 3020),
    entry<&cuMemHostGetFlags>("cuMemHostGetFlags", 2030),
    entry<&cuMemHostRegister_v2>("cuMemHostRegister", 6050),
    entry<&cuMemHostUnregister>("cuMemHostUnregister", 4000),
    entry<&cuPointerGetAttribute>("cuPointerGetAttribute", 4000),
    entry<&cuPointerGetAttributes>("cuPointerGetAttributes", 7000),
};
}
