#include "guard.h"

#include "allocator.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

namespace ruda_torch {

namespace {

int64_t now_ns() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// When an event was last recorded. Synchronous streams have done their work by then.
struct Moment {
  std::atomic<int64_t> ns{0};
};

class RudaGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kRuda; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check_device(device);
    return getDevice();
  }
  c10::Device getDevice() const override { return c10::Device(kRuda, 0); }
  void setDevice(c10::Device device) const override { check_device(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    check_device(device);
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto type :
         {c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long,
          c10::kIndex_Half, c10::kIndex_Float, c10::kIndex_Double, c10::kIndex_ComplexFloat,
          c10::kIndex_ComplexDouble, c10::kIndex_Bool, c10::kIndex_BFloat16}) {
      capability.capability_data.capability_bits |= uint64_t{1} << type;
    }
    return capability;
  }

  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    check_device(device);
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    check_device(device);
    return shared_stream();
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    check_device(device);
    return acquire_stream(priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }

  // A stream of the host target has no handle below it; null is the current stream in the C
  // interface, and every stream runs there.
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    check_device(c10::Device(kRuda, index));
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment();
    static_cast<Moment*>(*event)->ns.store(now_ns());
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(first != nullptr && second != nullptr,
                      "[elapsed_time] both events must have been recorded");
    const int64_t ns = static_cast<Moment*>(second)->ns.load() -
                       static_cast<Moment*>(first)->ns.load();
    return static_cast<double>(ns) / 1e6;
  }

  void recordDataPtrOnStream(const c10::DataPtr& pointer,
                             const c10::Stream& stream) const override {
    ruda_allocator()->recordStream(pointer, stream);
  }

 private:
  static void check_device(c10::Device device) {
    TORCH_CHECK_VALUE(device.type() == kRuda, "[ruda] device: got ", device, ", wanted ruda");
    TORCH_CHECK_VALUE(device.index() <= 0, "[ruda] device index: got ",
                      static_cast<int>(device.index()), ", wanted 0 (there is one device)");
  }
};

}  // namespace

void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(kRuda, new RudaGuard());
}

}  // namespace ruda_torch
