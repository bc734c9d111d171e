/* The Python module ruda_blas._native. */
#include <ruda/python.hpp>

#include "../nf4/host.hpp"
#include "entries.hpp"
#include "openblas.hpp"
#include "packed.hpp"

namespace py = pybind11;
using ruda::python::error_classes;
using ruda::python::optional_view_of;
using ruda::python::view_of;

namespace {

/* The classes of ruda_blas.errors; they live as long as the process. */
error_classes classes(const char* value, const char* type) {
  const py::module_ errors = py::module_::import("ruda_blas.errors");
  return {py::object(errors.attr(value)).release(), py::object(errors.attr(type)).release(), {}};
}

const error_classes& gemm_errors() {
  static const error_classes found = classes("BlasError", "BlasTypeError");
  return found;
}

const error_classes& nf4_errors() {
  static const error_classes found = classes("Nf4Error", "Nf4TypeError");
  return found;
}

void multiply(const char* name, py::handle a, py::handle b, py::handle bias, py::handle out,
              double alpha, double beta, int64_t strategy) {
  const error_classes& errors = gemm_errors();
  const ruda::gemm_args args{view_of(a, name, "a", errors),
                             view_of(b, name, "b", errors),
                             optional_view_of(bias, name, "bias", errors),
                             view_of(out, name, "out", errors),
                             alpha,
                             beta,
                             strategy};
  ruda::python::launch(name, ruda::gemm_args_layout, &args, errors);
}

void gemm_matmul(py::handle a, py::handle b, py::handle bias, py::handle out, double alpha,
                 double beta, int64_t strategy) {
  multiply("gemm.matmul", a, b, bias, out, alpha, beta, strategy);
}

/* For tests of what C++ callers get: the operands may have different dtypes. */
void gemm_product(py::handle a, py::handle b, py::handle bias, py::handle out, double alpha,
                  double beta, int64_t strategy) {
  multiply("gemm.product", a, b, bias, out, alpha, beta, strategy);
}

void nf4_quantize(py::handle weight, py::handle packed, py::handle scales, int64_t block_size) {
  const char* name = "nf4.quantize";
  const error_classes& errors = nf4_errors();
  const ruda::nf4_quantize_args args{view_of(weight, name, "weight", errors),
                                     view_of(packed, name, "packed", errors),
                                     view_of(scales, name, "scales", errors), block_size};
  ruda::python::launch(name, ruda::nf4_quantize_args_layout, &args, errors);
}

void nf4_dequantize(py::handle packed, py::handle scales, py::handle codebook, py::handle weight,
                    int64_t block_size) {
  const char* name = "nf4.dequantize";
  const error_classes& errors = nf4_errors();
  const ruda::nf4_dequantize_args args{view_of(packed, name, "packed", errors),
                                       view_of(scales, name, "scales", errors),
                                       view_of(codebook, name, "codebook", errors),
                                       view_of(weight, name, "weight", errors), block_size};
  ruda::python::launch(name, ruda::nf4_dequantize_args_layout, &args, errors);
}

void nf4_product(const char* name, py::handle x, py::handle packed, py::handle scales,
                 py::handle codebook, py::handle bias, py::handle y, int64_t out_features,
                 int64_t in_features, int64_t block_size, int64_t tile_rows, py::handle update_x,
                 py::handle update_w) {
  const error_classes& errors = nf4_errors();
  const ruda::nf4_matmul_args args{view_of(x, name, "x", errors),
                                   view_of(packed, name, "packed", errors),
                                   view_of(scales, name, "scales", errors),
                                   view_of(codebook, name, "codebook", errors),
                                   optional_view_of(bias, name, "bias", errors),
                                   view_of(y, name, "y", errors),
                                   out_features,
                                   in_features,
                                   block_size,
                                   tile_rows,
                                   optional_view_of(update_x, name, "update_x", errors),
                                   optional_view_of(update_w, name, "update_w", errors)};
  ruda::python::launch(name, ruda::nf4_matmul_args_layout, &args, errors);
}

std::string library_description() {
  try {
    return ruda::blas::describe_library();
  } catch (const ruda::status_error& caught) {
    ruda::python::throw_error(caught.error);
  }
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  ruda::python::attach(module, "ruda_blas");
  ruda_error error{};
  ruda::python::check(ruda::register_gemm(&error), error);
  ruda::python::check(ruda::register_nf4(&error), error);

  module.def("gemm_matmul", &gemm_matmul);
  module.def("gemm_product", &gemm_product);
  module.def("nf4_quantize", &nf4_quantize);
  module.def("nf4_dequantize", &nf4_dequantize);
  module.def("nf4_product", &nf4_product);
  py::list codebook;
  for (const float value : ruda::blas::nf4_values) codebook.append(value);
  module.attr("nf4_codebook") = py::tuple(codebook);
  module.def("choose_engine", &ruda::blas::choose_engine);
  module.def("library_description", &library_description);
}
