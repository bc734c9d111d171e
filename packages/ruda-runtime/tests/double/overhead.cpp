// The cost of a recorded launch with ten arguments among a thousand allocations: the best of
// several rounds, in nanoseconds.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

void* library = nullptr;

template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  int code = function != nullptr ? function(arguments...) : -1;
  if (code == 0) return;
  auto report = reinterpret_cast<const char* (*)()>(dlsym(library, "ruda_double_last_report"));
  std::fprintf(stderr, "%s: %d %s\n", name, code, report());
  std::exit(1);
}

const char image[] =
    ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, "
    ".param .u64 d, .param .u32 e, .param .u32 f, .param .u64 g, .param .f32 h, .param .u64 i, "
    ".param .u64 j)\n{ ret; }\n";

// The digest is that of the text above: without it the kernel would have no parameters to ask for.
std::string description(const std::string& digest) {
  std::string parameters;
  for (const char* each :
       {"*fp32 a", "*fp32 b", "*bf16 c", "*fp32 d", "i32 e", "i32 f", "i64 g", "fp32 h"}) {
    std::string text = each;
    size_t space = text.find(' ');
    parameters += std::string(parameters.empty() ? "" : ", ") + "{\"name\": \"" +
                  text.substr(space + 1) + "\", \"type\": \"" + text.substr(0, space) + "\"}";
  }
  return "{\"image\": \"" + digest +
         "\", \"entry\": \"k\", \"function\": \"m:k\", \"parameters\": [" + parameters +
         "], \"divisible_by_16\": [\"a\", \"b\", \"c\", \"d\"], \"scratch_pointers\": 2}";
}

}  // namespace

int main(int, char** arguments) {
  library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  void *context = nullptr, *stream = nullptr, *module = nullptr, *kernel = nullptr;
  call("cuInit", 0u);
  call("cuDevicePrimaryCtxRetain", &context, 0);
  call("cuCtxSetCurrent", context);
  call("cuStreamCreate", &stream, 1u);
  call("ruda_double_describe",
       description("aaf72723734423e163031ec9145cc0cbac37f37dd61ef9256ba4d1a90f0ed884").c_str());
  call("cuModuleLoadData", &module, static_cast<const void*>(image));
  call("cuModuleGetFunction", &kernel, module, "k");
  size_t offset = 0, size = 0;
  call("cuFuncGetParamInfo", kernel, size_t{9}, &offset, &size);
  std::vector<uint64_t> blocks(1000);
  for (uint64_t& each : blocks) call("cuMemAllocAsync", &each, size_t{4096}, stream);
  int rows = 128, columns = 64;
  uint64_t stride = 64, none = 0;
  float epsilon = 1e-5f;
  void* values[] = {&blocks[10], &blocks[300], &blocks[600], &blocks[999], &rows,
                    &columns,    &stride,      &epsilon,     &none,        &none};
  using launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void*, void**, void**);
  auto launch_kernel = reinterpret_cast<launch>(dlsym(library, "cuLaunchKernel"));
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    constexpr int count = 10000;
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      if (launch_kernel(kernel, 8, 1, 1, 128, 1, 1, 0, stream, values, nullptr) != 0) {
        call("cuLaunchKernel", kernel, 8u, 1u, 1u, 128u, 1u, 1u, 0u, stream,
             static_cast<void**>(values), static_cast<void**>(nullptr));
      }
    }
    std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / count);
  }
  std::printf("%.1f\n", best);
  return 0;
}
