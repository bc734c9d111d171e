#include "driver.hpp"

#include <dlfcn.h>

#include <ruda/entry.hpp>

namespace ruda::native::cuda {
namespace {

constexpr const char* library = "libcuda.so.1";

// The signature that drivers from CUDA 12.0 on have.
using find_function = CUresult (*)(const char* name, void** function, int version, uint64_t flags,
                                   int* status);

std::string too_old(int version) {
  return "the NVIDIA driver is too old: it supports CUDA " + version_text(version) +
         ", wanted CUDA " + version_text(oldest_driver) +
         " or newer; install a newer NVIDIA driver (525.60 is the first for CUDA 12.0)";
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string open_driver(driver& table) {
  // First one that is loaded already: Python's packages and this module use the same driver.
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) handle = dlopen(library, RTLD_NOW);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return "the NVIDIA driver library libcuda.so.1 cannot be loaded (" +
           std::string(reason != nullptr ? reason : "no reason given") +
           "); install the NVIDIA driver of this GPU";
  }
  // Without CUDA headers a function is known by name only.
  const auto version_of =
      reinterpret_cast<CUresult (*)(int*)>(dlsym(handle, "cuDriverGetVersion"));
  if (version_of == nullptr || version_of(&table.version) != success)
    return "the library libcuda.so.1 has no cuDriverGetVersion that works; reinstall the NVIDIA "
           "driver";
  const auto find = reinterpret_cast<find_function>(dlsym(handle, "cuGetProcAddress_v2"));
  if (find == nullptr || table.version < oldest_driver) return too_old(table.version);
#define RUDA_DRIVER_FIND(name, arguments)                                                          \
  {                                                                                                \
    void* found = nullptr;                                                                         \
    int status = 0;                                                                                \
    if (find(#name, &found, oldest_driver, 0, &status) != success || found == nullptr)             \
      return "the NVIDIA driver (CUDA " + version_text(table.version) + ") has no function " #name \
             "; install the NVIDIA driver again";                                                  \
    table.name = reinterpret_cast<CUresult(*) arguments>(found);                                   \
  }
  RUDA_DRIVER_FUNCTIONS(RUDA_DRIVER_FIND)
#undef RUDA_DRIVER_FIND
  table.describe = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "ruda_double_describe"));
  table.last_report =
      reinterpret_cast<const char* (*)()>(dlsym(handle, "ruda_double_last_report"));
  table.failure = reinterpret_cast<const char* (*)()>(dlsym(handle, "ruda_double_failure"));
  return "";
}

const char* advice(CUresult code) {
  switch (code) {
    case error_out_of_memory:
      return "free tensors you do not need, or use a smaller batch or sequence length";
    case error_stub_library:
      return "libcuda.so.1 is the toolkit's stub library: take it out of LD_LIBRARY_PATH";
    case error_no_device:
      return "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set RUDA_TARGET=host";
    case error_invalid_image:
    case error_no_binary_for_gpu:
      return "the kernel was compiled for another GPU: empty RUDA_CACHE_DIR, or build the bundle for "
             "this architecture";
    case error_invalid_ptx:
    case error_unsupported_ptx_version:
      return "the driver is older than the PTX: set RUDA_PTX_VERSION to one that it knows, or use "
             "RUDA_CUDA_COMPILER=cubin";
    case error_launch_out_of_resources:
      return "the kernel needs more registers or shared memory than a block may have: use fewer warps "
             "or smaller blocks";
    case error_system_driver_mismatch:
    case error_compat_not_supported:
      return "the driver library and the kernel module do not fit: restart the machine after a driver "
             "update, or take the compat library out of LD_LIBRARY_PATH";
    default: break;
  }
  if (context_is_lost(code))
    return "the GPU's context is lost: end this process; RUDA_ASYNC=0 names the kernel, and "
           "compute-sanitizer the access";
  return "the text of the error is the driver's; if the call seems right, report it";
}

std::string call_text(const driver& table, const char* call, CUresult code) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (table.cuGetErrorName == nullptr || table.cuGetErrorName(code, &name) != success ||
      name == nullptr)
    name = "an unknown error";
  if (table.cuGetErrorString == nullptr || table.cuGetErrorString(code, &text) != success ||
      text == nullptr)
    text = "no text";
  std::string result =
      std::string(call) + ": " + name + " (" + text + ", code " + std::to_string(code) + ")";
  if (const char* failure = table.failure != nullptr ? table.failure() : ""; *failure != 0) {
    result += std::string("; the driver double says what failed: ") + failure;
  } else if (const char* report = table.last_report != nullptr ? table.last_report() : "";
             *report != 0) {
    result += std::string("; the driver double's last report: ") + report;
  }
  return result;
}

int32_t fail_call(const driver& table, const char* operation, const char* call, CUresult code,
                  ruda_error* error) {
  const int32_t status = code == error_out_of_memory ? RUDA_ERROR_MEMORY : RUDA_ERROR_RUNTIME;
  return fail(error, status, "[%s] %s; %s", operation, call_text(table, call, code).c_str(),
              advice(code));
}

}  // namespace ruda::native::cuda
