// Slow work on a stream of the CUDA driver, made of copies and a host function, so that it needs no
// kernel: x += addend on `count` floats, after some milliseconds. Tests only.
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace {

struct work {
  float* values;
  int64_t count;
  double addend;
  int64_t milliseconds;
};

template <class Function>
Function* find(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

void compute(void* given) {
  const auto* self = static_cast<work*>(given);
  std::this_thread::sleep_for(std::chrono::milliseconds(self->milliseconds));
  for (int64_t i = 0; i < self->count; ++i) self->values[i] += static_cast<float>(self->addend);
  delete self;  // the values stay until the process ends: the copy behind reads them
}

}  // namespace

// 0, or the driver's code.
extern "C" __attribute__((visibility("default"))) int probe_slow_on_device(
    void* stream, uint64_t address, int64_t count, int64_t milliseconds, double addend) {
  using pointer = unsigned long long;
  const auto allocate = find<int(void**, size_t, unsigned)>("cuMemHostAlloc");
  const auto read = find<int(void*, pointer, size_t, void*)>("cuMemcpyDtoHAsync_v2");
  const auto call = find<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
  const auto write = find<int(pointer, const void*, size_t, void*)>("cuMemcpyHtoDAsync_v2");
  if (allocate == nullptr || read == nullptr || call == nullptr || write == nullptr) return -1;
  void* values = nullptr;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (const int code = allocate(&values, bytes, 0); code != 0) return code;
  if (const int code = read(values, address, bytes, stream); code != 0) return code;
  auto* self = new work{static_cast<float*>(values), count, addend, milliseconds};
  if (const int code = call(stream, compute, self); code != 0) return code;
  return write(address, values, bytes, stream);
}
