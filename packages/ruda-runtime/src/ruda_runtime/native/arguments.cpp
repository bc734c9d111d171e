#include "arguments.hpp"

#include <cstring>

#include <ruda/entry.hpp>

#include "allocator.hpp"

namespace ruda::native {
namespace {

constexpr int32_t max_view_rank = 64;

// Hands out parts of one block; without a block it only counts.
class parts {
 public:
  explicit parts(void* memory) : base_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  void* take_bytes(size_t bytes) {
    char* result = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 7) / 8 * 8;
    return result;
  }
  // A copy of `bytes` bytes, or null while counting.
  void* copy(const void* source, size_t bytes) {
    void* target = take_bytes(bytes);
    if (target != nullptr && bytes != 0) std::memcpy(target, source, bytes);
    return target;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

template <class T>
T read(const void* args, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(args) + offset, sizeof(T));
  return value;
}

const ruda_view* copy_view(const ruda_view* view, parts& memory) {
  if (view == nullptr) return nullptr;
  auto* result = memory.take<ruda_view>(1);
  const auto extent = static_cast<size_t>(view->ndim) * sizeof(int64_t);
  const auto* sizes = static_cast<const int64_t*>(memory.copy(view->sizes, extent));
  const auto* strides = static_cast<const int64_t*>(memory.copy(view->strides, extent));
  if (result != nullptr) {
    *result = *view;
    result->sizes = sizes;
    result->strides = strides;
  }
  return result;
}

const void* copy_views(const ruda_view* const* list, int64_t length, parts& memory) {
  if (list == nullptr) return nullptr;
  auto** result = memory.take<const ruda_view*>(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) {
    const ruda_view* each = copy_view(list[i], memory);
    if (result != nullptr) result[i] = each;
  }
  return result;
}

void* copy_struct(const ruda_layout& layout, const void* args, parts& memory) {
  auto* result = static_cast<char*>(memory.copy(args, layout.size));
  for (uint32_t i = 0; i < layout.count; ++i) {
    const ruda_field& field = layout.fields[i];
    const void* pointer = read<const void*>(args, field.offset);
    const void* copied = pointer;
    if (field.kind == RUDA_FIELD_VIEW) {
      copied = copy_view(static_cast<const ruda_view*>(pointer), memory);
    } else if (field.kind == RUDA_FIELD_VIEWS) {
      copied = copy_views(static_cast<const ruda_view* const*>(pointer),
                          read<int64_t>(args, field.length), memory);
    } else if (field.kind == RUDA_FIELD_VALUES && pointer != nullptr) {
      copied = memory.copy(
          pointer, static_cast<size_t>(read<int64_t>(args, field.length)) * field.item);
    }
    if (result != nullptr) std::memcpy(result + field.offset, &copied, sizeof(copied));
  }
  return result;
}

int32_t check_view(const ruda_view* view, const char* kernel, ruda_error* error) {
  if (view == nullptr) return RUDA_OK;
  RUDA_CHECK(view->ndim >= 0 && view->ndim <= max_view_rank, error, RUDA_ERROR_VALUE,
             "[%s] a tensor of the arguments has rank %d, wanted 0 to %d", kernel, view->ndim,
             max_view_rank);
  return RUDA_OK;
}

int32_t check_list(const void* args, const ruda_field& field, const char* kernel,
                   ruda_error* error) {
  const auto length = read<int64_t>(args, field.length);
  RUDA_CHECK(length >= 0, error, RUDA_ERROR_VALUE,
             "[%s] a list of the arguments has length %lld, wanted at least 0", kernel,
             static_cast<long long>(length));
  if (field.kind != RUDA_FIELD_VIEWS) return RUDA_OK;
  const auto* list = read<const ruda_view* const*>(args, field.offset);
  for (int64_t i = 0; list != nullptr && i < length; ++i)
    RUDA_TRY(check_view(list[i], kernel, error));
  return RUDA_OK;
}

}  // namespace

int32_t measure_arguments(const ruda_layout& layout, const void* args, const char* kernel,
                          size_t* bytes, bool* waits, ruda_error* error) noexcept {
  *waits = false;
  for (uint32_t i = 0; i < layout.count; ++i) {
    const ruda_field& field = layout.fields[i];
    if (field.kind == RUDA_FIELD_VIEW) {
      RUDA_TRY(check_view(read<const ruda_view*>(args, field.offset), kernel, error));
    } else if (field.kind == RUDA_FIELD_RESULT) {
      const auto* result = read<const void*>(args, field.offset);
      if (result != nullptr && usable_size(result) == 0) *waits = true;
    } else {
      RUDA_TRY(check_list(args, field, kernel, error));
    }
  }
  parts counted(nullptr);
  copy_struct(layout, args, counted);
  *bytes = counted.used();
  return RUDA_OK;
}

const void* copy_arguments(const ruda_layout& layout, const void* args, void* memory) noexcept {
  parts target(memory);
  return copy_struct(layout, args, target);
}

}  // namespace ruda::native
