// One memory under two devices. On the host target the CPU is the device: a CPU tensor over the
// memory of a ruda tensor lets ATen's kernels work on it, and their results become ruda tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace ruda_torch {

// A CPU tensor over the memory of `ruda`, which it keeps alive: same sizes, strides, offset, dtype,
// conjugate and negative bits and wrapped-number mark. Its storage can be resized; sync_alias()
// then moves the new memory back. It has no autograd history.
at::Tensor alias_as_cpu(const at::Tensor& ruda);

// The ruda storage of a CPU storage: its memory moves (the CPU storage then borrows it) when it came
// from our pool, and is copied into the pool otherwise. The storage of an alias gives back the
// storage it was made from.
c10::Storage adopt_storage(const c10::Storage& cpu);

// A ruda tensor with the memory of `cpu`, which stays usable and shares it.
at::Tensor adopt_as_ruda(const at::Tensor& cpu);

// After a kernel wrote `alias` = alias_as_cpu(ruda): gives `ruda` the alias's sizes and strides, and
// its memory if the kernel had to resize it.
void sync_alias(const at::Tensor& ruda, const at::Tensor& alias);

}  // namespace ruda_torch
