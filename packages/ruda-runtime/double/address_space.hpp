// Addresses for allocations, used again as late as possible: what is freed stays known for a while,
// so that its use is recognised and told from a wild address.
#pragma once

#include "memory.hpp"

#include <deque>
#include <map>

namespace driver_double {

class address_space {
 public:
  address_space(uint64_t begin, uint64_t end) : begin_(begin), end_(end), cursor_(begin) {}

  // Gives the allocation its address; false: no gap is large enough.
  bool place(const allocation_ref& added);
  // From now on the range may be used again.
  void retire(const allocation_ref& freed);
  // The last allocation at or before an address that contains it.
  allocation_ref find(uint64_t address) const;

  const std::map<uint64_t, allocation_ref>& all() const { return by_start_; }

 private:
  // Behind each allocation lies a gap that belongs to nobody.
  static constexpr uint64_t alignment = 512, gap = 512;
  static constexpr size_t most_kept = 16384;
  static constexpr uint64_t most_kept_bytes = 256ull << 20;

  bool find_place(const allocation_ref& added);
  void forget_oldest();

  const uint64_t begin_, end_;
  uint64_t cursor_;
  std::map<uint64_t, allocation_ref> by_start_;
  std::deque<allocation_ref> kept_;  // retired, the oldest first
  uint64_t kept_bytes_ = 0;
};

}  // namespace driver_double
