#include "address_space.hpp"

#include "arena.hpp"

namespace driver_double {

bool address_space::place(const allocation_ref& added) {
  while (!find_place(added)) {
    if (kept_.empty()) return false;
    forget_oldest();
  }
  return true;
}

bool address_space::find_place(const allocation_ref& added) {
  const uint64_t span = ((added->size + alignment - 1) & ~(alignment - 1)) + gap;
  uint64_t start = cursor_;
  bool wrapped = false;
  for (;;) {
    if (start + span > end_) {
      if (wrapped || span > end_ - begin_) return false;
      wrapped = true;
      start = begin_;
    }
    // The first allocation that reaches into [start, start + span), if any.
    auto next = by_start_.upper_bound(start);
    if (next != by_start_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second->size + gap > start) next = before;
    }
    if (next == by_start_.end() || next->first >= start + span) break;
    start = (next->first + next->second->size + gap + alignment - 1) & ~(alignment - 1);
  }
  added->start = start;
  by_start_[start] = added;
  cursor_ = start + span;
  return true;
}

void address_space::retire(const allocation_ref& freed) {
  kept_.push_back(freed);
  kept_bytes_ += freed->size;
  while (kept_.size() > most_kept || kept_bytes_ > most_kept_bytes) forget_oldest();
}

void address_space::forget_oldest() {
  allocation_ref oldest = std::move(kept_.front());
  kept_.pop_front();
  kept_bytes_ -= oldest->size;
  arena::get().discard(oldest->start, oldest->size);
  by_start_.erase(oldest->start);
}

allocation_ref address_space::find(uint64_t address) const {
  auto next = by_start_.upper_bound(address);
  if (next == by_start_.begin()) return nullptr;
  const allocation_ref& found = std::prev(next)->second;
  return found->contains(address) ? found : nullptr;
}

}  // namespace driver_double
