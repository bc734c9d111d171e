#pragma once

namespace ruda_torch {

// Registers what ATen asks of an accelerator that is not about streams: availability, generators,
// pinned memory, storage resizing.
void register_hooks();

}  // namespace ruda_torch
