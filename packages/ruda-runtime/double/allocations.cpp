#include "address_space.hpp"
#include "arena.hpp"
#include "memory.hpp"
#include "reports.hpp"
#include "server_link.hpp"
#include "settings.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstring>
#include <shared_mutex>

namespace driver_double {
namespace {

// Both are NaN in every floating type of 16 bits or more. The first is a large number in the
// integer types, the second a negative one.
constexpr uint16_t fresh_pattern = 0x7fff, freed_pattern = 0xffee;
// Beyond this, filling would only make huge allocations of tests real.
constexpr uint64_t filled_at_most = 256ull << 20;

struct memory_state {
  std::shared_mutex mutex;
  address_space device{arena::get().device_begin(), arena::get().device_end()};
  address_space host{arena::get().host_begin(), arena::get().host_end()};
  std::map<uint64_t, allocation_ref> registered;
  std::array<uint64_t, 8> allocated{};
  uint64_t serial = 0;
};

memory_state& state() {
  static memory_state& made = *new memory_state;
  return made;
}

void fill(const allocation& of, uint16_t pattern) {
  char* to = arena::get().view(of.start);
  uint64_t bytes = std::min(of.size, filled_at_most);
  std::fill_n(reinterpret_cast<uint16_t*>(to), bytes / 2, pattern);
  if (bytes % 2 != 0) to[bytes - 1] = static_cast<char>(pattern & 0xff);
}

bool in_arena(uint64_t address) {
  return address >= arena::get().device_begin() && address < arena::get().host_end();
}

const char* kind_name(allocation::kind kind) {
  constexpr const char* names[] = {"device", "pinned host", "managed", "registered host"};
  return names[static_cast<int>(kind)];
}

}  // namespace

std::string allocation::describe() const {
  char text[256];
  std::snprintf(text, sizeof text,
                "allocation %" PRIu64 " (%" PRIu64 " bytes of %s memory at 0x%" PRIx64 "%s%s)",
                serial, size, kind_name(is), start, allocated_on.empty() ? "" : ", allocated on ",
                allocated_on.c_str());
  return text;
}

void allocation::note_use(position by) {
  std::lock_guard lock(uses_mutex);
  for (position& each : uses) {
    if (each.on == by.on) {
      each.number = by.number;
      return;
    }
  }
  uses.push_back(by);
}

const stream* allocation::still_using(const stream* except) {
  std::lock_guard lock(uses_mutex);
  for (const position& each : uses) {
    if (each.on != except && each.on->completed() < each.number) return each.on;
  }
  return nullptr;
}

allocation_ref find_allocation(uint64_t address) {
  memory_state& all = state();
  std::shared_lock lock(all.mutex);
  if (arena::get().is_device(address)) return all.device.find(address);
  if (in_arena(address)) return all.host.find(address);
  auto next = all.registered.upper_bound(address);
  if (next == all.registered.begin()) return nullptr;
  const allocation_ref& found = std::prev(next)->second;
  return found->contains(address) ? found : nullptr;
}

CUresult allocate(const allocation_request& wanted, allocation_ref* out) {
  memory_state& all = state();
  auto made = std::make_shared<allocation>();
  made->size = wanted.bytes;
  made->is = wanted.kind;
  made->device = wanted.in->device;
  made->in = wanted.in;
  made->from = wanted.from;
  if (wanted.on != nullptr) {
    made->allocated_on = wanted.on->name();
    made->now = allocation::state::pending;
  }
  const bool on_device = wanted.kind == allocation::kind::device;
  {
    std::unique_lock lock(all.mutex);
    if (on_device && wanted.from == nullptr) {
      uint64_t& allocated = all.allocated[static_cast<size_t>(made->device)];
      lock.unlock();
      uint64_t reserved = reserved_bytes(made->device);
      if (allocated + reserved + wanted.bytes > settings::get().memory) {
        release_pools(made->device);
        reserved = reserved_bytes(made->device);
      }
      lock.lock();
      if (allocated + reserved + wanted.bytes > settings::get().memory) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      allocated += wanted.bytes;
    }
    if (!(on_device ? all.device : all.host).place(made)) return CUDA_ERROR_OUT_OF_MEMORY;
    made->serial = ++all.serial;
  }
  if (wanted.on == nullptr) make_live(*made);
  counters& count = counters::get();
  if (on_device) {
    ++count.allocations;
    ++count.live_allocations;
    count.live_bytes += static_cast<int64_t>(wanted.bytes);
  } else {
    ++count.live_host_allocations;
  }
  *out = std::move(made);
  return CUDA_SUCCESS;
}

void make_live(allocation& of) {
  fill(of, fresh_pattern);
  of.now = allocation::state::live;
  server_link::get().allocated(of);
}

CUresult begin_free(const char* call, uint64_t address, const char* by, allocation_ref* out) {
  allocation_ref found = find_allocation(address);
  if (found == nullptr) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] 0x%" PRIx64 " is in no allocation", call,
                  address);
  }
  if (found->start != address) {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[%s] 0x%" PRIx64 " lies %" PRIu64
                  " bytes inside %s: "
                  "only its start can be freed",
                  call, address, address - found->start, found->describe().c_str());
  }
  if (found->freed.exchange(true)) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] double free: %s was freed before (%s)", call,
                  found->describe().c_str(), found->freed_by.c_str());
  }
  found->freed_by = by;
  counters& count = counters::get();
  if (found->is == allocation::kind::device) {
    ++count.frees;
    --count.live_allocations;
    count.live_bytes -= static_cast<int64_t>(found->size);
    if (found->from != nullptr) {
      give_back(*found->from, found->size);
    } else {
      std::unique_lock lock(state().mutex);
      state().allocated[static_cast<size_t>(found->device)] -= found->size;
    }
  } else {
    --count.live_host_allocations;
  }
  *out = std::move(found);
  return CUDA_SUCCESS;
}

void retire(allocation& of) {
  of.now = allocation::state::freed;
  server_link::get().freed(of);
  fill(of, freed_pattern);
  memory_state& all = state();
  std::unique_lock lock(all.mutex);
  address_space& in = arena::get().is_device(of.start) ? all.device : all.host;
  in.retire(in.find(of.start));
}

CUresult register_host(uint64_t address, uint64_t bytes, context* in) {
  memory_state& all = state();
  std::unique_lock lock(all.mutex);
  auto next = all.registered.lower_bound(address);
  bool overlaps = next != all.registered.end() && next->first < address + bytes;
  if (next != all.registered.begin()) overlaps |= std::prev(next)->second->contains(address);
  if (overlaps || in_arena(address)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  auto made = std::make_shared<allocation>();
  made->start = address;
  made->size = bytes;
  made->is = allocation::kind::registered;
  made->in = in;
  made->serial = ++all.serial;
  all.registered[address] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult unregister_host(uint64_t address) {
  memory_state& all = state();
  std::unique_lock lock(all.mutex);
  return all.registered.erase(address) != 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult check_range(moment when, const char* call, const char* role, uint64_t address,
                     uint64_t bytes) {
  if (!in_arena(address)) return CUDA_SUCCESS;  // the host's own memory
  allocation_ref found = find_allocation(address);
  if (found == nullptr) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] %s: 0x%" PRIx64 " is in no allocation", call,
                  role, address);
  }
  if (when == moment::submitting && found->freed) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] %s: use after free of %s, freed by %s", call,
                  role, found->describe().c_str(), found->freed_by.c_str());
  }
  allocation::state now = found->now;
  if (when == moment::running && now != allocation::state::live) {
    return report(CUDA_ERROR_ILLEGAL_ADDRESS,
                  "[%s] %s: %s was %s when the device came to this work: "
                  "a stream has to wait for the other one",
                  call, role, found->describe().c_str(),
                  now == allocation::state::pending ? "not allocated yet" : "freed already");
  }
  uint64_t left = found->size - (address - found->start);
  if (bytes > left) {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[%s] %s: %" PRIu64 " bytes from 0x%" PRIx64 " end %" PRIu64 " bytes behind %s",
                  call, role, bytes, address, bytes - left, found->describe().c_str());
  }
  return CUDA_SUCCESS;
}

bool is_device_address(uint64_t address) { return arena::get().is_device(address); }

bool is_pinned(uint64_t address, uint64_t bytes) {
  allocation_ref found = find_allocation(address);
  return found != nullptr && found->is != allocation::kind::device && !found->freed &&
         bytes <= found->size - (address - found->start);
}

std::vector<std::string> describe_live(size_t count) {
  memory_state& all = state();
  std::shared_lock lock(all.mutex);
  std::vector<std::string> texts;
  for (const address_space* each : {&all.device, &all.host}) {
    for (const auto& [start, found] : each->all()) {
      if (!found->freed && texts.size() < count) texts.push_back(found->describe());
    }
  }
  return texts;
}

uint64_t allocated_bytes(int device) {
  std::shared_lock lock(state().mutex);
  return state().allocated[static_cast<size_t>(device)];
}

}  // namespace driver_double
