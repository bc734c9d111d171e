# Gives the target ruda::blas: the include directory of <ruda/blas.h>. Nothing to link: kernels are
# found by name in ruda-runtime's registry.
include_guard(GLOBAL)

if(NOT TARGET ruda::blas)
  add_library(ruda_blas_headers INTERFACE)
  target_include_directories(ruda_blas_headers INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../include)
  add_library(ruda::blas ALIAS ruda_blas_headers)
endif()
