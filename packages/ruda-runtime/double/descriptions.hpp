// What is known of kernels beyond their images: the source function and its parameters.
#pragma once

#include "builtin_kernels.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace driver_double {

struct packed_parameter {
  std::string name, type;
  unsigned bytes;
  bool pointer;
  bool divisible_by_16;
};

struct description {
  std::string text;  // the JSON, as the server gets it
  std::string image, entry, function;
  std::string name;  // of the kernel in reports; where none is given, the entry
  std::vector<packed_parameter> packed;  // in launch order, scratch pointers included
  unsigned parameters = 0;               // of them, without scratch
  unsigned shared = 0;
  unsigned threads = 0;  // of a block
  uint64_t number = 0;   // the server's name for it
  const builtin* built_in = nullptr;  // runs in this process
};

using description_ref = std::shared_ptr<const description>;

// Null where none was given.
description_ref find_description(const std::string& image, const std::string& entry);

}  // namespace driver_double
