// The device's allocator: ruda-runtime's pool behind PyTorch's DeviceAllocator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <functional>
#include <utility>

namespace ruda_torch {

// The one allocator of `ruda` storages (static lifetime).
c10::DeviceAllocator* ruda_allocator();

// How to learn the device's free and total bytes. Once, at import.
void on_memory_info(std::function<std::pair<size_t, size_t>()> query);

// Takes a block of the pool; throws torch.OutOfMemoryError with the sizes. 0 bytes give null.
void* pool_allocate(size_t nbytes);

// The deleter of every block of the pool, whatever device its storage says it is on.
void pool_release(void* pointer);

// True for the start of a live block of the pool.
bool pool_owns(const void* pointer);

// A new, resizable ruda storage of `nbytes` uninitialised bytes.
c10::Storage make_storage(size_t nbytes);

// Gives `storage` a new size, keeping the bytes both sizes have.
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace ruda_torch
