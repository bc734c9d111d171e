#include "kernels.hpp"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include <ruda/entry.hpp>

#include "arguments.hpp"
#include "capture.hpp"
#include "cuda/target.hpp"
#include "stream_wait.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

namespace ruda::native {
namespace {

// `kernel` comes first: a `const ruda_kernel*` handed out by find_kernel is the record's address.
struct record {
  ruda_kernel kernel;
  ruda_layout arguments;
  std::string name;
  std::string package;
  std::atomic<int64_t> launches{0};
};

struct registry {
  std::shared_mutex mutex;
  std::map<std::string, std::unique_ptr<record>, std::less<>> records;
};

// Never destroyed: kernels may be launched by threads that outlive static destruction.
registry& the_registry() {
  static registry* shared = new registry;
  return *shared;
}

std::atomic<int64_t> total_launches{0};
thread_local const char* current_kernel = nullptr;

int32_t run_kernel(const ruda_kernel& kernel, const void* args, ruda_error* error) {
  const char* outer = std::exchange(current_kernel, kernel.name);
  const int32_t status = kernel.run(args, error);
  current_kernel = outer;
  return status;
}

// One block: the task, then the copy of the arguments.
struct alignas(16) launch_task : task {
  const ruda_kernel* kernel;
  const void* args;
};

int32_t launch_queued(record& self, const void* args, int32_t id, ruda_error* error) {
  const ruda_kernel& kernel = self.kernel;
  size_t bytes = 0;
  bool waits = false;
  RUDA_TRY(measure_arguments(self.arguments, args, kernel.name, &bytes, &waits, error));
  void* memory = std::malloc(sizeof(launch_task) + bytes);
  RUDA_CHECK(memory != nullptr, error, RUDA_ERROR_MEMORY, "[%s] out of memory for bookkeeping",
             kernel.name);
  auto* added = new (memory) launch_task;
  added->name = kernel.name;
  added->kernel = &kernel;
  added->args = copy_arguments(self.arguments, args, static_cast<void*>(added + 1));
  added->threads = num_threads();
  added->run = [](task& each, ruda_error* failure) {
    auto& launch = static_cast<launch_task&>(each);
    return run_kernel(*launch.kernel, launch.args, failure);
  };
  added->destroy = [](task& each) { std::free(&static_cast<launch_task&>(each)); };
  uint64_t number = 0;
  if (const int32_t status = submit(id, added, &number, error); status != RUDA_OK) {
    std::free(memory);
    return status;
  }
  return waits ? wait_until(id, number, error) : RUDA_OK;
}

}  // namespace

const char* running_kernel() noexcept { return current_kernel; }

int32_t register_kernel(const ruda_kernel* kernel, ruda_error* error) noexcept {
  return guard("register_kernel", error, [&]() -> int32_t {
    RUDA_CHECK(kernel != nullptr && kernel->name != nullptr && *kernel->name != 0 &&
                   kernel->package != nullptr && *kernel->package != 0 && kernel->run != nullptr,
               error, RUDA_ERROR_VALUE,
               "[register_kernel] a kernel needs a name, a package and a function");
    RUDA_CHECK(kernel->arguments != nullptr && kernel->arguments->hash == kernel->layout &&
                   kernel->arguments->count <= RUDA_MAX_FIELDS,
               error, RUDA_ERROR_VALUE,
               "[register_kernel] '%s' of %s: a kernel needs the description of its arguments that "
               "RUDA_ARGUMENTS makes",
               kernel->name, kernel->package);
    auto added = std::make_unique<record>();
    added->name = kernel->name;
    added->package = kernel->package;
    added->arguments = *kernel->arguments;
    added->kernel = {added->name.c_str(), added->package.c_str(), kernel->layout, kernel->run,
                     &added->arguments};
    registry& shared = the_registry();
    const std::unique_lock lock(shared.mutex);
    const auto found = shared.records.find(added->name);
    RUDA_CHECK(found == shared.records.end(), error, RUDA_ERROR_VALUE,
               "[register_kernel] '%s' of %s is already registered by %s; a name belongs to one "
               "kernel",
               kernel->name, kernel->package, found->second->package.c_str());
    std::string name = added->name;
    shared.records.emplace(std::move(name), std::move(added));
    return RUDA_OK;
  });
}

const ruda_kernel* find_kernel(const char* name) noexcept {
  if (name == nullptr) return nullptr;
  registry& shared = the_registry();
  const std::shared_lock lock(shared.mutex);
  const auto found = shared.records.find(std::string_view(name));
  return found == shared.records.end() ? nullptr : &found->second->kernel;
}

int32_t launch(const ruda_kernel* kernel, const void* args, ruda_stream stream,
               ruda_error* error) noexcept {
  RUDA_CHECK(kernel != nullptr, error, RUDA_ERROR_UNSUPPORTED,
             "[launch] the kernel is null: no kernel of that name is registered; import the package "
             "that provides it");
  RUDA_CHECK(args != nullptr, error, RUDA_ERROR_VALUE, "[%s] the argument struct is null",
             kernel->name);
  int32_t id = 0;
  if (stream != nullptr) [[unlikely]] {
    RUDA_TRY(stream_of_handle(stream, kernel->name, &id, error));
  } else {
    id = current_stream();
  }
  auto* self = const_cast<record*>(reinterpret_cast<const record*>(kernel));
  self->launches.fetch_add(1, std::memory_order_relaxed);
  total_launches.fetch_add(1, std::memory_order_relaxed);
  if (captures_live() && !cuda::chosen() && running_kernel() == nullptr) [[unlikely]] {
    recording* into = nullptr;
    RUDA_TRY(place_work(id, kernel->name, &into, error));
    if (into != nullptr) return record_launch(*into, *kernel, args, error);
  }
  if (queues_work()) return launch_queued(*self, args, id, error);
  // On a GPU the entry submits to its current stream.
  const int32_t outer = current_stream();
  if (id != outer) enter_stream(id);
  const int32_t status = run_kernel(*kernel, args, error);
  if (id != outer) enter_stream(outer);
  return status;
}

int32_t run_steps(const step* steps, size_t count, size_t* failed, ruda_error* error) noexcept {
  const char* outer = current_kernel;
  int32_t status = RUDA_OK;
  for (size_t i = 0; i < count && status == RUDA_OK; ++i) {
    current_kernel = steps[i].name;
    *failed = i;
    status = steps[i].run(steps[i].args, error);
  }
  current_kernel = outer;
  return status;
}

int64_t launch_count() noexcept { return total_launches.load(std::memory_order_relaxed); }

std::vector<kernel_info> list_kernels() {
  registry& shared = the_registry();
  const std::shared_lock lock(shared.mutex);
  std::vector<kernel_info> result;
  result.reserve(shared.records.size());
  for (const auto& [name, each] : shared.records)
    result.push_back({name, each->package, each->kernel.layout, each->launches.load()});
  return result;
}

}  // namespace ruda::native
