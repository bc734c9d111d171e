#include "pinned.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include <ruda/entry.hpp>

#include "graph.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

constexpr size_t smallest_block = 4096;

struct use {
  int32_t stream;
  CUevent event;
};

struct block {
  char* base = nullptr;
  size_t bytes = 0;
  bool live = true;
  std::vector<use> uses;
};

struct pinned_state {
  std::mutex mutex;
  std::map<const char*, block> blocks;  // by address
  int64_t total = 0;
};

pinned_state& the_state() {
  static pinned_state* shared = new pinned_state;
  return *shared;
}

// Powers of two, so that blocks serve again.
size_t rounded(size_t bytes) { return std::bit_ceil(std::max(bytes, smallest_block)); }

block* holder_of(pinned_state& self, const void* pointer) {
  auto found = self.blocks.upper_bound(static_cast<const char*>(pointer));
  if (found == self.blocks.begin()) return nullptr;
  block& each = std::prev(found)->second;
  return static_cast<const char*>(pointer) < each.base + each.bytes ? &each : nullptr;
}

bool is_done(const block& each) {
  return std::all_of(each.uses.begin(), each.uses.end(),
                     [](const use& copy) { return query_event(copy.event) != 0; });
}

void forget_uses(block& each) {
  for (const use& copy : each.uses) destroy_event(copy.event);
  each.uses.clear();
}

// Needs the lock.
void drop_kept(pinned_state& self, bool only_done) {
  for (auto item = self.blocks.begin(); item != self.blocks.end();) {
    block& each = item->second;
    if (each.live || (only_done && !is_done(each))) {
      ++item;
      continue;
    }
    forget_uses(each);
    api().cuMemFreeHost(each.base);
    self.total -= static_cast<int64_t>(each.bytes);
    item = self.blocks.erase(item);
  }
}

}  // namespace

void* allocate_pinned(size_t bytes, ruda_error* error) noexcept {
  void* result = nullptr;
  const int32_t status = guard("allocate_pinned", error, [&]() -> int32_t {
    RUDA_TRY(enter("allocate_pinned", error));
    RUDA_CHECK(bytes <= size_t{1} << 46, error, RUDA_ERROR_MEMORY,
               "[allocate_pinned] out of host memory: asked for %zu bytes", bytes);
    const size_t size = rounded(bytes);
    const outside_capture unsafe_calls_allowed;
    pinned_state& self = the_state();
    const std::lock_guard lock(self.mutex);
    for (auto& [address, each] : self.blocks) {
      if (each.live || each.bytes != size || !is_done(each)) continue;
      forget_uses(each);
      each.live = true;
      result = each.base;
      return RUDA_OK;
    }
    CUresult code = api().cuMemHostAlloc(&result, size, host_alloc_portable);
    if (code != success) {
      drop_kept(self, true);
      code = api().cuMemHostAlloc(&result, size, host_alloc_portable);
    }
    if (code != success) return fail_call(api(), "allocate_pinned", "cuMemHostAlloc", code, error);
    auto* base = static_cast<char*>(result);
    self.blocks.emplace(base, block{base, size, true, {}});
    self.total += static_cast<int64_t>(size);
    return RUDA_OK;
  });
  return status == RUDA_OK ? result : nullptr;
}

void release_pinned(void* pointer) noexcept {
  if (pointer == nullptr || !usable()) return;
  pinned_state& self = the_state();
  const std::lock_guard lock(self.mutex);
  const auto found = self.blocks.find(static_cast<const char*>(pointer));
  if (found != self.blocks.end()) found->second.live = false;
}

bool is_pinned(const void* pointer, size_t bytes) noexcept {
  pinned_state& self = the_state();
  const std::lock_guard lock(self.mutex);
  const block* found = holder_of(self, pointer);
  return found != nullptr && found->live &&
         static_cast<const char*>(pointer) + bytes <= found->base + found->bytes;
}

int32_t note_pinned_use(const void* pointer, int32_t stream, ruda_error* error) noexcept {
  return guard("copy", error, [&]() -> int32_t {
    pinned_state& self = the_state();
    const std::lock_guard lock(self.mutex);
    block* found = holder_of(self, pointer);
    if (found == nullptr) return RUDA_OK;
    auto known = std::find_if(found->uses.begin(), found->uses.end(),
                              [&](const use& copy) { return copy.stream == stream; });
    if (known == found->uses.end()) known = found->uses.insert(known, {stream, nullptr});
    return record_event(&known->event, false, stream, error);
  });
}

int64_t pinned_bytes() noexcept {
  pinned_state& self = the_state();
  const std::lock_guard lock(self.mutex);
  return self.total;
}

void empty_pinned_cache() noexcept {
  if (enter("empty_cache", nullptr) != RUDA_OK) return;
  pinned_state& self = the_state();
  const std::lock_guard lock(self.mutex);
  drop_kept(self, true);
}

void destroy_pinned() noexcept {
  pinned_state& self = the_state();
  const std::lock_guard lock(self.mutex);
  // Live blocks stay: NumPy arrays may outlast the interpreter's end, and the process gives them back.
  drop_kept(self, false);
  for (auto& [address, each] : self.blocks) forget_uses(each);
}

}  // namespace ruda::native::cuda
