// Blocks of at most 32 KiB: slabs of equal blocks, with the bookkeeping outside the slab. Not
// thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "mapping.hpp"
#include "pointer_map.hpp"

namespace ruda::native {

class small_pool {
 public:
  static constexpr size_t max_bytes = 32 * 1024;

  explicit small_pool(mapping& source) : source_(source) {}

  // 0 < bytes <= max_bytes. Null when no slab can be had.
  void* allocate(size_t bytes);

  // Whether `pointer` lies in a slab of this pool.
  bool covers(const void* pointer) const { return slab_of(pointer) != nullptr; }
  // The size of the live block that starts at `pointer`, or 0.
  size_t usable_size(const void* pointer) const;
  // The live block around a pointer that this pool covers, or null.
  void* block_around(const void* pointer) const;
  // The size of the block that a request gets.
  static size_t usable_for(size_t bytes) { return class_bytes(class_of(bytes)); }
  // A live block serves another request of its size; returns the bytes it was asked with before.
  size_t exchange_request(void* pointer, size_t bytes);
  // Gives back a live block and returns the bytes it was asked with, or 0 if it is not one.
  size_t release(void* pointer);

  // Returns slabs without live blocks to the system.
  void trim();

 private:
  static constexpr size_t slab_bytes = 256 * 1024;
  static constexpr int class_count = 56;

  struct slab {
    char* base = nullptr;
    int size_class = 0;
    uint32_t block_bytes = 0;
    uint32_t capacity = 0;
    uint32_t free_count = 0;
    std::unique_ptr<uint16_t[]> free_blocks;  // a stack of block numbers
    std::unique_ptr<uint32_t[]> requested;    // bytes asked for; 0: the block is free
    slab* previous = nullptr;                 // in the class's list of slabs with free blocks
    slab* next = nullptr;
  };

  static int class_of(size_t bytes);
  static uint32_t class_bytes(int size_class);

  slab* slab_of(const void* pointer) const {
    return slabs_.find(reinterpret_cast<uintptr_t>(pointer) / slab_bytes);
  }
  void shape(slab& target, int size_class);
  void link(slab& target);
  void unlink(slab& target);
  slab* provide(int size_class);

  mapping& source_;
  std::array<slab*, class_count> available_{};
  pointer_map<slab> slabs_;
};

}  // namespace ruda::native
