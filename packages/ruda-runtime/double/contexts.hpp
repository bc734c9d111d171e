// Contexts: one primary context a device, others by cuCtxCreate. Handles are never freed, so that
// the use of a destroyed one is recognised.
#pragma once

#include "driver_types.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace driver_double {

// Base of every handle. All of them stay on one list, alive or dead.
struct handle {
  enum class kind : uint32_t {
    context = 0x52440001,
    stream,
    event,
    pool,
    module,
    library,
    function,
    graph,
    node,
    exec,
    dead
  };
  explicit handle(kind what) : is(what), next(newest.load()) {
    while (!newest.compare_exchange_weak(next, this)) {
    }
  }
  handle(const handle&) = delete;

  kind is;

 private:
  handle* next;
  static inline std::atomic<handle*> newest{nullptr};
};

// Null, a destroyed object or another object's handle: false.
template <class T>
bool valid(const T* object) {
  return object != nullptr && (reinterpret_cast<uintptr_t>(object) & 7) == 0 &&
         reinterpret_cast<const handle*>(object)->is == T::kind_of;
}

struct context : handle {
  static constexpr kind kind_of = kind::context;
  context(int device_ordinal, bool is_primary)
      : handle{kind_of}, device(device_ordinal), primary(is_primary) {}

  const int device;
  const bool primary;
  uint64_t id = 0;
  unsigned flags = 0;
  int references = 0;  // of a primary context; 0: released
  bool active() const { return is == kind_of && (!primary || references > 0); }

  std::mutex mutex;
  std::vector<stream*> streams;  // alive, the default one first
  stream* legacy = nullptr;
  size_t limits[16] = {};
};

context* make_context(int device, bool primary);
bool is_device(CUdevice device);

// The calling thread's context, or null.
context* current_context();

// Success only with a usable current context; its absence is reported with the call's name.
CUresult need_context(const char* call, context** out);

// All of a device's contexts that may have work.
std::vector<context*> all_contexts();

}  // namespace driver_double
