#include "arguments.hpp"

#include "memory.hpp"
#include "reports.hpp"

#include <cinttypes>
#include <cstring>

namespace driver_double {
namespace {

// The list that `extra` may be: pairs of a key and a pointer, ended by null.
constexpr uintptr_t buffer_pointer = 1, buffer_size = 2;

CUresult check_pointer(const char* call, const function& what, const packed_parameter& argument,
                       uint64_t value) {
  if (value == 0) return CUDA_SUCCESS;
  allocation_ref found = find_allocation(value);
  if (found == nullptr) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[%s] kernel %s, argument %s (%s): 0x%" PRIx64 " is in no allocation", call,
                  what.name.c_str(), argument.name.c_str(), argument.type.c_str(), value);
  }
  if (found->freed) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_VALUE,
                  "[%s] kernel %s, argument %s (%s): 0x%" PRIx64
                  ": use after free of %s, freed by %s",
                  call, what.name.c_str(), argument.name.c_str(), argument.type.c_str(), value,
                  found->describe().c_str(), found->freed_by.c_str());
  }
  if (found->is == allocation::kind::registered) [[unlikely]] {
    return report(CUDA_ERROR_NOT_SUPPORTED,
                  "[%s] kernel %s, argument %s (%s): 0x%" PRIx64
                  " is registered host memory, which "
                  "interpreted kernels cannot reach: use cuMemHostAlloc",
                  call, what.name.c_str(), argument.name.c_str(), argument.type.c_str(), value);
  }
  return CUDA_SUCCESS;
}

CUresult check_argument(const char* call, const function& what, const packed_parameter& argument,
                        uint64_t value) {
  if (argument.pointer) {
    if (CUresult code = check_pointer(call, what, argument, value); code != CUDA_SUCCESS)
      return code;
  } else if (argument.bytes == 8 && argument.type[0] == 'i' && value != 0 &&
             is_device_address(value)) [[unlikely]] {
    if (find_allocation(value) != nullptr) {
      return report(CUDA_ERROR_INVALID_VALUE,
                    "[%s] kernel %s, argument %s (%s) is 0x%" PRIx64
                    ", a device address: the "
                    "arguments do not match the kernel's",
                    call, what.name.c_str(), argument.name.c_str(), argument.type.c_str(), value);
    }
  }
  if (argument.divisible_by_16 && value % 16 != 0) [[unlikely]] {
    return report(argument.pointer ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_INVALID_VALUE,
                  "[%s] kernel %s, argument %s (%s) is 0x%" PRIx64 ", compiled for multiples of 16",
                  call, what.name.c_str(), argument.name.c_str(), argument.type.c_str(), value);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult check_values(const char* call, function& what, const uint64_t* values) {
  const description* described = what.described();
  if (described == nullptr) return CUDA_SUCCESS;
  for (size_t i = 0; i < described->packed.size(); ++i) {
    CUresult code = check_argument(call, what, described->packed[i], values[i]);
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

CUresult decode_arguments(const char* call, function& what, void** parameters, void** extra,
                          uint64_t* values, size_t room) {
  const description* described = what.described();
  if (parameters != nullptr && extra != nullptr) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: both kernelParams and extra are given",
                  call, what.name.c_str());
  }
  const char* buffer = nullptr;
  size_t size = 0;
  for (void** pair = extra; pair != nullptr && *pair != nullptr; pair += 2) {
    auto key = reinterpret_cast<uintptr_t>(pair[0]);
    if (key == buffer_pointer) buffer = static_cast<const char*>(pair[1]);
    if (key == buffer_size) size = *static_cast<const size_t*>(pair[1]);
  }
  if (described == nullptr) return CUDA_SUCCESS;
  const auto& packed = described->packed;
  if (packed.size() > room) {
    return report(CUDA_ERROR_NOT_SUPPORTED, "[%s] kernel %s: more than %zu arguments", call,
                  what.name.c_str(), room);
  }
  if (!packed.empty() && parameters == nullptr && buffer == nullptr) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] kernel %s: no arguments, wanted %zu", call,
                  what.name.c_str(), packed.size());
  }
  size_t at = 0;
  for (size_t i = 0; i < packed.size(); ++i) {
    const packed_parameter& argument = packed[i];
    const void* source = nullptr;
    if (parameters != nullptr) {
      source = parameters[i];
    } else {
      at = (at + argument.bytes - 1) / argument.bytes * argument.bytes;
      if (at + argument.bytes <= size) source = buffer + at;
      at += argument.bytes;
    }
    if (source == nullptr) [[unlikely]] {
      return report(
          CUDA_ERROR_INVALID_VALUE,
          "[%s] kernel %s: argument %zu (%s, %s) is missing: wanted %zu arguments, %u and "
          "the scratch pointers",
          call, what.name.c_str(), i, argument.name.c_str(), argument.type.c_str(), packed.size(),
          described->parameters);
    }
    uint64_t value = 0;
    std::memcpy(&value, source, argument.bytes);
    if (CUresult code = check_argument(call, what, argument, value); code != CUDA_SUCCESS) {
      return code;
    }
    values[i] = value;
  }
  if (buffer != nullptr && (at + 7) / 8 != (size + 7) / 8) {
    return report(
        CUDA_ERROR_INVALID_VALUE,
        "[%s] kernel %s: the packed arguments have %zu bytes, wanted %zu for %zu arguments "
        "(scratch pointers included)",
        call, what.name.c_str(), size, at, packed.size());
  }
  return CUDA_SUCCESS;
}

}  // namespace driver_double
