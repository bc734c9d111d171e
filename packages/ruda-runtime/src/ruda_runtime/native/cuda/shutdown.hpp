// The end of the cuda target.
#pragma once

namespace ruda::native::cuda {

// The interpreter ends: waits for the work in flight, prints an error that nobody asked for, and gives
// modules, streams and the pool back. Tensors and events that end later do nothing.
void shut_down() noexcept;

}  // namespace ruda::native::cuda
