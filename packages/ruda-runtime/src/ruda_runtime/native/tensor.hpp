// The tensor behind ruda_runtime.Tensor: shared storage and a view of it.
#pragma once

#include <ruda/abi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ruda::native {

using dims = std::vector<int64_t>;

constexpr int32_t max_rank = 16;

// A block of memory and what keeps it: the pool, or a foreign owner to be told when it ends.
class storage {
 public:
  static std::shared_ptr<storage> from_pool(size_t bytes);  // throws status_error
  static std::shared_ptr<storage> foreign(void* data, size_t bytes, std::function<void()> release);
  // Those of other owners' memory that have a byte at `pointer`.
  static std::vector<std::shared_ptr<storage>> foreign_around(const void* pointer);
  ~storage();
  storage(const storage&) = delete;

  void* data() const { return data_; }

 private:
  storage(void* data, std::function<void()> release, bool owned)
      : data_(data), release_(std::move(release)), owned_(owned) {}

  void* data_;
  std::function<void()> release_;
  bool owned_;
};

// Immutable but for its elements; view() stays valid while the object lives (it does not move).
class tensor {
 public:
  tensor(std::shared_ptr<storage> memory, int64_t offset, dims sizes, dims strides, int32_t dtype);
  tensor(const tensor&) = delete;

  static std::shared_ptr<tensor> empty(dims sizes, int32_t dtype);

  const ruda_view& view() const { return view_; }
  const dims& sizes() const { return sizes_; }
  const dims& strides() const { return strides_; }
  const std::shared_ptr<storage>& memory() const { return memory_; }
  int32_t dtype() const { return view_.dtype; }
  int32_t stream() const { return stream_; }
  int64_t offset() const { return offset_; }  // elements from the start of the storage
  int64_t count() const;

  // Before the host reads or writes the elements: waits for the queued work of the stream the tensor
  // was made on and of the caller's current one, and throws the error it ended with.
  void wait() const;

  // Before work of the current stream reads the elements: on a GPU that work begins after the work of the
  // tensor's own stream; on the host this is wait(). Captured work has no such order.
  void order() const;

  // Views of the same memory. They throw status_error, naming `operation`, when the request is wrong.
  std::shared_ptr<tensor> reshape(dims shape, const char* operation) const;
  std::shared_ptr<tensor> permute(const dims& order) const;
  std::shared_ptr<tensor> slice(int64_t dim, int64_t start, int64_t stop, int64_t step) const;

  // A fresh row-major tensor with the same elements; order() comes first.
  std::shared_ptr<tensor> copy() const;
  // Copies the elements of a tensor of this shape and dtype into this contiguous one; order() of both
  // comes first. The two do not overlap, unless both are contiguous.
  void assign(const tensor& source) const;

 private:
  std::shared_ptr<storage> memory_;
  int64_t offset_;
  dims sizes_;
  dims strides_;
  int32_t stream_;
  ruda_view view_;
};

// The bytes from the first to behind the last element; strides are at least 0.
size_t extent_bytes(const dims& sizes, const dims& strides, int64_t item);

// Row-major strides.
dims contiguous_strides(const dims& sizes);

// Copies elements of `item` bytes from a strided source to row-major memory.
void copy_to_contiguous(const void* source, const int64_t* sizes, const int64_t* strides,
                        int32_t rank, int64_t item, void* target);
inline void copy_to_contiguous(const void* source, const dims& sizes, const dims& strides,
                               int64_t item, void* target) {
  copy_to_contiguous(source, sizes.data(), strides.data(), static_cast<int32_t>(sizes.size()), item,
                     target);
}

[[noreturn, gnu::format(printf, 2, 3)]] void raise(int32_t code, const char* format, ...);

}  // namespace ruda::native
