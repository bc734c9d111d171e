// What the double pretends to be. From environment variables RUDA_DOUBLE_*, read at its first use.
#pragma once

#include <cstdint>
#include <string>

namespace driver_double {

struct settings {
  int devices = 1;               // RUDA_DOUBLE_DEVICES, less by CUDA_VISIBLE_DEVICES
  int major = 9, minor = 0;      // RUDA_DOUBLE_COMPUTE_CAPABILITY=9.0
  uint64_t memory = 8ull << 30;  // RUDA_DOUBLE_MEMORY, bytes of one device
  int driver_version = 13040;    // RUDA_DOUBLE_DRIVER_VERSION, as cuDriverGetVersion gives it
  bool record_only = false;      // RUDA_DOUBLE_RECORD_ONLY: launches are checked, not interpreted
  uint64_t seed = 0;             // RUDA_DOUBLE_SEED: of the delays and of the programs' order
  int delay_us = 0;              // RUDA_DOUBLE_DELAY_US: the longest pause before a piece of work
  bool shuffle = true;           // RUDA_DOUBLE_SHUFFLE: programs run in random order
  bool leaks = true;             // RUDA_DOUBLE_LEAKS: what is left at exit goes to stderr
  uint64_t arena = 0x7e9000000000;  // RUDA_DOUBLE_ARENA: the address of device memory
  std::string python;               // RUDA_DOUBLE_PYTHON: runs the interpreting server
  std::string error;                // the first bad value, in words; cuInit fails with it

  static const settings& get();
};

}  // namespace driver_double
