// Device kernels: their parameters, what an argument list promises the compiler, and the plans made for it.
//
// A kernel has one plan for each specialisation: the dtypes, the constants, the integers that are 1 where
// the kernel asks for it, and whether all pointers and all integers that ask for it are divisible by 16
// (all or none: two machine codes, not one for every mixture). It is computed from the arguments of every
// launch, so that an offset view never meets code that was promised an aligned one.
#pragma once

#include <ruda/abi.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "modules.hpp"
#include "types.hpp"

namespace ruda::native::cuda {

constexpr int32_t max_parameters = 64;
constexpr uint64_t promised_alignment = 16;

enum class parameter_type : uint8_t { pointer, integer, real, boolean, constant };

struct parameter {
  std::string name;
  parameter_type type = parameter_type::pointer;
  int32_t bits = 64;
  bool is_signed = true;
  uint32_t dtypes = 0;     // of a pointer: bit i allows enum ruda_dtype i
  bool optional = false;   // a pointer that may be absent
  bool divisible = false;  // whether divisibility by 16 is passed to the compiler
  bool one = false;        // whether the value 1 becomes a constant
};

// What is known of one argument.
struct fact {
  bool absent = false;
  bool divisible = false;
  bool one = false;
  int32_t dtype = 0;
};

struct constant {
  int32_t kind = RUDA_ARGUMENT_NONE;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  bool operator==(const constant&) const = default;
};

}  // namespace ruda::native::cuda

struct ruda_plan {
  const ruda_device_kernel* kernel = nullptr;
  ruda::native::cuda::CUfunction function = nullptr;
  uint32_t threads = 128;
  uint32_t shared_bytes = 0;
  bool cooperative = false;
  std::vector<uint8_t> passed;                         // parameters that the function takes, in order
  std::vector<ruda::native::cuda::fact> promises;      // one a parameter
  std::vector<ruda::native::cuda::constant> constants;  // one a parameter
  // Trailing pointers of Triton's kernels: memory for the whole grid and for its profiler.
  int32_t scratch_pointers = 0;
  uint64_t scratch_bytes = 0;  // a program
  uint64_t profile_bytes = 0;
};

struct ruda_device_kernel {
  std::string name;
  std::vector<ruda::native::cuda::parameter> parameters;
  bool cooperative = false;

  mutable std::atomic<int64_t> launches{0};
  mutable std::atomic<int64_t> hits{0};  // launches whose plan was there

  mutable std::shared_mutex mutex;
  mutable std::unordered_map<std::string, std::unique_ptr<ruda_plan>> plans;  // by key
};

namespace ruda::native::cuda {

// Makes the plan of a specialisation that has none yet: compiles, or loads from a cache or a bundle.
using plan_resolver = int32_t (*)(const ruda_device_kernel& kernel,
                                  const std::vector<fact>& facts,
                                  const std::vector<constant>& constants,
                                  const ruda_launch_options& options,
                                  std::unique_ptr<ruda_plan>* plan, ruda_error* error);
void set_plan_resolver(plan_resolver resolver) noexcept;
// Called once, when a kernel is asked for that nobody has defined yet.
void set_kernel_finder(void (*finder)()) noexcept;

// Kernels live as long as the process. A name belongs to one kernel.
int32_t define_kernel(std::unique_ptr<ruda_device_kernel> added, const ruda_device_kernel** kernel,
                      ruda_error* error) noexcept;

// The functions of ruda_api.
const ruda_device_kernel* find_device_kernel(const char* name, ruda_error* error) noexcept;
int32_t find_plan(const ruda_device_kernel* kernel, const ruda_argument* arguments, int32_t count,
                  const ruda_launch_options* options, const ruda_plan** plan,
                  ruda_error* error) noexcept;
int32_t launch_plan(const ruda_plan* plan, const ruda_argument* arguments, int32_t count,
                    const uint32_t grid[3], ruda_stream stream, ruda_error* error) noexcept;
int32_t launch_device(const ruda_device_kernel* kernel, const ruda_argument* arguments,
                      int32_t count, const ruda_launch_options* options, const uint32_t grid[3],
                      ruda_stream stream, ruda_error* error) noexcept;

// The parts of a launch, for the functions above (specialize.cpp, launch.cpp).

// Checks the arguments and writes the key of their specialisation.
int32_t write_key(const ruda_device_kernel& kernel, const ruda_argument* arguments, int32_t count,
                  const ruda_launch_options& options, std::string& key, ruda_error* error);
fact fact_of(const parameter& wanted, const ruda_argument& given) noexcept;
// Divisibility is promised for all or for none.
void settle_alignment(const ruda_device_kernel& kernel, std::vector<fact>& facts);
constant constant_of(const ruda_argument& given);
// The arguments keep what the plan's code was promised.
int32_t check_promises(const ruda_plan& plan, const ruda_argument* arguments, int32_t count,
                       ruda_error* error);
// Launches with arguments that were checked.
int32_t submit_launch(const ruda_plan& plan, const ruda_argument* arguments, const uint32_t grid[3],
                      ruda_stream stream, ruda_error* error) noexcept;

}  // namespace ruda::native::cuda
