#include "sha256.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace driver_double {
namespace {

// The standard defines its constants as the first 32 bits of the fractional parts of the cube roots
// (rounds) and square roots (start) of the first primes. Long double has the bits that this takes.
struct constants {
  std::array<uint32_t, 64> rounds;
  std::array<uint32_t, 8> start;

  constants() {
    size_t count = 0;
    for (unsigned number = 2; count < rounds.size(); ++number) {
      bool prime = true;
      for (unsigned factor = 2; factor * factor <= number; ++factor) prime &= number % factor != 0;
      if (!prime) continue;
      rounds[count] = fraction(std::cbrt(static_cast<double>(number)), number, 3);
      if (count < start.size()) start[count] = fraction(std::sqrt(number), number, 2);
      ++count;
    }
  }

  // Corrects the estimate in integers: the largest r / 2^32 whose power does not exceed the number.
  static uint32_t fraction(double estimate, unsigned number, int power) {
    auto root = static_cast<uint64_t>(estimate * 4294967296.0);
    auto exceeds = [&](uint64_t r) {
      unsigned __int128 product = r;
      for (int i = 1; i < power; ++i) product *= r;  // below 2^35 cubed: fits
      return product > static_cast<unsigned __int128>(number) << (32 * power);
    };
    while (exceeds(root)) --root;
    while (!exceeds(root + 1)) ++root;
    return static_cast<uint32_t>(root);
  }
};

void block(const unsigned char* bytes, std::array<uint32_t, 8>& state, const constants& fixed) {
  std::array<uint32_t, 64> words;
  for (int i = 0; i < 16; ++i) {
    words[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 |
               uint32_t{bytes[4 * i + 2]} << 8 | bytes[4 * i + 3];
  }
  using std::rotr;
  for (int i = 16; i < 64; ++i) {
    uint32_t early = words[i - 15], late = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (rotr(early, 7) ^ rotr(early, 18) ^ early >> 3) +
               (rotr(late, 17) ^ rotr(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    uint32_t first = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                     fixed.rounds[i] + words[i];
    uint32_t second = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  static const constants fixed;
  std::array<uint32_t, 8> state = fixed.start;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / 64 * 64;
  for (size_t i = 0; i < whole; i += 64) block(data + i, state, fixed);
  unsigned char tail[128] = {};
  const size_t rest = bytes.size() - whole;
  if (rest != 0) std::memcpy(tail, data + whole, rest);
  tail[rest] = 0x80;
  const size_t length = rest < 56 ? 64 : 128;
  for (int i = 0; i < 8; ++i) {
    tail[length - 1 - i] = static_cast<unsigned char>(uint64_t{bytes.size()} * 8 >> (8 * i));
  }
  for (size_t i = 0; i < length; i += 64) block(tail + i, state, fixed);
  std::string text;
  for (uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace driver_double
