#include "modules.hpp"

#include "entry.hpp"
#include "reports.hpp"

#include <cstdio>
#include <fstream>
#include <sstream>

namespace driver_double {

const description* function::described() {
  const description* found = description_.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return found;
  description_ref now = find_description(in->code.digest, name);
  if (now == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  if (kept_ == nullptr) {
    kept_ = std::move(now);
    description_.store(kept_.get(), std::memory_order_release);
  }
  return kept_.get();
}

CUresult get_function(const char* call, module& of, const char* name, function** out) {
  std::lock_guard lock(of.mutex);
  auto found = of.functions.find(name);
  if (found != of.functions.end()) {
    *out = found->second;
    return CUDA_SUCCESS;
  }
  auto entry = of.code.entries.find(name);
  if (entry == of.code.entries.end() && find_description(of.code.digest, name) == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  auto* made = new function(of, name);
  if (entry != of.code.entries.end()) made->image_parameters = entry->second;
  const description* described = made->described();
  if (described != nullptr && made->image_parameters >= 0 &&
      made->image_parameters != static_cast<int>(described->packed.size())) {
    CUresult code =
        report(CUDA_ERROR_INVALID_VALUE,
               "[%s] kernel %s: the description packs %zu arguments (%u and scratch "
               "pointers), the image takes %d",
               call, name, described->packed.size(), described->parameters, made->image_parameters);
    made->is = handle::kind::dead;
    return code;
  }
  of.functions[name] = *out = made;
  return CUDA_SUCCESS;
}

CUresult need_function(const char* call, function* handle) {
  if (!valid(handle)) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_HANDLE, "[%s] %p is no function", call,
                  static_cast<void*>(handle));
  }
  if (!handle->in->alive()) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_HANDLE, "[%s] kernel %s: its module was unloaded", call,
                  handle->name.c_str());
  }
  return CUDA_SUCCESS;
}

namespace {

CUresult load(const char* call, const void* code, context* in, module** out) {
  image loaded;
  if (CUresult result = read_image(call, code, &loaded); result != CUDA_SUCCESS) return result;
  *out = new module(in, std::move(loaded));
  ++counters::get().live_modules;
  return CUDA_SUCCESS;
}

CUresult load_module(const char* call, const void* code, CUmodule* out) {
  context* current = nullptr;
  if (CUresult result = need_context(call, &current); result != CUDA_SUCCESS) return result;
  if (out == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load(call, code, current, out);
}

bool read_file(const char* path, std::string* out) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  *out = text.str();
  return file.good();
}

void unload(module& of) {
  of.is = handle::kind::dead;
  --counters::get().live_modules;
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuModuleLoadData(CUmodule* out, const void* code) {
  return load_module("cuModuleLoadData", code, out);
}

// Options of the driver's compiler concern code generation, which the double has not.
DRIVER_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* code, unsigned, int*, void**) {
  return load_module("cuModuleLoadDataEx", code, out);
}

DRIVER_API CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::string code;
  if (path == nullptr || !read_file(path, &code)) return CUDA_ERROR_FILE_NOT_FOUND;
  return load_module("cuModuleLoad", code.c_str(), out);
}

DRIVER_API CUresult cuModuleUnload(CUmodule unloaded) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(unloaded) || unloaded->from != nullptr) {
    return report(CUDA_ERROR_INVALID_HANDLE, "[cuModuleUnload] %p is no module, or was unloaded",
                  static_cast<void*>(unloaded));
  }
  unload(*unloaded);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule of, const char* name) {
  const char* call = "cuModuleGetFunction";
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(of)) return report(CUDA_ERROR_INVALID_HANDLE, "[%s] no module, or unloaded", call);
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get_function(call, *of, name, out);
}

DRIVER_API CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule of) {
  if (!valid(of)) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(of->code.entries.size());
  return CUDA_SUCCESS;
}

// No image of the double has variables.
DRIVER_API CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule of, const char*) {
  return valid(of) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

DRIVER_API CUresult cuModuleGetLoadingMode(int* mode) {
  *mode = 2;  // lazy
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuLibraryLoadData(CUlibrary* out, const void* code, int*, void**, unsigned,
                                      int*, void**, unsigned) {
  if (CUresult result = enter(); result != CUDA_SUCCESS) return result;
  if (out == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  module* loaded = nullptr;
  if (CUresult result = load("cuLibraryLoadData", code, nullptr, &loaded); result != CUDA_SUCCESS) {
    return result;
  }
  *out = loaded->from = new library(*loaded);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, int* options,
                                          void** values, unsigned count, int* library_options,
                                          void** library_values, unsigned library_count) {
  std::string code;
  if (path == nullptr || !read_file(path, &code)) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLibraryLoadData(out, code.c_str(), options, values, count, library_options,
                           library_values, library_count);
}

DRIVER_API CUresult cuLibraryUnload(CUlibrary unloaded) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(unloaded)) {
    return report(CUDA_ERROR_INVALID_HANDLE, "[cuLibraryUnload] %p is no library, or was unloaded",
                  static_cast<void*>(unloaded));
  }
  unload(unloaded->contents);
  unloaded->is = handle::kind::dead;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary of, const char* name) {
  const char* call = "cuLibraryGetKernel";
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(of)) return report(CUDA_ERROR_INVALID_HANDLE, "[%s] no library, or unloaded", call);
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get_function(call, of->contents, name, out);
}

DRIVER_API CUresult cuLibraryGetModule(CUmodule* out, CUlibrary of) {
  if (!valid(of)) return CUDA_ERROR_INVALID_HANDLE;
  *out = &of->contents;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary of) {
  if (!valid(of)) return CUDA_ERROR_INVALID_HANDLE;
  return cuModuleGetFunctionCount(count, &of->contents);
}

DRIVER_API CUresult cuLibraryGetGlobal(CUdeviceptr*, size_t*, CUlibrary of, const char*) {
  return valid(of) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

namespace {
const entry_table entries{
    entry<&cuModuleLoad>("cuModuleLoad", 2000),
    entry<&cuModuleLoadData>("cuModuleLoadData", 2000),
    entry<&cuModuleLoadDataEx>("cuModuleLoadDataEx", 2010),
    entry<&cuModuleUnload>("cuModuleUnload", 2000),
    entry<&cuModuleGetFunction>("cuModuleGetFunction", 2000),
    entry<&cuModuleGetFunctionCount>("cuModuleGetFunctionCount", 12040),
    entry<&cuModuleGetGlobal_v2>("cuModuleGetGlobal", 3020),
    entry<&cuModuleGetLoadingMode>("cuModuleGetLoadingMode", 11070),
    entry<&cuLibraryLoadData>("cuLibraryLoadData", 12000),
    entry<&cuLibraryLoadFromFile>("cuLibraryLoadFromFile", 12000),
    entry<&cuLibraryUnload>("cuLibraryUnload", 12000),
    entry<&cuLibraryGetKernel>("cuLibraryGetKernel", 12000),
    entry<&cuLibraryGetModule>("cuLibraryGetModule", 12000),
    entry<&cuLibraryGetKernelCount>("cuLibraryGetKernelCount", 12040),
    entry<&cuLibraryGetGlobal>("cuLibraryGetGlobal", 12000),
};
}
