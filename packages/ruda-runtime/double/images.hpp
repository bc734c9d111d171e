// What can be read from a kernel image: a cubin (ELF) or PTX text.
#pragma once

#include "driver_types.hpp"

#include <map>
#include <string>
#include <string_view>

namespace driver_double {

struct image {
  enum class format { cubin, ptx };
  format is = format::cubin;
  std::string digest;                  // SHA-256 of the image's bytes
  std::map<std::string, int> entries;  // parameters of each kernel; -1: not known
};

// Reads an image at an address, as cuModuleLoadData gets it: the length is in it. Fails, with a
// report, where the pretended device or driver could not use the image.
CUresult read_image(const char* call, const void* address, image* out);

}  // namespace driver_double
