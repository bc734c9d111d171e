// The packed arguments of a launch, read as the kernel's description says and checked.
#pragma once

#include "modules.hpp"

namespace driver_double {

// Where a launch is only checked, its arguments go to an array of this length.
inline constexpr size_t most_recorded = 64;

// Fills `values` (of `room`) with one argument each. Without a description nothing is read.
CUresult decode_arguments(const char* call, function& what, void** parameters, void** extra,
                          uint64_t* values, size_t room);

// The same checks for arguments that were read before.
CUresult check_values(const char* call, function& what, const uint64_t* values);

}  // namespace driver_double
