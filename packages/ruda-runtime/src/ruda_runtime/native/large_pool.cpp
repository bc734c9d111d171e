#include "large_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace ruda::native {
namespace {

constexpr size_t mib = size_t{1} << 20;
constexpr size_t tier_limit[] = {1 * mib, 8 * mib};      // largest block of the first two tiers
constexpr size_t tier_segment[] = {8 * mib, 32 * mib};   // the third maps what each block needs
constexpr size_t split_rest[] = {32 * 1024, mib, mib};   // a smaller rest stays with the block
constexpr size_t max_waiting = 4096;
constexpr size_t cache_slack = 256 * mib;

}  // namespace

size_t large_pool::rounded(size_t bytes) {
  const size_t power = std::bit_floor(bytes);
  return round_up(bytes, std::clamp(power / 16, page_bytes, huge_page_bytes));
}

int large_pool::tier_of(size_t bytes) {
  return bytes <= tier_limit[0] ? 0 : bytes <= tier_limit[1] ? 1 : 2;
}

void* large_pool::hand_out(block& chosen, size_t requested, const char* kernel) {
  chosen.status = state::live;
  chosen.requested = requested;
  chosen.kernel = kernel;
  live_.insert(reinterpret_cast<uintptr_t>(chosen.base), &chosen);
  live_bytes_ += chosen.bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  return chosen.base;
}

large_pool::block* large_pool::take_waiting(size_t bytes) {
  const auto found = waiting_.find(bytes);
  if (found == waiting_.end() || found->second.empty()) return nullptr;
  block* chosen = found->second.back();
  found->second.pop_back();
  --waiting_count_;
  return chosen;
}

large_pool::block* large_pool::take_free(size_t bytes) {
  const int tier = tier_of(bytes);
  const auto found = free_[tier].lower_bound(bytes);
  if (found == free_[tier].end()) return nullptr;
  block* chosen = *found;
  free_[tier].erase(found);
  if (chosen->bytes - bytes >= split_rest[tier]) {
    block* rest = new block;
    rest->base = chosen->base + bytes;
    rest->bytes = chosen->bytes - bytes;
    rest->tier = tier;
    rest->status = state::free;
    rest->previous = chosen;
    rest->next = chosen->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    chosen->next = rest;
    chosen->bytes = bytes;
    free_[tier].insert(rest);
  }
  return chosen;
}

large_pool::block* large_pool::map_segment(size_t bytes, size_t segment_bytes) {
  const bool huge = segment_bytes >= 32 * mib || tier_of(bytes) == 2;
  void* memory = source_.map(segment_bytes, huge ? huge_page_bytes : page_bytes, huge);
  if (memory == nullptr) return nullptr;
  block* whole = new block;
  whole->base = static_cast<char*>(memory);
  whole->bytes = segment_bytes;
  whole->tier = tier_of(bytes);
  whole->status = state::free;
  free_[whole->tier].insert(whole);
  return take_free(bytes);
}

void large_pool::merge(block* freed) {
  auto& tier = free_[freed->tier];
  if (block* before = freed->previous; before != nullptr && before->status == state::free) {
    tier.erase(before);
    before->bytes += freed->bytes;
    before->next = freed->next;
    if (freed->next != nullptr) freed->next->previous = before;
    delete freed;
    freed = before;
  }
  if (block* after = freed->next; after != nullptr && after->status == state::free) {
    tier.erase(after);
    freed->bytes += after->bytes;
    freed->next = after->next;
    if (after->next != nullptr) after->next->previous = freed;
    delete after;
  }
  freed->status = state::free;
  tier.insert(freed);
}

void large_pool::merge_waiting() {
  if (waiting_count_ == 0) return;
  for (auto& [bytes, blocks] : waiting_)
    for (block* each : blocks) merge(each);
  waiting_.clear();
  waiting_count_ = 0;
}

// Largest segments last: many small ones go before one that is dear to fault in again.
void large_pool::trim_above(size_t keep_bytes) {
  merge_waiting();
  for (auto& tier : free_) {
    for (auto each = tier.begin(); each != tier.end();) {
      block* candidate = *each;
      if (static_cast<size_t>(source_.stats.reserved) <= keep_bytes) return;
      if (candidate->previous == nullptr && candidate->next == nullptr) {
        each = tier.erase(each);
        source_.unmap(candidate->base, candidate->bytes);
        delete candidate;
      } else {
        ++each;
      }
    }
  }
}

// What is held from the system stays within a quarter and 256 MiB of the most that was ever live, so
// that batches of changing shapes cannot pile up segments of sizes nobody asks for again.
void large_pool::bound_cache(size_t bytes) {
  const size_t need = std::max(peak_live_bytes_, live_bytes_ + bytes);
  const size_t allowed = need + need / 4 + cache_slack;
  if (static_cast<size_t>(source_.stats.reserved) + bytes > allowed)
    trim_above(allowed > bytes ? allowed - bytes : 0);
}

void* large_pool::allocate(size_t requested, const char* kernel) {
  const size_t bytes = rounded(requested);
  block* chosen = take_waiting(bytes);
  if (chosen == nullptr) chosen = take_free(bytes);
  if (chosen == nullptr && waiting_count_ != 0) {
    merge_waiting();
    chosen = take_free(bytes);
  }
  if (chosen == nullptr) {
    const int tier = tier_of(bytes);
    const size_t segment = tier < 2 ? tier_segment[tier] : round_up(bytes, huge_page_bytes);
    bound_cache(segment);
    chosen = map_segment(bytes, segment);
    // Near a limit, no more than needed; 64 KiB is the largest page of the supported machines.
    const size_t exact = round_up(bytes, 64 * 1024);
    if (chosen == nullptr && exact < segment) chosen = map_segment(bytes, exact);
  }
  return chosen == nullptr ? nullptr : hand_out(*chosen, requested, kernel);
}

size_t large_pool::usable_size(const void* pointer) const {
  const block* found = live_.find(reinterpret_cast<uintptr_t>(pointer));
  return found == nullptr ? 0 : found->bytes;
}

void* large_pool::block_around(const void* pointer) const {
  const auto* address = static_cast<const char*>(pointer);
  if (usable_size(pointer) != 0) return const_cast<char*>(address);
  void* found = nullptr;
  live_.each([&](const block* each) {
    if (address > each->base && address < each->base + each->bytes) found = each->base;
  });
  return found;
}

size_t large_pool::exchange_request(void* pointer, size_t bytes, const char* kernel) {
  block* found = live_.find(reinterpret_cast<uintptr_t>(pointer));
  found->kernel = kernel;
  return std::exchange(found->requested, bytes);
}

size_t large_pool::release(void* pointer) {
  block* freed = live_.find(reinterpret_cast<uintptr_t>(pointer));
  if (freed == nullptr) return 0;
  live_.erase(reinterpret_cast<uintptr_t>(pointer));
  live_bytes_ -= freed->bytes;
  freed->status = state::waiting;
  waiting_[freed->bytes].push_back(freed);
  if (++waiting_count_ > max_waiting) merge_waiting();
  return freed->requested;
}

std::vector<holder> large_pool::largest(size_t count) const {
  std::vector<holder> all;
  live_.each([&](const block* each) { all.push_back({each->requested, each->kernel}); });
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                    [](const holder& a, const holder& b) { return a.bytes > b.bytes; });
  all.resize(count);
  return all;
}

}  // namespace ruda::native
