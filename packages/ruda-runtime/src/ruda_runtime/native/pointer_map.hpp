// A hash table from addresses to records, open addressing with linear probing. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ruda::native {

template <class T>
class pointer_map {
 public:
  pointer_map() : slots_(64) {}

  T* find(uintptr_t key) const {
    for (size_t i = home(key);; i = next(i)) {
      if (slots_[i].value == nullptr) return nullptr;
      if (slots_[i].key == key) return slots_[i].value;
    }
  }

  // `key` must be absent and `value` not null.
  void insert(uintptr_t key, T* value) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    place(key, value);
    ++count_;
  }

  void erase(uintptr_t key) {
    size_t hole = home(key);
    while (slots_[hole].value != nullptr && slots_[hole].key != key) hole = next(hole);
    if (slots_[hole].value == nullptr) return;
    // Entries behind the hole move forward unless that would put them before their home.
    for (size_t i = next(hole); slots_[i].value != nullptr; i = next(i)) {
      const size_t distance = (i - home(slots_[i].key)) & (slots_.size() - 1);
      if (distance >= ((i - hole) & (slots_.size() - 1))) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = {};
    --count_;
  }

  template <class Visit>
  void each(Visit&& visit) const {
    for (const slot& entry : slots_)
      if (entry.value != nullptr) visit(entry.value);
  }

 private:
  struct slot {
    uintptr_t key = 0;
    T* value = nullptr;
  };

  size_t home(uintptr_t key) const {
    return static_cast<size_t>((key * 0x9e3779b97f4a7c15ull) >> 20) & (slots_.size() - 1);
  }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void place(uintptr_t key, T* value) {
    size_t i = home(key);
    while (slots_[i].value != nullptr) i = next(i);
    slots_[i] = {key, value};
  }

  void grow() {
    std::vector<slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const slot& entry : old)
      if (entry.value != nullptr) place(entry.key, entry.value);
  }

  std::vector<slot> slots_;  // a power of two of them
  size_t count_ = 0;
};

}  // namespace ruda::native
