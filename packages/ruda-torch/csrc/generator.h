// The device's random generator: Philox, whose whole state is a seed and an offset.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

namespace ruda_torch {

struct PhiloxState : c10::intrusive_ptr_target {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

// Where a random operator's numbers begin: its element i uses the counter `offset + ...` of `seed`.
struct PhiloxRange {
  uint64_t seed;
  uint64_t offset;
};

class RudaGenerator final : public c10::GeneratorImpl {
 public:
  explicit RudaGenerator(c10::DeviceIndex index);
  RudaGenerator(c10::DeviceIndex index, c10::intrusive_ptr<PhiloxState> state);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override;  // and offset 0
  void set_offset(uint64_t offset) override;      // a multiple of 4
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;  // a new one from the system
  // The state is 16 bytes of uint8: seed, then offset, as on CUDA.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // By reference: the two generators share one state afterwards.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // Takes `count` numbers and moves the offset past them (up to the next multiple of 4). The caller
  // holds `mutex_`.
  PhiloxRange reserve(uint64_t count);

 private:
  RudaGenerator* clone_impl() const override;

  c10::intrusive_ptr<PhiloxState> state_;
};

// The default generator of the device.
const at::Generator& default_generator(c10::DeviceIndex index);

// Reserves `count` numbers of `generator`, or of the default generator, under its mutex. A generator
// of another device is an error.
PhiloxRange reserve_random(const std::optional<at::Generator>& generator, uint64_t count);

}  // namespace ruda_torch
