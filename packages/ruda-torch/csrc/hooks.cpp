#include "hooks.h"

#include "allocator.h"
#include "generator.h"
#include "pinned.h"
#include "runtime.h"
#include "state.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace ruda_torch {

namespace {

class RudaHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !in_bad_fork(); }  // the host target needs no device
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  // Pinning memory calls this in programs that never use the device: nothing to do before the first
  // tensor, which takes the device into use itself.
  void init() const override {}

  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_index(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_index(index);
    return 0;
  }
  // A negative index means: leave the device as it is.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    if (index >= 0) check_index(index);
    return 0;
  }

  bool isPinnedPtr(const void* pointer) const override { return is_pinned_pointer(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  // Any host address is the device's on the host target.
  c10::Device getDeviceFromPtr(void*) const override { return c10::Device(kRuda, 0); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<RudaGenerator>(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }

 private:
  static void check_index(c10::DeviceIndex index) {
    TORCH_CHECK_VALUE(index == 0, "[ruda] device index: got ", static_cast<int>(index),
                      ", wanted 0 (there is one device)");
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new RudaHooks()); }

}  // namespace ruda_torch
