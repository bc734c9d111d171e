// Kernel launches: checks, decoding of the packed arguments, and the work that a stream gets.
#pragma once

#include "modules.hpp"
#include "streams.hpp"

#include <array>
#include <functional>

namespace driver_double {

struct launch_shape {
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared = 0;
  bool cooperative = false;
};

struct kernel_operation final : operation {
  kernel_operation(function& launched, const launch_shape& how, std::vector<uint64_t> decoded)
      : operation(type::kernel), what(&launched), shape(how), values(std::move(decoded)) {}
  CUresult run(stream& on) override;
  void addresses(const std::function<void(uint64_t)>& each) const override;

  function* what;
  launch_shape shape;
  std::vector<uint64_t> values;  // one packed argument each, in the low bytes
  std::vector<void*> pointers;   // to the values; made when a node's parameters are asked for
};

// Checks a launch and makes its work. With `extra` null, `parameters` holds one pointer an
// argument.
CUresult make_launch(const char* call, function* what, const launch_shape& shape, void** parameters,
                     void** extra, std::shared_ptr<kernel_operation>* out);

}  // namespace driver_double
