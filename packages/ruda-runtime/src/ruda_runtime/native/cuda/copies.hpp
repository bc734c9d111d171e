// Copies between host and device memory, in the order of a stream.
//
// Ordinary (pageable) host memory is free again when a call returns: small copies go through page-locked
// memory, large ones wait. Page-locked memory of pinned.hpp is copied asynchronously.
#pragma once

#include <ruda/abi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ruda::native::cuda {

int32_t upload(void* to, const void* from, size_t bytes, int32_t stream, ruda_error* error) noexcept;
// Returns when `to` is written, unless it is page-locked and dispatch is asynchronous.
int32_t download(void* to, const void* from, size_t bytes, int32_t stream,
                 ruda_error* error) noexcept;
int32_t copy_on_device(void* to, const void* from, size_t bytes, int32_t stream,
                       ruda_error* error) noexcept;
int32_t fill(void* to, uint8_t value, size_t bytes, int32_t stream, ruda_error* error) noexcept;

// Elements of a strided source on the device to row-major memory on the device.
int32_t gather(void* to, const void* from, const std::vector<int64_t>& sizes,
               const std::vector<int64_t>& strides, int64_t item, int32_t stream,
               ruda_error* error) noexcept;

}  // namespace ruda::native::cuda
