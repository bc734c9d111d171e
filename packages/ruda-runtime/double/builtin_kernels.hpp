// Kernels that need no interpreter: for stress tests of everything around a launch. A description
// names them as its function, "double:fill" and the like; their elements are 64-bit integers.
#pragma once

#include "streams.hpp"

#include <string>

namespace driver_double {

// Gets the arguments in the order of the description, one in each value.
using builtin_kernel = CUresult (*)(const uint64_t* values);

struct builtin {
  builtin_kernel run;
  unsigned arguments;
};

// double:fill(x, count, value)                x = value
// double:copy(to, from, count)                to = from
// double:add(x, y, count, length, factor)     x[i] = factor * x[i] + y[i % length]
// Null where the function is none of them.
const builtin* find_builtin(const std::string& function);

}  // namespace driver_double
