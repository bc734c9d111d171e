#include "cuda_stress_kernels.hpp"

#include <memory>
#include <vector>

#include <ruda/device.hpp>

#include "../../double/sha256.hpp"
#include "cuda/kernel.hpp"

namespace stress {
namespace {

namespace cuda = ruda::native::cuda;

std::vector<const ruda_device_kernel*> kernels;

struct declared {
  const char* function;
  std::vector<const char*> pointers, integers;
  int32_t scratch;  // memory of a launch, so that it is allocated and freed with each
};

const declared table[] = {
    {"double:fill", {"x"}, {"count", "value"}, 0},
    {"double:copy", {"to", "from"}, {"count"}, 0},
    {"double:add", {"x", "y"}, {"count", "length", "factor"}, 1},
};

const declared& declaration_of(const ruda_device_kernel& kernel) {
  for (const declared& each : table)
    if (kernel.name == each.function) return each;
  std::abort();
}

// What a compiler would give for the specialisation: an image, and its description for the double.
cuda::image image_of(const ruda_device_kernel& kernel, const std::vector<cuda::fact>& facts,
                     const declared& from, int32_t warps) {
  const size_t count = kernel.parameters.size() + static_cast<size_t>(from.scratch);
  cuda::image made;
  made.entry = kernel.name.substr(kernel.name.find(':') + 1) + std::to_string(warps);
  made.bytes = ".version 8.0\n.target sm_80\n.visible .entry " + made.entry + "(";
  for (size_t i = 0; i < count; ++i)
    made.bytes += std::string(i == 0 ? "" : ", ") + ".param .u64 p" + std::to_string(i);
  made.bytes += ")\n{ ret; }\n";
  made.hash = driver_double::sha256(made.bytes);
  std::string parameters, aligned;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const std::string& name = kernel.parameters[i].name;
    const bool pointer = kernel.parameters[i].type == cuda::parameter_type::pointer;
    parameters += std::string(i == 0 ? "" : ", ") + R"({"name": ")" + name + R"(", "type": ")" +
                  (pointer ? "*i64" : "i64") + R"("})";
    if (facts[i].divisible) aligned += (aligned.empty() ? "\"" : ", \"") + name + "\"";
  }
  made.description = R"({"image": ")" + made.hash + R"(", "entry": ")" + made.entry +
                     R"(", "function": ")" + kernel.name + R"(", "parameters": [)" + parameters +
                     R"(], "divisible_by_16": [)" + aligned + R"(], "scratch_pointers": )" +
                     std::to_string(from.scratch) + R"(, "num_warps": )" + std::to_string(warps) +
                     "}";
  return made;
}

int32_t resolve(const ruda_device_kernel& kernel, const std::vector<cuda::fact>& facts,
                const std::vector<cuda::constant>&, const ruda_launch_options& options,
                std::unique_ptr<ruda_plan>* plan, ruda_error* error) {
  const declared& from = declaration_of(kernel);
  auto made = std::make_unique<ruda_plan>();
  made->kernel = &kernel;
  made->threads = static_cast<uint32_t>(options.num_warps) * 32;
  for (size_t i = 0; i < facts.size(); ++i) made->passed.push_back(static_cast<uint8_t>(i));
  made->promises = facts;
  made->scratch_pointers = from.scratch;
  made->scratch_bytes = from.scratch != 0 ? 64 : 0;
  RUDA_TRY(cuda::load_function(image_of(kernel, facts, from, options.num_warps),
                               kernel.name.c_str(), &made->function, error));
  *plan = std::move(made);
  return RUDA_OK;
}

std::string define(const declared& from) {
  auto made = std::make_unique<ruda_device_kernel>();
  made->name = from.function;
  for (const char* name : from.pointers)
    made->parameters.push_back({name, cuda::parameter_type::pointer, 64, true, 1u << RUDA_INT64});
  for (const char* name : from.integers)
    made->parameters.push_back({name, cuda::parameter_type::integer});
  ruda_error error{};
  const ruda_device_kernel* kernel = nullptr;
  if (cuda::define_kernel(std::move(made), &kernel, &error) != RUDA_OK) return error.message;
  kernels.push_back(kernel);
  return "";
}

ruda_launch_options any_options(std::mt19937_64& random) {
  return {1 << static_cast<int32_t>(random() % 4), 0};
}

ruda_argument address(const void* data) { return ruda::pointer(data, RUDA_INT64); }

ruda_argument number(uint64_t value) { return ruda::integer(static_cast<int64_t>(value)); }

}  // namespace

std::string define_kernels() {
  cuda::set_plan_resolver(resolve);
  for (const declared& each : table)
    if (std::string problem = define(each); !problem.empty()) return problem;
  return "";
}

int64_t launches() {
  int64_t sum = 0;
  for (const ruda_device_kernel* each : kernels) sum += each->launches.load();
  return sum;
}

int32_t fill(uint64_t* x, int64_t count, uint64_t value, std::mt19937_64& random,
             ruda_error* error) {
  static ruda::device_kernel kernel{"double:fill"};
  return kernel.launch({1}, any_options(random), error, address(x), ruda::integer(count),
                       number(value));
}

int32_t copy(uint64_t* to, const uint64_t* from, int64_t count, std::mt19937_64& random,
             ruda_error* error) {
  static ruda::device_kernel kernel{"double:copy"};
  return kernel.launch({1}, any_options(random), error, address(to), address(from),
                       ruda::integer(count));
}

int32_t add(uint64_t* x, const uint64_t* y, int64_t count, int64_t length, uint64_t factor,
            std::mt19937_64& random, ruda_error* error) {
  static ruda::device_kernel kernel{"double:add"};
  return kernel.launch({1}, any_options(random), error, address(x), address(y),
                       ruda::integer(count), ruda::integer(length), number(factor));
}

}  // namespace stress
