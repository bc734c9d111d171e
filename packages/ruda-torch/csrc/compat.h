// What differs between the minors of torch that this compiles against, 2.11 to 2.13.
#pragma once

// Until 2.12 a structured operator hands the names of dimensions to its outputs as well.
#if __has_include(<ATen/core/Dimname.h>)
#include <ATen/core/NamedTensor.h>
#define RUDA_NAMES_PARAMETER , at::DimnameList names
#define RUDA_NAMES , names
#else
#define RUDA_NAMES_PARAMETER
#define RUDA_NAMES
#endif
