# Gives the target ruda::dnn: the include directory of <ruda/dnn.h>. Nothing to link: kernels are
# found by name in ruda-runtime's registry.
include_guard(GLOBAL)

if(NOT TARGET ruda::dnn)
  add_library(ruda_dnn_headers INTERFACE)
  target_include_directories(ruda_dnn_headers INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../include)
  add_library(ruda::dnn ALIAS ruda_dnn_headers)
endif()
