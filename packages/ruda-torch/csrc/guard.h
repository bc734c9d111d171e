#pragma once

namespace ruda_torch {

// Registers the device guard: devices, streams and events of `ruda` for all of PyTorch.
void register_guard();

}  // namespace ruda_torch
