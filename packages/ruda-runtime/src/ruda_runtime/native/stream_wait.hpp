// Waiting for a point of a stream's work, which is what events are made of.
#pragma once

#include <ruda/abi.h>

#include <cstdint>

namespace ruda::native {

// On the host; then hands over the error of the work up to there that nobody was told of.
int32_t wait_until(int32_t id, uint64_t number, ruda_error* error) noexcept;

// On the host, without taking errors.
void wait_for_completion(int32_t id, uint64_t number) noexcept;

// In the queue of stream `id`: its later work begins after task `number` of `other`.
int32_t wait_for_work(int32_t id, int32_t other, uint64_t number, ruda_error* error) noexcept;

}  // namespace ruda::native
