/* Declares host functions in every variant's namespace (`ruda_host_variants` in CMake compiles them)
 * and picks one at run time. */
#ifndef RUDA_VARIANTS_HPP
#define RUDA_VARIANTS_HPP

#if defined(__x86_64__)
#define RUDA_HOST_VARIANTS(...)      \
  namespace baseline { __VA_ARGS__ } \
  namespace v3 { __VA_ARGS__ }
/* `RUDA_CHOOSE(level, function)(arguments)`; level is ruda_api's cpu_level(). */
#define RUDA_CHOOSE(level, function) \
  ((level) >= 1 ? &::ruda::v3::function : &::ruda::baseline::function)
#else
#define RUDA_HOST_VARIANTS(...) \
  namespace baseline { __VA_ARGS__ }
#define RUDA_CHOOSE(level, function) (&::ruda::baseline::function)
#endif

/* RUDA_HOST(function)(arguments): the variant for this processor (with <ruda/entry.hpp>). */
#define RUDA_HOST(function) RUDA_CHOOSE(::ruda::api()->cpu_level(), function)

#endif
