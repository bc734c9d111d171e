#include "memory.hpp"

#include "arena.hpp"
#include "capture.hpp"
#include "entry.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <cinttypes>

namespace driver_double {
namespace {

struct allocate_operation final : operation {
  explicit allocate_operation(allocation_ref placed)
      : operation(type::allocate), made(std::move(placed)) {}
  CUresult run(stream&) override {
    make_live(*made);
    return CUDA_SUCCESS;
  }
  allocation_ref made;
};

struct free_operation final : operation {
  explicit free_operation(allocation_ref ended) : operation(type::free), freed(std::move(ended)) {}
  CUresult run(stream& on) override {
    if (freed->now == allocation::state::pending) {
      return report(CUDA_ERROR_ILLEGAL_ADDRESS,
                    "[cuMemFreeAsync] %s was not allocated yet when %s came to free it: it has to "
                    "wait for the allocating stream",
                    freed->describe().c_str(), on.name());
    }
    const stream* user = freed->still_using(&on);
    retire(*freed);
    if (user == nullptr) return CUDA_SUCCESS;
    return report(CUDA_ERROR_ILLEGAL_ADDRESS,
                  "[cuMemFreeAsync] %s was freed on %s while work of %s with it was not done: the "
                  "freeing stream has to wait for the other one",
                  freed->describe().c_str(), on.name(), user->name());
  }
  allocation_ref freed;
};

CUresult allocate_now(const char* call, uint64_t bytes, CUdeviceptr* out) {
  context* current = nullptr;
  if (CUresult code = need_context(call, &current); code != CUDA_SUCCESS) return code;
  if (CUresult code = refuse_unsafe(call); code != CUDA_SUCCESS) return code;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  allocation_ref made;
  CUresult code = allocate({call, bytes, allocation::kind::device, current}, &made);
  if (code == CUDA_SUCCESS) *out = made->start;
  return code;
}

CUresult allocate_async(pool* from, uint64_t bytes, CUstream handle, CUdeviceptr* out) {
  const char* call = "cuMemAllocAsync";
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (CUresult code = refuse_capture(call, *on); code != CUDA_SUCCESS) return code;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr) from = current_pool(on->in.device);
  if (CUresult code = take_from(*from, bytes); code != CUDA_SUCCESS) return code;
  allocation_ref made;
  CUresult code = allocate({call, bytes, allocation::kind::device, &on->in, from, on}, &made);
  if (code != CUDA_SUCCESS) {
    give_back(*from, bytes);
    return code;
  }
  *out = made->start;
  // An idle stream has nothing to come before it.
  if (on->idle() && on != on->in.legacy) {
    make_live(*made);
    return CUDA_SUCCESS;
  }
  return submit(call, *on, std::make_shared<allocate_operation>(std::move(made)));
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return allocate_now("cuMemAlloc", bytes, out);
}

DRIVER_API CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                       unsigned element) {
  if (pitch == nullptr || (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pitch = (width + 511) & ~size_t{511};
  return allocate_now("cuMemAllocPitch", *pitch * height, out);
}

// Waits for the context's work, as the driver does.
DRIVER_API CUresult cuMemFree_v2(CUdeviceptr address) {
  const char* call = "cuMemFree";
  context* current = nullptr;
  if (CUresult code = need_context(call, &current); code != CUDA_SUCCESS) return code;
  if (address == 0) return CUDA_SUCCESS;
  if (CUresult code = refuse_unsafe(call); code != CUDA_SUCCESS) return code;
  allocation_ref freed;
  if (CUresult code = begin_free(call, address, call, &freed); code != CUDA_SUCCESS) return code;
  wait_for_context(*freed->in);
  retire(*freed);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream handle) {
  return allocate_async(nullptr, bytes, handle, out);
}

DRIVER_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool from,
                                            CUstream handle) {
  if (!valid(from)) {
    return report(CUDA_ERROR_INVALID_VALUE, "[cuMemAllocFromPoolAsync] no pool, or destroyed");
  }
  return allocate_async(from, bytes, handle, out);
}

DRIVER_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  const char* call = "cuMemFreeAsync";
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (CUresult code = refuse_capture(call, *on); code != CUDA_SUCCESS) return code;
  if (address == 0) return CUDA_SUCCESS;
  std::string by = std::string(call) + " on " + on->name();
  allocation_ref freed;
  if (CUresult code = begin_free(call, address, by.c_str(), &freed); code != CUDA_SUCCESS) {
    return code;
  }
  return submit(call, *on, std::make_shared<free_operation>(std::move(freed)));
}

DRIVER_API CUresult cuMemGetInfo_v2(size_t* left, size_t* total) {
  context* current = nullptr;
  if (CUresult code = need_context("cuMemGetInfo", &current); code != CUDA_SUCCESS) return code;
  *total = settings::get().memory;
  *left = *total - allocated_bytes(current->device) - reserved_bytes(current->device);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* start, size_t* bytes,
                                            CUdeviceptr address) {
  context* current = nullptr;
  if (CUresult code = need_context("cuMemGetAddressRange", &current); code != CUDA_SUCCESS) {
    return code;
  }
  allocation_ref found = find_allocation(address);
  if (found == nullptr || found->freed) return CUDA_ERROR_NOT_FOUND;
  if (start != nullptr) *start = found->start;
  if (bytes != nullptr) *bytes = found->size;
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuMemAlloc_v2>("cuMemAlloc", 3020),
    entry<&cuMemAllocPitch_v2>("cuMemAllocPitch", 3020),
    entry<&cuMemFree_v2>("cuMemFree", 3020),
    entry<&cuMemAllocAsync>("cuMemAllocAsync", 11020),
    entry<&cuMemAllocFromPoolAsync>("cuMemAllocFromPoolAsync", 11020),
    entry<&cuMemFreeAsync>("cuMemFreeAsync", 11020),
    entry<&cuMemGetInfo_v2>("cuMemGetInfo", 3020),
    entry<&cuMemGetAddressRange_v2>("cuMemGetAddressRange", 3020),
};
}
