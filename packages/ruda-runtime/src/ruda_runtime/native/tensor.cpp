#include "tensor.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include <ruda/entry.hpp>

#include "allocator.hpp"
#include "capture.hpp"
#include "cuda/copies.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"
#include "stream_wait.hpp"
#include "streams.hpp"

namespace ruda::native {
namespace {

std::string text(const dims& values) {
  return list_text(values.data(), static_cast<int32_t>(values.size()));
}

// The product of the sizes; an error when it does not fit.
int64_t checked_count(const dims& sizes, int64_t item, const char* operation) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0)
      raise(RUDA_ERROR_VALUE, "[%s] shape: got %s, wanted sizes of at least 0", operation,
            text(sizes).c_str());
    empty = empty || size == 0;
  }
  if (empty) return 0;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(count, size, &count) || count > INT64_MAX / item)
      raise(RUDA_ERROR_VALUE, "[%s] shape: got %s, whose bytes do not fit 63 bits", operation,
            text(sizes).c_str());
  }
  return count;
}

void check_rank(size_t rank, const char* operation) {
  if (rank > static_cast<size_t>(max_rank))
    raise(RUDA_ERROR_VALUE, "[%s] shape: got rank %zu, wanted at most %d", operation, rank, max_rank);
}

// Replaces one -1 by the size that makes the product `count`.
void infer_size(dims& shape, int64_t count) {
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown == shape.end()) return;
  int64_t known = 1;
  for (auto each = shape.begin(); each != shape.end(); ++each)
    if (each != unknown && __builtin_mul_overflow(known, *each, &known)) return;
  if (known > 0 && count % known == 0) *unknown = count / known;
}

// Strides that show the elements of (sizes, strides) in order under `shape`; false when none do. Runs
// of old dimensions that lie behind each other without a gap are matched with runs of new ones.
bool strides_for(const dims& sizes, const dims& strides, const dims& shape, dims& result) {
  result.assign(shape.size(), 1);
  int64_t run_stride = 1, run_count = 1, taken = 1;
  auto target = static_cast<std::ptrdiff_t>(shape.size()) - 1;
  bool open = false;
  for (auto i = static_cast<std::ptrdiff_t>(sizes.size()) - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (!open) {
      run_stride = strides[i];
      run_count = 1;
      open = true;
    }
    run_count *= sizes[i];
    std::ptrdiff_t before = i - 1;
    while (before >= 0 && sizes[before] == 1) --before;
    if (before >= 0 && strides[before] == run_count * run_stride) continue;
    taken = 1;
    while (target >= 0 && (taken < run_count || shape[target] == 1)) {
      result[target] = taken * run_stride;
      taken *= shape[target];
      --target;
    }
    if (taken != run_count) return false;
    open = false;
  }
  return true;  // dimensions left over have size 1
}

// Memory of other owners that tensors show; graphs ask who owns a pointer.
struct foreign_range {
  const char* begin;
  size_t bytes;
  std::weak_ptr<storage> owner;
};

struct foreign_table {
  std::mutex mutex;
  std::unordered_map<const storage*, foreign_range> ranges;
};

// Never destroyed: tensors may end while the process shuts down.
foreign_table& the_foreign_storages() {
  static foreign_table* shared = new foreign_table;
  return *shared;
}

}  // namespace

void raise(int32_t code, const char* format, ...) {
  status_error raised;
  raised.error.code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(raised.error.message, sizeof(raised.error.message), format, arguments);
  va_end(arguments);
  throw raised;
}

std::shared_ptr<storage> storage::from_pool(size_t bytes) {
  ruda_error error{};
  void* data = allocate(bytes, &error);
  if (error.code != RUDA_OK) {
    status_error raised;
    raised.error = error;
    throw raised;
  }
  return std::shared_ptr<storage>(new storage(data, nullptr, true));
}

std::shared_ptr<storage> storage::foreign(void* data, size_t bytes, std::function<void()> release) {
  std::shared_ptr<storage> made(new storage(data, std::move(release), false));
  foreign_table& table = the_foreign_storages();
  const std::lock_guard lock(table.mutex);
  table.ranges.emplace(made.get(), foreign_range{static_cast<const char*>(data), bytes, made});
  return made;
}

std::vector<std::shared_ptr<storage>> storage::foreign_around(const void* pointer) {
  const auto* address = static_cast<const char*>(pointer);
  std::vector<std::shared_ptr<storage>> found;
  foreign_table& table = the_foreign_storages();
  const std::lock_guard lock(table.mutex);
  for (const auto& [key, each] : table.ranges)
    if (address >= each.begin && address < each.begin + each.bytes)
      if (std::shared_ptr<storage> owner = each.owner.lock()) found.push_back(std::move(owner));
  return found;
}

storage::~storage() {
  if (owned_) release(data_);
  if (release_) {
    foreign_table& table = the_foreign_storages();
    std::unique_lock lock(table.mutex);
    table.ranges.erase(this);
    lock.unlock();
    wait_for_all();  // the owner may give the memory to others at once
    release_();
  }
}

dims contiguous_strides(const dims& sizes) {
  dims strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

size_t extent_bytes(const dims& sizes, const dims& strides, int64_t item) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>((last + 1) * item);
}

void copy_to_contiguous(const void* source, const int64_t* sizes, const int64_t* strides,
                        int32_t rank, int64_t item, void* target) {
  const auto* from = static_cast<const char*>(source);
  auto* to = static_cast<char*>(target);
  for (int32_t i = 0; i < rank; ++i)
    if (sizes[i] == 0) return;
  if (rank == 0) {
    std::memcpy(to, from, static_cast<size_t>(item));
    return;
  }
  const int64_t inner = sizes[rank - 1];
  const int64_t step = strides[rank - 1] * item;
  int64_t index[max_rank] = {};
  for (;;) {
    if (step == item) {
      std::memcpy(to, from, static_cast<size_t>(inner * item));
    } else {
      const auto each = [&]<class T>(T) {
        for (int64_t i = 0; i < inner; ++i) std::memcpy(to + i * item, from + i * step, sizeof(T));
      };
      switch (item) {  // a constant size makes each copy one move
        case 1: each(uint8_t{}); break;
        case 2: each(uint16_t{}); break;
        case 4: each(uint32_t{}); break;
        default: each(uint64_t{}); break;
      }
    }
    to += inner * item;
    int32_t dim = rank - 1;
    for (;;) {
      if (dim == 0) return;
      --dim;
      from += strides[dim] * item;
      if (++index[dim] < sizes[dim]) break;
      from -= strides[dim] * item * sizes[dim];
      index[dim] = 0;
    }
  }
}

tensor::tensor(std::shared_ptr<storage> memory, int64_t offset, dims sizes, dims strides,
               int32_t dtype)
    : memory_(std::move(memory)),
      offset_(offset),
      sizes_(std::move(sizes)),
      strides_(std::move(strides)),
      stream_(current_stream()) {
  auto* start = static_cast<char*>(memory_->data());
  view_ = {start == nullptr ? nullptr : start + offset * item_size(dtype),
           sizes_.data(),
           strides_.data(),
           static_cast<int32_t>(sizes_.size()),
           dtype,
           cuda::chosen() ? RUDA_CUDA : RUDA_HOST,
           0};
}

std::shared_ptr<tensor> tensor::empty(dims sizes, int32_t dtype) {
  check_rank(sizes.size(), "empty");
  const int64_t count = checked_count(sizes, item_size(dtype), "empty");
  auto memory = storage::from_pool(static_cast<size_t>(count * item_size(dtype)));
  dims strides = contiguous_strides(sizes);
  return std::make_shared<tensor>(std::move(memory), 0, std::move(sizes), std::move(strides), dtype);
}

void tensor::wait() const {
  status_error failed;
  failed.error.code = RUDA_OK;
  for (const int32_t stream : {stream_, current_stream()})
    if (wait_until(stream, submitted_work(stream), &failed.error) != RUDA_OK) throw failed;
}

void tensor::order() const {
  if (is_captured(current_stream())) return;
  if (!cuda::chosen()) return wait();
  status_error failed;
  if (cuda::wait_stream(current_stream(), stream_, &failed.error) != RUDA_OK) throw failed;
}

int64_t tensor::count() const { return element_count(view_); }

std::shared_ptr<tensor> tensor::reshape(dims shape, const char* operation) const {
  check_rank(shape.size(), operation);
  const dims asked = shape;
  infer_size(shape, count());
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; }) ||
      checked_count(shape, item_size(dtype()), operation) != count())
    raise(RUDA_ERROR_VALUE, "[%s] shape: got %s for %lld elements of shape %s", operation,
          text(asked).c_str(), static_cast<long long>(count()), text(sizes_).c_str());
  dims strides;
  if (count() == 0) {
    strides = contiguous_strides(shape);
  } else if (!strides_for(sizes_, strides_, shape, strides)) {
    raise(RUDA_ERROR_VALUE,
          "[%s] shape: got %s, which shape %s with strides %s cannot show without a copy; call "
          "contiguous() first",
          operation, text(shape).c_str(), text(sizes_).c_str(), text(strides_).c_str());
  }
  return std::make_shared<tensor>(memory_, offset_, std::move(shape), std::move(strides), dtype());
}

std::shared_ptr<tensor> tensor::permute(const dims& order) const {
  const auto rank = static_cast<int64_t>(sizes_.size());
  dims sizes, strides;
  std::vector<bool> used(sizes_.size(), false);
  for (const int64_t each : order) {
    const int64_t dim = each < 0 ? each + rank : each;
    if (static_cast<int64_t>(order.size()) != rank || dim < 0 || dim >= rank || used[dim])
      raise(RUDA_ERROR_VALUE, "[permute] dims: got %s, wanted each dimension of %s once",
            text(order).c_str(), text(sizes_).c_str());
    used[dim] = true;
    sizes.push_back(sizes_[dim]);
    strides.push_back(strides_[dim]);
  }
  if (static_cast<int64_t>(order.size()) != rank)
    raise(RUDA_ERROR_VALUE, "[permute] dims: got %s, wanted each dimension of %s once",
          text(order).c_str(), text(sizes_).c_str());
  return std::make_shared<tensor>(memory_, offset_, std::move(sizes), std::move(strides), dtype());
}

std::shared_ptr<tensor> tensor::slice(int64_t dim, int64_t start, int64_t stop, int64_t step) const {
  const auto rank = static_cast<int64_t>(sizes_.size());
  const int64_t axis = dim < 0 ? dim + rank : dim;
  if (axis < 0 || axis >= rank)
    raise(RUDA_ERROR_VALUE, "[slice] dim: got %lld, wanted a dimension of %s",
          static_cast<long long>(dim), text(sizes_).c_str());
  if (step < 1)
    raise(RUDA_ERROR_VALUE, "[slice] step: got %lld, wanted at least 1",
          static_cast<long long>(step));
  const int64_t size = sizes_[axis];
  const auto bounded = [size](int64_t value) {
    return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size);
  };
  const int64_t first = bounded(start);
  const int64_t last = std::max(bounded(stop), first);
  dims sizes = sizes_, strides = strides_;
  sizes[axis] = last == first ? 0 : (last - first - 1) / step + 1;
  // With one element or none left the stride says nothing, and the product might not fit.
  strides[axis] = sizes[axis] > 1 ? strides_[axis] * step : strides_[axis];
  const int64_t offset = offset_ + (sizes[axis] == 0 ? 0 : first * strides_[axis]);
  return std::make_shared<tensor>(memory_, offset, std::move(sizes), std::move(strides), dtype());
}

std::shared_ptr<tensor> tensor::copy() const {
  std::shared_ptr<tensor> result = empty(sizes_, dtype());
  result->assign(*this);
  return result;
}

void tensor::assign(const tensor& source) const {
  const ruda_view& from = source.view_;
  const int32_t id = current_stream();
  status_error failed;
  if (cuda::chosen()) {
    const int32_t status =
        is_contiguous(from)
            ? cuda::copy_on_device(view_.data, from.data, static_cast<size_t>(byte_count(from)), id,
                                   &failed.error)
            : cuda::gather(view_.data, from.data, source.sizes_, source.strides_,
                           item_size(dtype()), id, &failed.error);
    if (status != RUDA_OK) throw failed;
    return;
  }
  recording* into = nullptr;
  if (place_work(id, "copy", &into, &failed.error) != RUDA_OK) throw failed;
  if (into != nullptr) {
    if (record_copy(*into, from, view_.data, &failed.error) != RUDA_OK) throw failed;
  } else if (is_contiguous(from)) {
    if (from.data != nullptr)
      std::memmove(view_.data, from.data, static_cast<size_t>(byte_count(from)));
  } else {
    copy_to_contiguous(from.data, source.sizes_, source.strides_, item_size(dtype()), view_.data);
  }
}

}  // namespace ruda::native
