// What an operation's entry (entry.cpp) is written with: checks over plain views, error text, scratch
// memory, parallel loops. Header only; no Python (see python.hpp for bindings) and no torch.
//
// A module calls ruda::attach(...) once when it is loaded (python.hpp does that), then:
//
//   int32_t rms_norm(const void* raw, ruda_error* error) {
//     return ruda::guard("rms_norm", error, [&]() -> int32_t {
//       const auto& args = *static_cast<const ruda::rms_norm_forward_args*>(raw);
//       RUDA_CHECK(args.x->ndim >= 1, error, RUDA_ERROR_VALUE, "[rms_norm] x: got rank 0, wanted ...");
//       ...
//       return RUDA_OK;
//     });
//   }
#ifndef RUDA_ENTRY_HPP
#define RUDA_ENTRY_HPP

#include <ruda/abi.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace ruda {

namespace detail {
inline const ruda_api* attached_api = nullptr;
}

// The runtime's function table; null before attach().
inline const ruda_api* api() noexcept { return detail::attached_api; }

// ---- errors ---------------------------------------------------------------------------------

// Fills `error` (which may be null) and returns `code`: `return fail(error, RUDA_ERROR_VALUE, ...)`.
[[gnu::format(printf, 3, 4), gnu::cold]] inline int32_t fail(ruda_error* error, int32_t code,
                                                             const char* format, ...) {
  if (error != nullptr) {
    error->code = code;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
  }
  return code;
}

// Returns from the calling function with an error when the condition does not hold.
#define RUDA_CHECK(condition, error, code, ...)               \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      return ::ruda::fail((error), (code), __VA_ARGS__);      \
  } while (0)

// Hands on the status of a call that has already filled its error.
#define RUDA_TRY(call)                                        \
  do {                                                        \
    if (const int32_t ruda_try_status_ = (call); ruda_try_status_ != RUDA_OK) [[unlikely]] \
      return ruda_try_status_;                                \
  } while (0)

// A status as a C++ exception, for code between entries that is easier to write with exceptions.
struct status_error : std::exception {
  ruda_error error{};
  const char* what() const noexcept override { return error.message; }
};

// Runs `body` (returning a status) and turns any exception into a status: nothing leaves an entry.
template <class Body>
int32_t guard(const char* operation, ruda_error* error, Body&& body) noexcept {
  try {
    return body();
  } catch (const status_error& caught) {
    if (error != nullptr) *error = caught.error;
    return caught.error.code;
  } catch (const std::bad_alloc&) {
    return fail(error, RUDA_ERROR_MEMORY, "[%s] out of memory for bookkeeping", operation);
  } catch (const std::exception& caught) {
    return fail(error, RUDA_ERROR_RUNTIME, "[%s] %s", operation, caught.what());
  } catch (...) {
    return fail(error, RUDA_ERROR_RUNTIME, "[%s] unknown exception", operation);
  }
}

// Binds this module to the runtime. Called once, before any other function of this header.
inline int32_t attach(const void* table, const char* module, ruda_error* error) {
  const auto* given = static_cast<const ruda_api*>(table);
  RUDA_CHECK(given != nullptr, error, RUDA_ERROR_RUNTIME, "[%s] the runtime's table is null", module);
  RUDA_CHECK(given->abi_version == RUDA_ABI_VERSION && given->struct_size >= sizeof(ruda_api), error,
             RUDA_ERROR_RUNTIME,
             "[%s] built for runtime ABI %d (table of %zu bytes): got ABI %u (%u bytes); install "
             "matching versions: python -m pip install --upgrade --force-reinstall 'ruda-runtime"
             "==0.%d.*'",
             module, RUDA_ABI_VERSION, sizeof(ruda_api), given->abi_version, given->struct_size,
             RUDA_ABI_VERSION);
  detail::attached_api = given;
  return RUDA_OK;
}

// ---- views ----------------------------------------------------------------------------------

inline const char* dtype_name(int32_t dtype) noexcept {
  switch (dtype) {
    case RUDA_FLOAT32: return "float32";
    case RUDA_FLOAT16: return "float16";
    case RUDA_BFLOAT16: return "bfloat16";
    case RUDA_FLOAT64: return "float64";
    case RUDA_INT8: return "int8";
    case RUDA_INT16: return "int16";
    case RUDA_INT32: return "int32";
    case RUDA_INT64: return "int64";
    case RUDA_UINT8: return "uint8";
    case RUDA_UINT32: return "uint32";
    case RUDA_BOOL: return "bool";
    default: return "unknown dtype";
  }
}

// Bytes of one element; 0 for an unknown dtype.
inline int64_t item_size(int32_t dtype) noexcept {
  switch (dtype) {
    case RUDA_FLOAT64:
    case RUDA_INT64: return 8;
    case RUDA_FLOAT32:
    case RUDA_INT32:
    case RUDA_UINT32: return 4;
    case RUDA_FLOAT16:
    case RUDA_BFLOAT16:
    case RUDA_INT16: return 2;
    case RUDA_INT8:
    case RUDA_UINT8:
    case RUDA_BOOL: return 1;
    default: return 0;
  }
}

inline bool is_floating(int32_t dtype) noexcept {
  return dtype == RUDA_FLOAT32 || dtype == RUDA_FLOAT16 || dtype == RUDA_BFLOAT16 ||
         dtype == RUDA_FLOAT64;
}

inline int64_t element_count(const ruda_view& view) noexcept {
  int64_t count = 1;
  for (int32_t i = 0; i < view.ndim; ++i) count *= view.sizes[i];
  return count;
}

inline int64_t byte_count(const ruda_view& view) noexcept {
  return element_count(view) * item_size(view.dtype);
}

// Row-major without gaps. Dimensions of size 1 may have any stride; an empty tensor is contiguous.
inline bool is_contiguous(const ruda_view& view) noexcept {
  int64_t expected = 1;
  for (int32_t i = view.ndim - 1; i >= 0; --i) {
    if (view.sizes[i] == 0) return true;
    if (view.sizes[i] != 1) {
      if (view.strides[i] != expected) return element_count(view) == 0;
      expected *= view.sizes[i];
    }
  }
  return true;
}

inline bool same_shape(const ruda_view& a, const ruda_view& b) noexcept {
  if (a.ndim != b.ndim) return false;
  for (int32_t i = 0; i < a.ndim; ++i)
    if (a.sizes[i] != b.sizes[i]) return false;
  return true;
}

// The product of all sizes but the last: the rows of a row-wise operation.
inline int64_t row_count(const ruda_view& view) noexcept {
  int64_t count = 1;
  for (int32_t i = 0; i + 1 < view.ndim; ++i) count *= view.sizes[i];
  return count;
}

inline int64_t last_size(const ruda_view& view) noexcept {
  return view.ndim == 0 ? 1 : view.sizes[view.ndim - 1];
}

template <class T>
T* data(const ruda_view& view) noexcept {
  return static_cast<T*>(view.data);
}

inline std::string list_text(const int64_t* values, int32_t count) {
  std::string text = "[";
  for (int32_t i = 0; i < count; ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

inline std::string shape_text(const ruda_view& view) { return list_text(view.sizes, view.ndim); }
inline std::string strides_text(const ruda_view& view) { return list_text(view.strides, view.ndim); }

// "float32[2, 3]"
inline std::string view_text(const ruda_view& view) {
  return dtype_name(view.dtype) + shape_text(view);
}

// Checks that every entry repeats. `operation` and `name` go into the text: "[rms_norm] weight: ...".

inline int32_t check_present(const ruda_view* view, const char* operation, const char* name,
                             ruda_error* error) {
  RUDA_CHECK(view != nullptr, error, RUDA_ERROR_VALUE, "[%s] %s: got nothing, wanted a tensor",
             operation, name);
  return RUDA_OK;
}

inline const char* target_name(int32_t target) noexcept {
  switch (target) {
    case RUDA_HOST: return "host";
    case RUDA_CUDA: return "cuda";
    default: return "unknown";
  }
}

// Present, on this process's target, and of a known dtype: for entries with kernels for all targets.
inline int32_t check_target(const ruda_view* view, const char* operation, const char* name,
                            ruda_error* error) {
  RUDA_TRY(check_present(view, operation, name, error));
  RUDA_CHECK(view->target == api()->target(), error, RUDA_ERROR_UNSUPPORTED,
             "[%s] %s: got a tensor of target %d (%s), wanted one of this process's target %s; copy "
             "it there first",
             operation, name, view->target, target_name(view->target),
             target_name(api()->target()));
  RUDA_CHECK(item_size(view->dtype) != 0, error, RUDA_ERROR_TYPE, "[%s] %s: got unknown dtype %d",
             operation, name, view->dtype);
  return RUDA_OK;
}

// Whether a checked view is the GPU's.
inline bool on_device(const ruda_view& view) noexcept { return view.target == RUDA_CUDA; }

// Present, on the host target, and of a known dtype: for entries with host kernels only.
inline int32_t check_host(const ruda_view* view, const char* operation, const char* name,
                          ruda_error* error) {
  RUDA_TRY(check_present(view, operation, name, error));
  RUDA_CHECK(view->target == RUDA_HOST, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] %s: got a tensor of target %d, wanted one of the host target; this build has no "
             "kernel for other targets",
             operation, name, view->target);
  RUDA_CHECK(item_size(view->dtype) != 0, error, RUDA_ERROR_TYPE, "[%s] %s: got unknown dtype %d",
             operation, name, view->dtype);
  return RUDA_OK;
}

inline int32_t check_dtype(const ruda_view* view, std::initializer_list<int32_t> wanted,
                           const char* operation, const char* name, ruda_error* error) {
  for (const int32_t dtype : wanted)
    if (view->dtype == dtype) return RUDA_OK;
  std::string text;
  for (const int32_t* one = wanted.begin(); one != wanted.end(); ++one) {
    if (std::find(wanted.begin(), one, *one) != one) continue;  // another argument's dtype, again
    if (!text.empty()) text += " or ";
    text += dtype_name(*one);
  }
  return fail(error, RUDA_ERROR_TYPE, "[%s] %s: got dtype %s, wanted %s", operation, name,
              dtype_name(view->dtype), text.c_str());
}

inline int32_t check_shape(const ruda_view* view, std::initializer_list<int64_t> wanted,
                           const char* operation, const char* name, ruda_error* error) {
  bool equal = view->ndim == static_cast<int32_t>(wanted.size());
  if (equal) {
    int32_t i = 0;
    for (const int64_t size : wanted) equal = equal && view->sizes[i++] == size;
  }
  if (equal) return RUDA_OK;
  return fail(error, RUDA_ERROR_VALUE, "[%s] %s: got shape %s, wanted %s", operation, name,
              shape_text(*view).c_str(),
              list_text(wanted.begin(), static_cast<int32_t>(wanted.size())).c_str());
}

inline int32_t check_same_shape(const ruda_view* view, const ruda_view* other, const char* operation,
                                const char* name, const char* other_name, ruda_error* error) {
  if (same_shape(*view, *other)) return RUDA_OK;
  return fail(error, RUDA_ERROR_VALUE, "[%s] %s: got shape %s, wanted %s's shape %s", operation, name,
              shape_text(*view).c_str(), other_name, shape_text(*other).c_str());
}

inline int32_t check_contiguous(const ruda_view* view, const char* operation, const char* name,
                                ruda_error* error) {
  if (is_contiguous(*view)) return RUDA_OK;
  return fail(error, RUDA_ERROR_VALUE,
              "[%s] %s: got strides %s for shape %s, wanted a contiguous tensor; call contiguous()",
              operation, name, strides_text(*view).c_str(), shape_text(*view).c_str());
}

// ---- memory ---------------------------------------------------------------------------------

// Uninitialised scratch from the runtime's pool, given back at the end of the scope. Throws
// status_error when memory runs out (guard turns it into the status).
template <class T>
class scratch {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  scratch() = default;
  explicit scratch(int64_t count) : count_(count) {
    status_error caught;
    caught.error.code = RUDA_OK;
    pointer_ = static_cast<T*>(
        api()->allocate(static_cast<size_t>(count) * sizeof(T), &caught.error));
    if (caught.error.code != RUDA_OK) throw caught;
  }
  scratch(scratch&& other) noexcept
      : pointer_(std::exchange(other.pointer_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  scratch& operator=(scratch&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~scratch() {
    if (pointer_ != nullptr) api()->release(pointer_);
  }

  T* get() const noexcept { return pointer_; }
  int64_t size() const noexcept { return count_; }
  T& operator[](int64_t index) const noexcept { return pointer_[index]; }

 private:
  T* pointer_ = nullptr;
  int64_t count_ = 0;
};

// ---- parallel loops -------------------------------------------------------------------------

// body(begin, end, worker) over [begin, end) in parts of `grain` (the last may be shorter). The parts
// do not depend on the number of threads; `worker` < api()->num_threads() and no two running bodies
// share it. The first exception of a body is thrown again here, after all bodies have returned.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, Body&& body) {
  struct state_type {
    std::remove_reference_t<Body>* body;
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr exception;
  } state{std::addressof(body), ATOMIC_FLAG_INIT, nullptr};
  api()->parallel_for(
      begin, end, grain,
      [](void* context, int64_t part_begin, int64_t part_end, int32_t worker) {
        auto& shared = *static_cast<state_type*>(context);
        try {
          (*shared.body)(part_begin, part_end, worker);
        } catch (...) {
          if (!shared.failed.test_and_set()) shared.exception = std::current_exception();
        }
      },
      &state);
  if (state.exception) std::rethrow_exception(state.exception);
}

// A grain that gives parts of at least `minimum` units of work where one index costs `cost` units.
inline int64_t grain_for(int64_t cost, int64_t minimum) noexcept {
  return cost >= minimum ? 1 : (minimum + cost - 1) / (cost > 0 ? cost : 1);
}

// ---- kernels --------------------------------------------------------------------------------

inline int32_t register_kernel(const char* name, const char* package, const ruda_layout& layout,
                               ruda_kernel_fn run, ruda_error* error) {
  const ruda_kernel kernel{name, package, layout.hash, run, &layout};
  return api()->register_kernel(&kernel, error);
}

// Finds a kernel and checks that this module and the kernel's agree on its argument struct. Keep the
// pointer: it stays valid for the life of the process.
inline int32_t find_kernel(const char* name, uint64_t layout, const ruda_kernel** kernel,
                           ruda_error* error) {
  *kernel = api()->find_kernel(name);
  RUDA_CHECK(*kernel != nullptr, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] no such kernel is registered; import the package that provides it", name);
  RUDA_CHECK((*kernel)->layout == layout, error, RUDA_ERROR_RUNTIME,
             "[%s] %s was built with another layout of the arguments than the caller; install "
             "matching versions of the RUDA packages",
             name, (*kernel)->package);
  return RUDA_OK;
}

}  // namespace ruda

#include <ruda/convert.hpp>

#endif  // RUDA_ENTRY_HPP
