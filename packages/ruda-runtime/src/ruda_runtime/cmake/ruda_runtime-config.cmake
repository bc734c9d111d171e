# What the native modules of all RUDA packages are built with.
#
#   find_package(ruda_runtime CONFIG REQUIRED)      (ruda_runtime_ROOT says where, see cmake.root)
#   ruda_add_native(my_native SOURCES entry.cpp bindings.cpp [PACKAGE my_package] [LINK lib ...])
#   ruda_host_variants(my_native family/host.cpp ...)
#
# Gives the target ruda::runtime (include directory of <ruda/abi.h>, <ruda/entry.hpp>, ...).
include_guard(GLOBAL)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(NOT TARGET ruda::runtime)
  add_library(ruda_runtime_headers INTERFACE)
  target_include_directories(ruda_runtime_headers INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../include)
  target_compile_features(ruda_runtime_headers INTERFACE cxx_std_20)
  add_library(ruda::runtime ALIAS ruda_runtime_headers)
endif()

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 2.13 CONFIG REQUIRED)
find_package(Threads REQUIRED)

# A pybind11 module `_native` in the import package PACKAGE (default: the project's name with
# underscores). Symbols are hidden; the only run path is $ORIGIN. No link-time optimisation: it would
# undo the object order that ruda_host_variants relies on.
function(ruda_add_native target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PACKAGE" "SOURCES;LINK")
  if(NOT arg_PACKAGE)
    string(REPLACE "-" "_" arg_PACKAGE ${PROJECT_NAME})
  endif()
  pybind11_add_module(${target} MODULE NO_EXTRAS ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _native
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    CXX_STANDARD 20
    CXX_STANDARD_REQUIRED ON
    CXX_EXTENSIONS OFF
    BUILD_RPATH_USE_ORIGIN ON
    INSTALL_RPATH "$ORIGIN"
    INSTALL_RPATH_USE_LINK_PATH OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter)
  target_link_libraries(${target} PRIVATE ruda::runtime Threads::Threads ${arg_LINK})
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_link_options(${target} PRIVATE -Wl,--strip-debug)
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION ${arg_PACKAGE})
endfunction()

# Compiles each listed source once per instruction set, with RUDA_VARIANT=baseline and (on x86-64)
# RUDA_VARIANT=v3, and links the objects into `target`. A source puts its code in
# `namespace ruda::RUDA_VARIANT`; the entry chooses by api()->cpu_level(). On AArch64 there is one
# variant, `baseline`, which has NEON; RUDA_HAS_V3 is 1 or 0 in every source of `target`.
#
# The v3 objects come last on the link line. The linker keeps the first copy of an inline function
# or template that several objects emit, so a copy made with AVX2 never serves baseline code.
function(ruda_host_variants target)
  set(common -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp-simd
      -Wall -Wextra -Wno-unused-parameter -Wno-psabi)
  get_target_property(count ${target} RUDA_VARIANT_CALLS)
  if(NOT count)
    set(count 0)
  endif()
  math(EXPR count "${count} + 1")
  set_target_properties(${target} PROPERTIES RUDA_VARIANT_CALLS ${count})

  set(variants baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    list(APPEND variants v3)
    target_compile_definitions(${target} PRIVATE RUDA_HAS_V3=1)
  else()
    target_compile_definitions(${target} PRIVATE RUDA_HAS_V3=0)
  endif()
  foreach(variant IN LISTS variants)
    set(object ${target}_${variant}_${count})
    add_library(${object} OBJECT ${ARGN})
    set_target_properties(${object} PROPERTIES
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      POSITION_INDEPENDENT_CODE ON
      CXX_STANDARD 20
      CXX_STANDARD_REQUIRED ON
      CXX_EXTENSIONS OFF)
    target_compile_options(${object} PRIVATE ${common})
    if(variant STREQUAL "v3")
      target_compile_options(${object} PRIVATE -march=x86-64-v3)
    endif()
    target_compile_definitions(${object} PRIVATE RUDA_VARIANT=${variant})
    target_include_directories(${object} PRIVATE
      $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_link_libraries(${object} PRIVATE ruda::runtime)
    set_property(TARGET ${target} APPEND PROPERTY RUDA_OBJECTS_${variant} ${object})
  endforeach()
  if(count EQUAL 1)
    # Deferred, so that the baseline objects of all calls precede the v3 objects.
    # A deferred call reads its variables when it runs, hence the detour that writes the name in now.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL _ruda_link_variants [[${target}]])")
  endif()
endfunction()

# Objects given as sources would come before the target's own; as link items they come after them.
function(_ruda_link_variants target)
  foreach(variant baseline v3)
    get_target_property(objects ${target} RUDA_OBJECTS_${variant})
    if(objects)
      foreach(object IN LISTS objects)
        target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
      endforeach()
    endif()
  endforeach()
endfunction()
