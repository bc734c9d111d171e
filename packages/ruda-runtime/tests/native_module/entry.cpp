// A package's native module in small: a kernel with two variants, its binding, its own exceptions.

#include <ruda/python.hpp>

#include "host.hpp"

namespace py = pybind11;

namespace {

RUDA_ARGUMENTS(scale_args, const ruda_view* x; double factor;)

int32_t scale_entry(const void* raw, ruda_error* error) {
  return ruda::guard("example.scale", error, [&]() -> int32_t {
    const auto& args = *static_cast<const scale_args*>(raw);
    RUDA_TRY(ruda::check_host(args.x, "example.scale", "x", error));
    RUDA_TRY(ruda::check_dtype(args.x, {RUDA_FLOAT32}, "example.scale", "x", error));
    RUDA_TRY(ruda::check_contiguous(args.x, "example.scale", "x", error));
    auto* run = ruda::baseline::scale;
#if RUDA_HAS_V3
    if (ruda::api()->cpu_level() >= 1) run = ruda::v3::scale;
#endif
    auto* values = ruda::data<float>(*args.x);
    ruda::parallel_for(0, ruda::element_count(*args.x), 1000, [&](int64_t begin, int64_t end, int) {
      run(values + begin, end - begin, static_cast<float>(args.factor));
    });
    return RUDA_OK;
  });
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  ruda::python::attach(module, "ruda_example");
  ruda::python::register_kernel("example.scale", "ruda-example", scale_args_layout, scale_entry);
  module.def("scale", [](py::handle x, double factor, py::handle value_class) {
    const ruda::python::error_classes classes{value_class.is_none() ? py::handle() : value_class,
                                              {}, {}};
    const scale_args args{ruda::python::view_of(x, "example.scale", "x", classes), factor};
    ruda::python::launch("example.scale", scale_args_layout, &args, classes);
  }, py::arg("x"), py::arg("factor"), py::arg("value_class") = py::none());
  module.def("present", [](py::handle x) {
    return ruda::python::optional_view_of(x, "example", "x") != nullptr;
  });
  module.def("launch_absent", [] {
    const scale_args args{nullptr, 1.0};
    ruda::python::launch("example.absent", scale_args_layout, &args);
  });
  module.def("squares", [] {
    const float values[3] = {1, 2, 3};
    const double doubles[2] = {3, -3};
    float total = sum_of_squares(values, 3) - static_cast<float>(sum_of_squares(doubles, 2)) + 18;
    total += ruda::baseline::squares(values, 3);
#if RUDA_HAS_V3
    if (ruda::api()->cpu_level() >= 1) total += ruda::v3::squares(values, 3);
#endif
    return total;
  });
  module.def("variants", [] {
    py::list result;
    result.append(ruda::baseline::uses_avx2());
#if RUDA_HAS_V3
    result.append(ruda::v3::uses_avx2());
#endif
    return result;
  });
}
