// The link to the process that interprets kernels.
#pragma once

#include "launch.hpp"
#include "memory.hpp"

namespace driver_double {

class server_link {
 public:
  static server_link& get();

  // What the server checks pointers against, in the device's order.
  void allocated(const allocation& of);
  void freed(const allocation& of);

  // Runs the kernel; returns when it is done.
  CUresult launch(const kernel_operation& what, const stream& on);
};

}  // namespace driver_double
