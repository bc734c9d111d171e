// Pinned host memory: page-locked by the driver once the device is in use on the cuda target. On the
// host target every byte is reachable by the device, so that pinning is a mark; the mark is kept so that
// programs which ask for pinned memory behave the same.
#pragma once

#include <c10/core/Allocator.h>

namespace ruda_torch {

// The allocator of tensors made with pin_memory=True.
c10::Allocator* pinned_allocator();

// True for an address inside a live block of that allocator.
bool is_pinned_pointer(const void* pointer);

// Makes the allocator known as the host allocator of `ruda`.
void register_pinned_allocator();

}  // namespace ruda_torch
