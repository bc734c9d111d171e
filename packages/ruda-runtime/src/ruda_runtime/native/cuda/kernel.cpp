#include "kernel.hpp"

#include <functional>
#include <map>
#include <mutex>

#include <ruda/entry.hpp>

#include "target.hpp"

namespace ruda::native::cuda {
namespace {

struct kernel_registry {
  std::shared_mutex mutex;
  std::map<std::string, std::unique_ptr<ruda_device_kernel>, std::less<>> kernels;
};

kernel_registry& the_registry() {
  static kernel_registry* shared = new kernel_registry;
  return *shared;
}

std::atomic<plan_resolver> resolver{nullptr};
std::atomic<void (*)()> finder{nullptr};

const ruda_device_kernel* lookup(const char* name) {
  kernel_registry& shared = the_registry();
  const std::shared_lock lock(shared.mutex);
  const auto found = shared.kernels.find(std::string_view(name));
  return found == shared.kernels.end() ? nullptr : found->second.get();
}

ruda_launch_options options_or_default(const ruda_launch_options* given) {
  ruda_launch_options result = given != nullptr ? *given : ruda_launch_options{0, 0};
  if (result.num_warps == 0) result.num_warps = 4;
  if (result.num_stages == 0) result.num_stages = 2;
  return result;
}

int32_t check_options(const ruda_device_kernel& kernel, const ruda_launch_options& options,
                      ruda_error* error) {
  const int32_t warps = options.num_warps;
  RUDA_CHECK(warps >= 1 && warps <= 32 && (warps & (warps - 1)) == 0, error, RUDA_ERROR_VALUE,
             "[%s] num_warps: got %d, wanted a power of two from 1 to 32", kernel.name.c_str(), warps);
  RUDA_CHECK(options.num_stages >= 1 && options.num_stages <= 16, error, RUDA_ERROR_VALUE,
             "[%s] num_stages: got %d, wanted 1 to 16", kernel.name.c_str(), options.num_stages);
  return RUDA_OK;
}

[[gnu::cold, gnu::noinline]] int32_t resolve(const ruda_device_kernel& kernel,
                                             const std::string& key,
                                             const ruda_argument* arguments,
                                             const ruda_launch_options& options,
                                             const ruda_plan** plan, ruda_error* error) {
  RUDA_TRY(enter(kernel.name.c_str(), error));
  RUDA_TRY(check_options(kernel, options, error));
  const plan_resolver chosen = resolver.load(std::memory_order_acquire);
  RUDA_CHECK(chosen != nullptr, error, RUDA_ERROR_RUNTIME,
             "[%s] nothing compiles kernels in this process: import ruda_runtime.kernel",
             kernel.name.c_str());
  std::vector<fact> facts;
  std::vector<constant> constants;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const bool fixed = kernel.parameters[i].type == parameter_type::constant;
    facts.push_back(fixed ? fact{} : fact_of(kernel.parameters[i], arguments[i]));
    constants.push_back(fixed ? constant_of(arguments[i]) : constant{});
  }
  settle_alignment(kernel, facts);
  std::unique_ptr<ruda_plan> made;
  RUDA_TRY(chosen(kernel, facts, constants, options, &made, error));
  made->constants = std::move(constants);
  const std::unique_lock lock(kernel.mutex);
  // Another thread may have been first; its plan is as good.
  *plan = kernel.plans.emplace(key, std::move(made)).first->second.get();
  return RUDA_OK;
}

}  // namespace

void set_plan_resolver(plan_resolver chosen) noexcept { resolver.store(chosen); }
void set_kernel_finder(void (*chosen)()) noexcept { finder.store(chosen); }

int32_t define_kernel(std::unique_ptr<ruda_device_kernel> added, const ruda_device_kernel** kernel,
                      ruda_error* error) noexcept {
  return guard("Kernel", error, [&]() -> int32_t {
    RUDA_CHECK(!added->name.empty(), error, RUDA_ERROR_VALUE, "[Kernel] name: got an empty text");
    RUDA_CHECK(added->parameters.size() <= static_cast<size_t>(max_parameters), error,
               RUDA_ERROR_VALUE, "[Kernel] '%s': got %zu parameters, wanted at most %d",
               added->name.c_str(), added->parameters.size(), max_parameters);
    kernel_registry& shared = the_registry();
    const std::unique_lock lock(shared.mutex);
    std::string name = added->name;
    const auto [place, fresh] = shared.kernels.emplace(std::move(name), nullptr);
    RUDA_CHECK(fresh, error, RUDA_ERROR_VALUE,
               "[Kernel] name: got '%s', which another kernel of this process has", place->first.c_str());
    place->second = std::move(added);
    *kernel = place->second.get();
    return RUDA_OK;
  });
}

const ruda_device_kernel* find_device_kernel(const char* name, ruda_error* error) noexcept {
  const ruda_device_kernel* found = nullptr;
  guard("find_device_kernel", error, [&]() -> int32_t {
    found = lookup(name);
    if (found == nullptr) {
      if (auto* find = finder.load(std::memory_order_acquire)) find();
      found = lookup(name);
    }
    if (found != nullptr) return RUDA_OK;
    return fail(error, RUDA_ERROR_UNSUPPORTED,
                "[%s] no device kernel of that name is defined; install the package that provides it, "
                "in a version that has it",
                name);
  });
  return found;
}

int32_t find_plan(const ruda_device_kernel* kernel, const ruda_argument* arguments, int32_t count,
                  const ruda_launch_options* options, const ruda_plan** plan,
                  ruda_error* error) noexcept {
  return guard(kernel->name.c_str(), error, [&]() -> int32_t {
    static thread_local std::string key;
    const ruda_launch_options chosen = options_or_default(options);
    RUDA_TRY(write_key(*kernel, arguments, count, chosen, key, error));
    {
      const std::shared_lock lock(kernel->mutex);
      if (const auto found = kernel->plans.find(key); found != kernel->plans.end()) {
        *plan = found->second.get();
        kernel->hits.fetch_add(1, std::memory_order_relaxed);
        return RUDA_OK;
      }
    }
    // The key's memory is the thread's, and compiling may launch other kernels.
    return resolve(*kernel, std::string(key), arguments, chosen, plan, error);
  });
}

int32_t launch_plan(const ruda_plan* plan, const ruda_argument* arguments, int32_t count,
                    const uint32_t grid[3], ruda_stream stream, ruda_error* error) noexcept {
  return guard(plan->kernel->name.c_str(), error, [&]() -> int32_t {
    RUDA_TRY(check_promises(*plan, arguments, count, error));
    return submit_launch(*plan, arguments, grid, stream, error);
  });
}

int32_t launch_device(const ruda_device_kernel* kernel, const ruda_argument* arguments,
                      int32_t count, const ruda_launch_options* options, const uint32_t grid[3],
                      ruda_stream stream, ruda_error* error) noexcept {
  const ruda_plan* plan = nullptr;
  RUDA_TRY(find_plan(kernel, arguments, count, options, &plan, error));
  return submit_launch(*plan, arguments, grid, stream, error);
}

}  // namespace ruda::native::cuda
