// From an argument list to cuLaunchKernel.

#include <cstring>

#include <ruda/entry.hpp>

#include "../capture.hpp"
#include "../streams.hpp"
#include "kernel.hpp"
#include "memory.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

constexpr uint32_t largest_grid_x = 0x7fffffff;
constexpr uint32_t largest_grid_yz = 65535;

uint64_t packed(const parameter& wanted, const ruda_argument& given) noexcept {
  uint64_t slot = 0;
  if (wanted.type == parameter_type::real) {
    if (wanted.bits == 32) {
      const auto value = static_cast<float>(given.value.real);
      std::memcpy(&slot, &value, sizeof(value));
    } else {
      std::memcpy(&slot, &given.value.real, sizeof(double));
    }
  } else if (given.kind == RUDA_ARGUMENT_POINTER) {
    slot = reinterpret_cast<uint64_t>(given.value.pointer);
  } else {
    slot = static_cast<uint64_t>(given.value.integer);  // little endian: the low bytes come first
  }
  return slot;
}

[[gnu::cold]] int32_t fail_launch(const ruda_plan& plan, const uint32_t grid[3], const char* call,
                                  CUresult code, int32_t id, ruda_error* error) {
  const bool earlier = context_is_lost(code) && std::strcmp(call, "cuStreamSynchronize") != 0;
  const int32_t status = code == error_out_of_memory ? RUDA_ERROR_MEMORY : RUDA_ERROR_RUNTIME;
  return fail(error, status,
              "[%s] failed on cuda:0 (%s), grid (%u, %u, %u), %u threads and %u bytes of shared memory "
              "a block: %s%s%s; %s",
              plan.kernel->name.c_str(), device().name.c_str(), grid[0], grid[1], grid[2],
              plan.threads, plan.shared_bytes, call_text(api(), call, code).c_str(),
              earlier ? "; it is the error of earlier work: " : "",
              earlier ? last_launch_text(id).c_str() : "", advice(code));
}

// Memory of one launch, given back in the stream's order behind it.
struct launch_scratch {
  void* memory = nullptr;
  ~launch_scratch() {
    if (memory != nullptr) release(memory);
  }
};

[[gnu::cold]] int32_t note_captured(const ruda_plan& plan, const ruda_argument* arguments,
                                    recording& into, ruda_error* error) {
  const void* pointers[max_parameters];
  size_t count = 0;
  for (const uint8_t index : plan.passed)
    if (arguments[index].kind == RUDA_ARGUMENT_POINTER)
      pointers[count++] = arguments[index].value.pointer;
  return record_device_work(into, plan.kernel->name.c_str(), plan.kernel, pointers, count, error);
}

int32_t submit_checked(const ruda_plan& plan, const ruda_argument* arguments,
                       const uint32_t grid[3], int32_t id, CUstream stream, recording* into,
                       ruda_error* error) {
  uint64_t slots[max_parameters + 2];
  void* pointers[max_parameters + 2];
  size_t count = 0;
  const auto push = [&](uint64_t value) {
    slots[count] = value;
    pointers[count] = &slots[count];
    ++count;
  };
  for (const uint8_t index : plan.passed)
    push(packed(plan.kernel->parameters[index], arguments[index]));
  launch_scratch scratch[2];
  const uint64_t sizes[2] = {plan.scratch_bytes, plan.profile_bytes};
  const uint64_t programs = uint64_t{grid[0]} * grid[1] * grid[2];
  for (int32_t i = 0; i < plan.scratch_pointers; ++i) {
    if (sizes[i] != 0) {
      scratch[i].memory = allocate(static_cast<size_t>(sizes[i] * programs), error);
      if (scratch[i].memory == nullptr) return RUDA_ERROR_MEMORY;
    }
    push(reinterpret_cast<uint64_t>(scratch[i].memory));
  }
  const CUresult code =
      plan.cooperative
          ? api().cuLaunchCooperativeKernel(plan.function, grid[0], grid[1], grid[2], plan.threads,
                                            1, 1, plan.shared_bytes, stream, pointers)
          : api().cuLaunchKernel(plan.function, grid[0], grid[1], grid[2], plan.threads, 1, 1,
                                 plan.shared_bytes, stream, pointers, nullptr);
  if (code != success)
    return fail_launch(plan, grid, plan.cooperative ? "cuLaunchCooperativeKernel" : "cuLaunchKernel",
                       code, id, error);
  if (into != nullptr) [[unlikely]] return note_captured(plan, arguments, *into, error);
  note_launch(id, plan.kernel->name.c_str(), grid);
  if (asynchronous() != 0) return RUDA_OK;
  const CUresult done = api().cuStreamSynchronize(stream);
  return done == success ? RUDA_OK : fail_launch(plan, grid, "cuStreamSynchronize", done, id, error);
}

}  // namespace

int32_t submit_launch(const ruda_plan& plan, const ruda_argument* arguments, const uint32_t grid[3],
                      ruda_stream handle, ruda_error* error) noexcept {
  const char* name = plan.kernel->name.c_str();
  RUDA_CHECK(grid[0] <= largest_grid_x && grid[1] <= largest_grid_yz && grid[2] <= largest_grid_yz,
             error, RUDA_ERROR_VALUE,
             "[%s] grid: got (%u, %u, %u), wanted at most (2147483647, 65535, 65535)", name, grid[0],
             grid[1], grid[2]);
  int32_t id = 0;
  RUDA_TRY(stream_of_handle(handle, name, &id, error));
  plan.kernel->launches.fetch_add(1, std::memory_order_relaxed);
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return RUDA_OK;
  recording* into = nullptr;
  if (captures_live()) [[unlikely]] RUDA_TRY(place_work(id, name, &into, error));
  ruda_error failure;
  failure.code = RUDA_ERROR_RUNTIME;
  const CUstream stream = driver_stream(id, name, &failure);
  if (stream == nullptr) {
    if (error != nullptr) *error = failure;
    return failure.code;
  }
  // Scratch belongs to the stream of the launch.
  const int32_t outer = current_stream();
  if (outer != id) enter_stream(id);
  const int32_t status = submit_checked(plan, arguments, grid, id, stream, into, error);
  if (outer != id) enter_stream(outer);
  return status;
}

}  // namespace ruda::native::cuda
