// What the random operators share: numbers by element index, in logical (row-major) order whatever
// the tensor's strides, on any number of threads.
#pragma once

#include "philox.h"

#include "../generator.h"
#include "../threads.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace ruda_torch {

// body(words, begin, count): element begin + i owns words[i * per_element ...]. Reserves the
// numbers.
template <int per_element, class Body>
void draw(int64_t numel, const std::optional<at::Generator>& generator, const Body& body) {
  constexpr int64_t kWords = 2048;
  constexpr int64_t kChunk = kWords / per_element;
  constexpr int64_t kGroup = 4 * kPhiloxLanes;
  const PhiloxRange range =
      reserve_random(generator, static_cast<uint64_t>(numel) * per_element);
  parallel_parts(numel, 16 * kChunk, [&](int64_t part_begin, int64_t part_end) {
    uint32_t words[kWords];
    for (int64_t begin = part_begin; begin < part_end; begin += kChunk) {
      const int64_t count = std::min(kChunk, part_end - begin);
      const uint64_t first = range.offset / 4 + static_cast<uint64_t>(begin * per_element / 4);
      philox_fill(range.seed, first, (count * per_element + kGroup - 1) / kGroup, words);
      body(words, begin, count);
    }
  });
}

// Calls fill(tensor) with `self`, or with a contiguous tensor that is copied into it.
template <class Fill>
void fill_contiguous(const at::Tensor& self, const Fill& fill) {
  if (self.is_contiguous() && !self.is_neg()) {
    fill(self);
    return;
  }
  const at::Tensor contiguous = at::empty(self.sizes(), self.options());
  fill(contiguous);
  self.copy_(contiguous);
}

// Arithmetic of a dtype, and the words one of its numbers takes.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
constexpr int kWordsFor = std::is_same_v<T, double> ? 2 : 1;

inline uint64_t wide(const uint32_t* words) {
  return static_cast<uint64_t>(words[1]) << 32 | words[0];
}

// In [0, 1), with as many bits as T's significand has: exact in T.
template <class T>
Compute<T> unit_closed_open(const uint32_t* words) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(wide(words) >> 11) * 0x1p-53;
  } else {
    constexpr int digits = std::numeric_limits<T>::digits;
    return static_cast<float>(words[0] >> (32 - digits)) / static_cast<float>(1u << digits);
  }
}

// In (0, 1) for every dtype: logarithms are finite and not 0.
template <class T>
Compute<T> unit_open(const uint32_t* words) {
  if constexpr (std::is_same_v<T, double>) {
    return (static_cast<double>(wide(words) >> 12) + 0.5) * 0x1p-52;
  } else {
    return (static_cast<float>(words[0] >> 9) + 0.5f) * 0x1p-23f;
  }
}

}  // namespace ruda_torch
