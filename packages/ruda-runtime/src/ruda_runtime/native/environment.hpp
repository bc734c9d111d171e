// The RUDA_* settings of the native side, read once when the module is imported; a bad value is an
// error of the package's import and never a silent default.
#pragma once

#include <cstdint>
#include <string>

namespace ruda::native {

struct environment {
  int32_t threads = 0;       // RUDA_NUM_THREADS; 0: the process's CPU affinity
  bool baseline = false;     // RUDA_CPU=baseline
  int64_t memory_limit = 0;  // RUDA_MEMORY_LIMIT in bytes; 0: what the system has
  bool poison = false;       // RUDA_POISON=1
  bool async = false;        // RUDA_ASYNC=1
  int32_t max_streams = 32;  // RUDA_MAX_STREAMS
};

// Parses the process environment. Returns "" or what is wrong, naming the variable.
std::string read_environment();

// The settings read by read_environment().
const environment& settings();

}  // namespace ruda::native
