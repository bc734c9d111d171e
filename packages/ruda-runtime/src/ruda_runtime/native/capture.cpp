#include "capture.hpp"

#include <array>
#include <cstring>
#include <shared_mutex>

#include <ruda/entry.hpp>

#include "allocator.hpp"
#include "arguments.hpp"
#include "cuda/graph.hpp"
#include "cuda/target.hpp"
#include "streams.hpp"

namespace ruda::native {

namespace detail {
std::atomic<int32_t> live_captures{0};
}

namespace {

constexpr size_t capacity = 1025;
constexpr size_t chunk_bytes = 16 << 10;

thread_local char this_thread;

struct capture {
  recording* into = nullptr;
  const void* thread = nullptr;
};

std::shared_mutex begins;  // taken before all other locks
std::mutex mutex;          // of the captures; taken after the allocators' locks
std::array<capture, capacity> captures;
thread_local int32_t captured = -1;  // looked at only while the thread's entry in `captures` agrees

bool known(int32_t id) { return id >= 0 && static_cast<size_t>(id) < capacity; }

// Needs the lock: another thread may have ended this thread's capture.
int32_t own_capture() {
  if (captured >= 0 && captures[static_cast<size_t>(captured)].thread != &this_thread) captured = -1;
  return captured;
}

int32_t fail_captured(int32_t id, const char* operation, ruda_error* error) {
  return fail(error, RUDA_ERROR_RUNTIME,
              "[graph] %s: stream %d is being captured, so that its work is only noted; do this before "
              "or after the capture",
              operation, id);
}

// A step that copies elements.
struct copy_arguments_of_step {
  const void* from;
  void* to;
  int64_t item;
  size_t bytes;  // of memory without gaps; else 0
  int32_t rank;
  int64_t sizes[max_rank];
  int64_t strides[max_rank];
};

int32_t run_copy(const void* args, ruda_error*) {
  const auto& self = *static_cast<const copy_arguments_of_step*>(args);
  if (self.bytes != 0) {
    std::memmove(self.to, self.from, self.bytes);
  } else {
    copy_to_contiguous(self.from, self.sizes, self.strides, self.rank, self.item, self.to);
  }
  return RUDA_OK;
}

template <class T>
T read(const void* args, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(args) + offset, sizeof(T));
  return value;
}

void hold_view(held_memory& memory, const ruda_view* view) {
  if (view != nullptr) memory.hold(view->data);
}

void hold_arguments(held_memory& memory, const ruda_layout& layout, const void* args) {
  for (uint32_t i = 0; i < layout.count; ++i) {
    const ruda_field& field = layout.fields[i];
    if (field.kind == RUDA_FIELD_VIEW) {
      hold_view(memory, read<const ruda_view*>(args, field.offset));
    } else if (field.kind == RUDA_FIELD_VIEWS) {
      const auto* list = read<const ruda_view* const*>(args, field.offset);
      const auto length = read<int64_t>(args, field.length);
      for (int64_t k = 0; list != nullptr && k < length; ++k) hold_view(memory, list[k]);
    } else if (field.kind == RUDA_FIELD_RESULT) {
      memory.hold(read<const void*>(args, field.offset));
    }
  }
}

}  // namespace

held_memory::~held_memory() {
  for (void* block : blocks_) drop_block(block);
}

void held_memory::hold(const void* pointer) {
  if (pointer == nullptr) return;
  if (void* block = hold_block(pointer)) {
    std::unique_lock lock(mutex_);
    const bool added = blocks_.insert(block).second;
    lock.unlock();
    if (!added) drop_block(block);
    return;
  }
  for (std::shared_ptr<storage>& owner : storage::foreign_around(pointer)) {
    bool there = false;
    for (const auto& each : foreign_) there = there || each == owner;
    if (!there) foreign_.push_back(std::move(owner));
  }
}

void held_memory::adopt(void* block) {
  const std::lock_guard lock(mutex_);
  blocks_.insert(block);
}

recording::~recording() { cuda::destroy_graph(device_graph); }

void* recording::take(size_t bytes) {
  const size_t wanted = (bytes + 15) / 16 * 16;
  if (wanted > left_) {
    const size_t size = wanted > chunk_bytes ? wanted : chunk_bytes;
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
    left_ = size;
    chunk_end_ = chunks_.back().get() + size;
  }
  void* result = chunk_end_ - left_;
  left_ -= wanted;
  return result;
}

int32_t begin_capture(int32_t id, recording* into, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "graph", error));
  const std::unique_lock beginning(begins);
  const std::lock_guard lock(mutex);
  RUDA_CHECK(own_capture() < 0, error, RUDA_ERROR_RUNTIME,
             "[graph] capture: this thread captures stream %d already; captures do not nest",
             captured);
  capture& self = captures[static_cast<size_t>(id)];
  RUDA_CHECK(self.into == nullptr, error, RUDA_ERROR_RUNTIME,
             "[graph] capture: another thread captures stream %d; use a stream of your own", id);
  self = {into, &this_thread};
  captured = id;
  detail::live_captures.fetch_add(1, std::memory_order_seq_cst);
  return RUDA_OK;
}

void end_capture(int32_t id) noexcept {
  const std::lock_guard lock(mutex);
  captures[static_cast<size_t>(id)] = {};
  detail::live_captures.fetch_sub(1, std::memory_order_seq_cst);
}

no_new_captures::no_new_captures() { begins.lock_shared(); }
no_new_captures::~no_new_captures() { begins.unlock_shared(); }

bool is_captured(int32_t id) noexcept {
  if (!captures_live() || !known(id)) return false;
  const std::lock_guard lock(mutex);
  return captures[static_cast<size_t>(id)].into != nullptr;
}

int32_t is_capturing(int32_t id) noexcept { return is_captured(id) ? 1 : 0; }

int32_t captured_here() noexcept {
  if (!captures_live()) return -1;
  const std::lock_guard lock(mutex);
  return own_capture();
}

int32_t place_work(int32_t id, const char* operation, recording** into, ruda_error* error) noexcept {
  *into = nullptr;
  if (!captures_live() || !known(id)) return RUDA_OK;
  const std::lock_guard lock(mutex);
  const capture& self = captures[static_cast<size_t>(id)];
  const int32_t own = own_capture();
  RUDA_CHECK(self.into == nullptr || own == id, error, RUDA_ERROR_RUNTIME,
             "[graph] %s: another thread captures stream %d; use another stream", operation, id);
  RUDA_CHECK(own < 0 || own == id, error, RUDA_ERROR_RUNTIME,
             "[graph] %s: this thread captures stream %d, and work for stream %d would not be in the "
             "graph; submit it before or after the capture",
             operation, own, id);
  *into = self.into;
  return RUDA_OK;
}

int32_t refuse_captured(int32_t id, const char* operation, ruda_error* error) noexcept {
  if (!captures_live()) return RUDA_OK;
  if (id < 0) {
    const int32_t own = captured_here();
    return own < 0 ? RUDA_OK : fail_captured(own, operation, error);
  }
  return is_captured(id) ? fail_captured(id, operation, error) : RUDA_OK;
}

bool keep_for_capture(int32_t stream, void* block) noexcept {
  if (!captures_live() || !known(stream)) return false;
  const std::lock_guard lock(mutex);
  recording* into = captures[static_cast<size_t>(stream)].into;
  if (into == nullptr) return false;
  into->memory.adopt(block);
  return true;
}

int32_t record_launch(recording& into, const ruda_kernel& kernel, const void* args,
                      ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    size_t bytes = 0;
    bool waits = false;
    const ruda_layout& layout = *kernel.arguments;
    RUDA_TRY(measure_arguments(layout, args, kernel.name, &bytes, &waits, error));
    RUDA_CHECK(!waits, error, RUDA_ERROR_RUNTIME,
               "[graph] %s gives a number back to the host, which a captured launch cannot; let it "
               "write into a tensor, or call it outside the capture",
               kernel.name);
    const void* copied = copy_arguments(layout, args, into.take(bytes));
    hold_arguments(into.memory, layout, args);
    into.steps.push_back({kernel.name, &kernel, kernel.run, copied});
    return RUDA_OK;
  });
}

int32_t record_copy(recording& into, const ruda_view& from, void* to, ruda_error* error) noexcept {
  if (element_count(from) == 0) return RUDA_OK;
  return guard("graph", error, [&]() -> int32_t {
    auto* args = new (into.take(sizeof(copy_arguments_of_step))) copy_arguments_of_step{};
    args->from = from.data;
    args->to = to;
    args->item = item_size(from.dtype);
    args->bytes = is_contiguous(from) ? static_cast<size_t>(byte_count(from)) : 0;
    args->rank = from.ndim;
    std::copy_n(from.sizes, from.ndim, args->sizes);
    std::copy_n(from.strides, from.ndim, args->strides);
    into.memory.hold(from.data);
    into.memory.hold(to);
    into.steps.push_back({"copy", nullptr, run_copy, args});
    return RUDA_OK;
  });
}

int32_t record_device_work(recording& into, const char* name, const void* what,
                           const void* const* pointers, size_t count, ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    for (size_t i = 0; i < count; ++i) into.memory.hold(pointers[i]);
    into.steps.push_back({name, what});
    return RUDA_OK;
  });
}

}  // namespace ruda::native
