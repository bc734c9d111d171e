#pragma once

#include <string>
#include <string_view>

namespace driver_double {

// The SHA-256 digest (FIPS 180-4) in hexadecimal.
std::string sha256(std::string_view bytes);

}  // namespace driver_double
