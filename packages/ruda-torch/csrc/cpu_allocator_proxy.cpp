#include "cpu_allocator_proxy.h"

#include "allocator.h"
#include "cuda/target.h"
#include "runtime.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace ruda_torch {

namespace {

thread_local bool t_inside = false;

c10::Allocator* g_original = nullptr;

class CpuAllocatorProxy final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (!t_inside) return g_original->allocate(nbytes);
    void* pointer = pool_allocate(nbytes);
    return {pointer, pointer, &pool_release, c10::Device(c10::kCPU)};
  }

  // For raw_allocate and raw_deallocate, whose pointers may come from either side.
  c10::DeleterFnPtr raw_deleter() const override {
    return g_original->raw_deleter() == nullptr ? nullptr : &release;
  }

  void copy_data(void* target, const void* source, size_t count) const override {
    g_original->copy_data(target, source, count);
  }

 private:
  static void release(void* pointer) {
    if (pool_owns(pointer)) {
      pool_release(pointer);
    } else {
      g_original->raw_deleter()(pointer);
    }
  }
};

}  // namespace

void install_cpu_allocator_proxy() {
  if (g_original != nullptr) return;
  g_original = c10::GetCPUAllocator();
  static auto* proxy = new CpuAllocatorProxy();
  constexpr uint8_t kPriority = 1;  // above the default allocator's 0
  c10::SetCPUAllocator(proxy, kPriority);
  TORCH_CHECK(c10::GetCPUAllocator() == proxy, "[ruda_torch] another library holds the CPU "
              "allocator with a higher priority; import ruda_torch before it");
}

bool inside_ruda() { return t_inside; }

InsideRuda::InsideRuda() : before_(t_inside) { t_inside = !on_cuda(); }

InsideRuda::~InsideRuda() { t_inside = before_; }

}  // namespace ruda_torch
