#include "modules.hpp"

#include <mutex>
#include <unordered_map>

#include <ruda/entry.hpp>

#include "graph.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

constexpr size_t log_bytes = 4096;
constexpr unsigned shared_without_asking = 48 << 10;

struct module_table {
  std::mutex mutex;
  std::unordered_map<std::string, CUmodule> loaded;  // by the image's hash
};

module_table& the_modules() {
  static module_table* shared = new module_table;
  return *shared;
}

// Needs the lock. The bytes end with a NUL, which PTX needs.
int32_t load(const image& source, const char* kernel, CUmodule* module, ruda_error* error) {
  std::string log(log_bytes, '\0');
  int options[] = {jit_error_log_buffer, jit_error_log_buffer_bytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log_bytes)};
  const CUresult code =
      api().cuModuleLoadDataEx(module, source.bytes.c_str(), 2, options, values);
  if (code == success) return RUDA_OK;
  log.resize(std::char_traits<char>::length(log.c_str()));
  return fail(error, RUDA_ERROR_RUNTIME,
              "[%s] its %s for %s (compute capability %d.%d) does not load: %s; %s%s%s", kernel,
              source.bytes.compare(0, 4, "\x7f"
                                         "ELF") == 0
                  ? "machine code"
                  : "PTX",
              device().name.c_str(), device().major, device().minor,
              call_text(api(), "cuModuleLoadDataEx", code).c_str(), advice(code),
              log.empty() ? "" : ". The driver's compiler says: ", log.c_str());
}

}  // namespace

int32_t load_function(const image& source, const char* kernel, CUfunction* function,
                      ruda_error* error) noexcept {
  return guard(kernel, error, [&]() -> int32_t {
    RUDA_TRY(enter(kernel, error));
    RUDA_CHECK(source.shared_bytes <= static_cast<unsigned>(device().shared_memory_per_block), error,
               RUDA_ERROR_RUNTIME,
               "[%s] needs %u bytes of shared memory a block, %s has %d; use smaller blocks or fewer "
               "stages",
               kernel, source.shared_bytes, device().name.c_str(), device().shared_memory_per_block);
    const outside_capture unsafe_calls_allowed;
    module_table& table = the_modules();
    const std::lock_guard lock(table.mutex);
    CUmodule module = nullptr;
    // Kernels that were promised different things may have one machine code, and one description each.
    const std::string key =
        api().describe == nullptr ? source.hash : source.hash + source.description;
    if (const auto found = table.loaded.find(key); found != table.loaded.end())
      module = found->second;
    if (api().describe != nullptr && !source.description.empty())
      RUDA_CHECK(api().describe(source.description.c_str()) == 0, error, RUDA_ERROR_RUNTIME,
                 "[%s] the driver double refused the description %s", kernel,
                 source.description.c_str());
    if (module == nullptr) {
      RUDA_TRY(load(source, kernel, &module, error));
      table.loaded.emplace(key, module);
    }
    RUDA_CUDA(kernel, error, cuModuleGetFunction, function, module, source.entry.c_str());
    if (source.shared_bytes > shared_without_asking)
      RUDA_CUDA(kernel, error, cuFuncSetAttribute, *function, function_max_dynamic_shared,
                static_cast<int>(source.shared_bytes));
    return RUDA_OK;
  });
}

int64_t loaded_modules() noexcept {
  module_table& table = the_modules();
  const std::lock_guard lock(table.mutex);
  return static_cast<int64_t>(table.loaded.size());
}

void unload_modules() noexcept {
  module_table& table = the_modules();
  const std::lock_guard lock(table.mutex);
  for (const auto& [key, module] : table.loaded) api().cuModuleUnload(module);
  table.loaded.clear();
}

}  // namespace ruda::native::cuda
