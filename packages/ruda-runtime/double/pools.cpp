#include "entry.hpp"
#include "memory.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace driver_double {
namespace {

constexpr uint64_t granule = 2ull << 20;  // pools reserve device memory in pieces of this

struct pool_state {
  std::mutex mutex;
  std::vector<pool*> all;
  std::array<pool*, 8> standard{}, current{};
};

pool_state& state() {
  static pool_state& made = *new pool_state;
  return made;
}

pool* standard_pool(pool_state& pools, int device) {
  pool*& found = pools.standard[static_cast<size_t>(device)];
  if (found == nullptr) {
    found = new pool(device);
    pools.all.push_back(found);
  }
  return found;
}

void shrink(pool& each, uint64_t keep) {
  uint64_t wanted = std::max((each.used + granule - 1) / granule * granule, keep);
  each.reserved = std::min(each.reserved, wanted);
}

uint64_t reserved(pool_state& pools, int device) {
  uint64_t sum = 0;
  for (pool* each : pools.all) {
    if (each->device == device) sum += each->reserved;
  }
  return sum;
}

}  // namespace

pool* default_pool(int device) {
  std::lock_guard lock(state().mutex);
  return standard_pool(state(), device);
}

pool* current_pool(int device) {
  std::lock_guard lock(state().mutex);
  pool* chosen = state().current[static_cast<size_t>(device)];
  return chosen != nullptr ? chosen : standard_pool(state(), device);
}

void set_current_pool(int device, pool* chosen) {
  std::lock_guard lock(state().mutex);
  state().current[static_cast<size_t>(device)] = chosen;
}

void release_pools(int device) {
  std::lock_guard lock(state().mutex);
  for (pool* each : state().all) {
    if (each->device == device) shrink(*each, each->threshold);
  }
}

uint64_t reserved_bytes(int device) {
  std::lock_guard lock(state().mutex);
  return reserved(state(), device);
}

CUresult take_from(pool& from, uint64_t bytes) {
  const uint64_t allocated = allocated_bytes(from.device);
  std::lock_guard lock(state().mutex);
  if (from.limit != 0 && from.used + bytes > from.limit) return CUDA_ERROR_OUT_OF_MEMORY;
  if (from.used + bytes > from.reserved) {
    uint64_t wanted = (from.used + bytes + granule - 1) / granule * granule;
    uint64_t total = settings::get().memory;
    auto fits = [&] {
      return allocated + reserved(state(), from.device) - from.reserved + wanted <= total;
    };
    if (!fits()) {
      for (pool* each : state().all) shrink(*each, 0);
      if (!fits()) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    from.reserved = wanted;
    from.reserved_high = std::max(from.reserved_high, wanted);
  }
  from.used += bytes;
  from.used_high = std::max(from.used_high, from.used);
  return CUDA_SUCCESS;
}

void give_back(pool& to, uint64_t bytes) {
  std::lock_guard lock(state().mutex);
  to.used -= bytes;
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* wanted) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr || wanted == nullptr || wanted->allocType != 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (wanted->handleTypes != 0 || wanted->location.type != 1) return CUDA_ERROR_NOT_SUPPORTED;
  if (wanted->location.id < 0 || wanted->location.id >= settings::get().devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto* made = new pool(wanted->location.id);
  made->made = true;
  made->limit = wanted->maxSize;
  std::lock_guard lock(state().mutex);
  state().all.push_back(made);
  ++counters::get().live_pools;
  *out = made;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemPoolDestroy(CUmemoryPool destroyed) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(destroyed)) {
    return report(CUDA_ERROR_INVALID_VALUE, "[cuMemPoolDestroy] no pool, or destroyed before");
  }
  if (!destroyed->made) return CUDA_ERROR_INVALID_VALUE;  // a default pool
  std::lock_guard lock(state().mutex);
  if (destroyed->used != 0) {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[cuMemPoolDestroy] the pool still has %llu bytes in allocations",
                  static_cast<unsigned long long>(destroyed->used));
  }
  destroyed->is = handle::kind::dead;
  std::erase(state().all, destroyed);
  for (pool*& each : state().current) {
    if (each == destroyed) each = nullptr;
  }
  --counters::get().live_pools;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemPoolTrimTo(CUmemoryPool trimmed, size_t keep) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(trimmed)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  shrink(*trimmed, keep);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemPoolGetAttribute(CUmemoryPool of, int attribute, void* value) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(of) || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  const uint64_t large[] = {of->threshold, of->reserved, of->reserved_high, of->used,
                            of->used_high};
  if (attribute >= 1 && attribute <= 3) {
    *static_cast<int*>(value) = of->reuse[attribute - 1];
  } else if (attribute >= 4 && attribute <= 8) {
    *static_cast<uint64_t*>(value) = large[attribute - 4];
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemPoolSetAttribute(CUmemoryPool of, int attribute, void* value) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(of) || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (attribute >= 1 && attribute <= 3) {
    of->reuse[attribute - 1] = *static_cast<int*>(value);
    return CUDA_SUCCESS;
  }
  uint64_t number = *static_cast<uint64_t*>(value);
  if (attribute == 4) {
    of->threshold = number;
  } else if (attribute == 6 && number == 0) {
    of->reserved_high = of->reserved;
  } else if (attribute == 8 && number == 0) {
    of->used_high = of->used;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuMemPoolGetAccess(int* flags, CUmemoryPool of, CUmemLocation* location) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(of)) return CUDA_ERROR_INVALID_VALUE;
  *flags = location->type == 1 && location->id == of->device ? 3 : 0;
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuMemPoolCreate>("cuMemPoolCreate", 11020),
    entry<&cuMemPoolDestroy>("cuMemPoolDestroy", 11020),
    entry<&cuMemPoolTrimTo>("cuMemPoolTrimTo", 11020),
    entry<&cuMemPoolGetAttribute>("cuMemPoolGetAttribute", 11020),
    entry<&cuMemPoolSetAttribute>("cuMemPoolSetAttribute", 11020),
    entry<&cuMemPoolGetAccess>("cuMemPoolGetAccess", 11020),
};
}
