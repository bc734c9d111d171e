/* Declares host functions in every variant's namespace and picks one at run time. */
#ifndef RUDA_BLAS_VARIANTS_HPP
#define RUDA_BLAS_VARIANTS_HPP

#if defined(__x86_64__)
#define RUDA_HOST_VARIANTS(...)      \
  namespace baseline { __VA_ARGS__ } \
  namespace v3 { __VA_ARGS__ }
/* RUDA_HOST(function)(arguments): the variant for this processor. */
#define RUDA_HOST(function) \
  (::ruda::api()->cpu_level() >= 1 ? &::ruda::v3::function : &::ruda::baseline::function)
#else
#define RUDA_HOST_VARIANTS(...) \
  namespace baseline { __VA_ARGS__ }
#define RUDA_HOST(function) (&::ruda::baseline::function)
#endif

#endif
