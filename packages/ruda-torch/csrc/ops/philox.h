// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): four 32-bit
// numbers from a 128-bit counter and a 64-bit key, with no state between calls. Word w of a range
// belongs to block (offset + w) / 4, so that an element's number depends on its index alone.
#pragma once

#include <cstdint>

namespace ruda_torch {

constexpr int kPhiloxLanes = 8;  // blocks computed side by side

namespace detail {

// Blocks first..first + 7 with the upper counter half `stream`, as 32 words in order.
[[gnu::always_inline]] inline void philox_lanes(uint64_t seed, uint64_t first, uint64_t stream,
                                                uint32_t* words) {
  uint32_t counter[4][kPhiloxLanes];
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const uint64_t block = first + static_cast<uint64_t>(i);
    counter[0][i] = static_cast<uint32_t>(block);
    counter[1][i] = static_cast<uint32_t>(block >> 32);
    counter[2][i] = static_cast<uint32_t>(stream);
    counter[3][i] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPhiloxLanes; ++i) {
      const uint64_t left = uint64_t{0xD2511F53u} * counter[0][i];
      const uint64_t right = uint64_t{0xCD9E8D57u} * counter[2][i];
      const uint32_t next0 = static_cast<uint32_t>(right >> 32) ^ counter[1][i] ^ key0;
      const uint32_t next2 = static_cast<uint32_t>(left >> 32) ^ counter[3][i] ^ key1;
      counter[1][i] = static_cast<uint32_t>(right);
      counter[3][i] = static_cast<uint32_t>(left);
      counter[0][i] = next0;
      counter[2][i] = next2;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kPhiloxLanes; ++i) {
    for (int k = 0; k < 4; ++k) words[4 * i + k] = counter[k][i];
  }
}

}  // namespace detail

// `groups` times 32 words, beginning with block `first`.
void philox_fill(uint64_t seed, uint64_t first, int64_t groups, uint32_t* words);

// The numbers of one element that needs an unknown count of them (rejection): the element's index
// is the upper half of the counter, which plain ranges leave at 0.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint64_t offset, uint64_t element)
      : seed_(seed), block_(offset / 4), stream_(element + 1) {}

  uint32_t next() {
    if (used_ == kWords) {
      detail::philox_lanes(seed_, block_, stream_, words_);
      block_ += kPhiloxLanes;
      used_ = 0;
    }
    return words_[used_++];
  }

  // In (0, 1), 2^-53 apart.
  double uniform() {
    const uint64_t high = next() >> 5;
    const uint64_t low = next() >> 6;
    return (static_cast<double>(high << 26 | low) + 0.5) * 0x1p-53;
  }

  double normal();

 private:
  static constexpr int kWords = 4 * kPhiloxLanes;

  uint64_t seed_;
  uint64_t block_;
  uint64_t stream_;
  int used_ = kWords;
  uint32_t words_[kWords];
};

}  // namespace ruda_torch
