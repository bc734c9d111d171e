#include "guard.h"

#include "allocator.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace ruda_torch {

namespace {

int32_t number(const c10::Stream& stream) { return static_cast<int32_t>(stream.id()); }

// Calls a function of ruda-runtime that reports by an error.
template <class Call>
void checked(Call&& call) {
  ruda_error error{};
  check(call(&error), error);
}

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

  // The handle as ruda_api::launch takes it.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return api()->stream_handle(number(stream));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return api()->query_stream(number(stream)) != 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    checked([&](ruda_error* error) { return api()->synchronize(number(stream), error); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    check_device(c10::Device(kRuda, index));
    checked([&](ruda_error* error) { return api()->synchronize(-1, error); });
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = api()->create_event(flag == c10::EventFlag::BACKEND_DEFAULT);
    TORCH_CHECK_WITH(OutOfMemoryError, *event != nullptr, "[record] out of memory for an event");
    checked([&](ruda_error* error) {
      return api()->record_event(*event, number(stream), error);
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    checked([&](ruda_error* error) { return api()->wait_event(number(stream), event, error); });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || api()->query_event(event) != 0;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    checked([&](ruda_error* error) { return api()->synchronize_event(event, error); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) api()->destroy_event(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(first != nullptr && second != nullptr,
                      "[elapsed_time] both events must have been recorded");
    double milliseconds = 0;
    checked([&](ruda_error* error) {
      return api()->elapsed_time(first, second, &milliseconds, error);
    });
    return milliseconds;
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
