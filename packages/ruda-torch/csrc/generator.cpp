#include "generator.h"

#include "runtime.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace ruda_torch {

namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

c10::DeviceIndex checked_index(c10::DeviceIndex index) {
  TORCH_CHECK_VALUE(index <= 0, "[generator] device index: got ", static_cast<int>(index),
                    ", wanted 0 (there is one device)");
  return 0;
}

}  // namespace

RudaGenerator::RudaGenerator(c10::DeviceIndex index)
    : RudaGenerator(index, c10::make_intrusive<PhiloxState>()) {}

RudaGenerator::RudaGenerator(c10::DeviceIndex index, c10::intrusive_ptr<PhiloxState> state)
    : c10::GeneratorImpl(c10::Device(kRuda, checked_index(index)),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::move(state)) {}

void RudaGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

void RudaGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(offset % 4 == 0, "[generator] offset: got ", offset,
                    ", wanted a multiple of 4 (one counter gives four numbers)");
  state_->offset = offset;
}

uint64_t RudaGenerator::get_offset() const { return state_->offset; }

uint64_t RudaGenerator::current_seed() const { return state_->seed; }

uint64_t RudaGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void RudaGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK_VALUE(state.numel() == static_cast<int64_t>(kStateBytes),
                    "[generator] state: got ", state.numel(), " bytes, wanted ", kStateBytes,
                    " (seed and offset)");
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  set_offset(words[1]);
  state_->seed = words[0];
}

c10::intrusive_ptr<c10::TensorImpl> RudaGenerator::get_state() const {
  at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::kByte);
  const uint64_t words[2] = {state_->seed, state_->offset};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void RudaGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto* generator = dynamic_cast<RudaGenerator*>(other.get());
  TORCH_CHECK_TYPE(generator != nullptr, "[generator] graphsafe_set_state: got a generator of another device, "
                   "wanted one of ruda");
  state_ = generator->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> RudaGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<RudaGenerator>(device().index(), state_);
}

PhiloxRange RudaGenerator::reserve(uint64_t count) {
  const PhiloxRange range{state_->seed, state_->offset};
  state_->offset += (count + 3) / 4 * 4;
  return range;
}

RudaGenerator* RudaGenerator::clone_impl() const {
  auto state = c10::make_intrusive<PhiloxState>();
  state->seed = state_->seed;
  state->offset = state_->offset;
  return new RudaGenerator(device().index(), std::move(state));
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  checked_index(index);
  static const auto* generator = new at::Generator(at::make_generator<RudaGenerator>(0));
  return *generator;
}

PhiloxRange reserve_random(const std::optional<at::Generator>& generator, uint64_t count) {
  auto* impl = at::get_generator_or_default<RudaGenerator>(generator, default_generator(0));
  std::lock_guard<std::mutex> lock(impl->mutex_);
  return impl->reserve(count);
}

}  // namespace ruda_torch
