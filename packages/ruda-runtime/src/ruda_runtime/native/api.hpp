// The table of ruda/abi.h, filled with the functions of this module.
#pragma once

#include <ruda/abi.h>

namespace ruda::native {

const ruda_api& api_table();

}  // namespace ruda::native
