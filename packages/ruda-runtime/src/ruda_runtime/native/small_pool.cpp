#include "small_pool.hpp"

#include <bit>
#include <utility>
#include <vector>

namespace ruda::native {

// Steps of 64 bytes up to 1 KiB, then eight steps a doubling: at most an eighth is lost.
int small_pool::class_of(size_t bytes) {
  if (bytes <= 1024) return static_cast<int>((bytes + 63) / 64) - 1;
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power + 1)
  const size_t step = size_t{1} << (power - 3);
  return 16 + (power - 10) * 8 +
         static_cast<int>((bytes - (size_t{1} << power) + step - 1) / step) - 1;
}

uint32_t small_pool::class_bytes(int size_class) {
  if (size_class < 16) return static_cast<uint32_t>(size_class + 1) * 64;
  const int power = 10 + (size_class - 16) / 8;
  return (uint32_t{1} << power) +
         static_cast<uint32_t>((size_class - 16) % 8 + 1) * (uint32_t{1} << (power - 3));
}

void small_pool::shape(slab& target, int size_class) {
  target.size_class = size_class;
  target.block_bytes = class_bytes(size_class);
  target.capacity = static_cast<uint32_t>(slab_bytes / target.block_bytes);
  target.free_count = target.capacity;
  target.free_blocks = std::make_unique<uint16_t[]>(target.capacity);
  target.requested = std::make_unique<uint32_t[]>(target.capacity);
  for (uint32_t i = 0; i < target.capacity; ++i)  // low addresses are handed out first
    target.free_blocks[i] = static_cast<uint16_t>(target.capacity - 1 - i);
}

void small_pool::link(slab& target) {
  slab*& head = available_[static_cast<size_t>(target.size_class)];
  target.previous = nullptr;
  target.next = head;
  if (head != nullptr) head->previous = &target;
  head = &target;
}

void small_pool::unlink(slab& target) {
  if (target.previous != nullptr)
    target.previous->next = target.next;
  else
    available_[static_cast<size_t>(target.size_class)] = target.next;
  if (target.next != nullptr) target.next->previous = target.previous;
  target.previous = target.next = nullptr;
}

// A slab of another class that is empty now serves before the system is asked.
small_pool::slab* small_pool::provide(int size_class) {
  for (slab* head : available_) {
    for (slab* each = head; each != nullptr; each = each->next) {
      if (each->free_count == each->capacity) {
        unlink(*each);
        shape(*each, size_class);
        link(*each);
        return each;
      }
    }
  }
  void* memory = source_.map(slab_bytes, slab_bytes, false);
  if (memory == nullptr) return nullptr;
  auto made = std::make_unique<slab>();
  made->base = static_cast<char*>(memory);
  shape(*made, size_class);
  slabs_.insert(reinterpret_cast<uintptr_t>(memory) / slab_bytes, made.get());
  link(*made);
  return made.release();
}

void* small_pool::allocate(size_t bytes) {
  const int size_class = class_of(bytes);
  slab* source = available_[static_cast<size_t>(size_class)];
  if (source == nullptr) source = provide(size_class);
  if (source == nullptr) return nullptr;
  const uint16_t block = source->free_blocks[--source->free_count];
  source->requested[block] = static_cast<uint32_t>(bytes);
  if (source->free_count == 0) unlink(*source);
  return source->base + size_t{block} * source->block_bytes;
}

size_t small_pool::usable_size(const void* pointer) const {
  const slab* owner = slab_of(pointer);
  if (owner == nullptr) return 0;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(pointer) - owner->base);
  const size_t block = offset / owner->block_bytes;
  const bool live = offset % owner->block_bytes == 0 && block < owner->capacity &&
                    owner->requested[block] != 0;
  return live ? owner->block_bytes : 0;
}

void* small_pool::block_around(const void* pointer) const {
  const slab& owner = *slab_of(pointer);
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - owner.base);
  char* start = owner.base + offset / owner.block_bytes * owner.block_bytes;
  return usable_size(start) != 0 ? start : nullptr;
}

size_t small_pool::exchange_request(void* pointer, size_t bytes) {
  slab& owner = *slab_of(pointer);
  const size_t block =
      static_cast<size_t>(static_cast<char*>(pointer) - owner.base) / owner.block_bytes;
  return std::exchange(owner.requested[block], static_cast<uint32_t>(bytes));
}

size_t small_pool::release(void* pointer) {
  if (usable_size(pointer) == 0) return 0;
  slab& owner = *slab_of(pointer);
  const size_t block =
      static_cast<size_t>(static_cast<char*>(pointer) - owner.base) / owner.block_bytes;
  const size_t requested = owner.requested[block];
  owner.requested[block] = 0;
  owner.free_blocks[owner.free_count++] = static_cast<uint16_t>(block);
  if (owner.free_count == 1) link(owner);
  return requested;
}

void small_pool::trim() {
  std::vector<slab*> empty;
  slabs_.each([&](slab* each) {
    if (each->free_count == each->capacity) empty.push_back(each);
  });
  for (slab* each : empty) {
    unlink(*each);
    slabs_.erase(reinterpret_cast<uintptr_t>(each->base) / slab_bytes);
    source_.unmap(each->base, slab_bytes);
    delete each;
  }
}

}  // namespace ruda::native
