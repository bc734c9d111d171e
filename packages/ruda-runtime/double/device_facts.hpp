// The limits of the pretended GPU, by compute capability, as the CUDA programming guide's tables of
// technical specifications give them.
#pragma once

namespace driver_double {

struct device_facts {
  int multiprocessors = 4;  // few, so that occupancy limits are met in small tests
  int threads_per_block = 1024;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int registers_per_block = 65536;
  int shared_per_block = 49152;  // without opting in
  int shared_per_block_optin;
  int shared_per_multiprocessor;
  int l2_bytes = 32 << 20;
  int warp = 32;
  unsigned grid[3] = {2147483647u, 65535u, 65535u};
  unsigned block[3] = {1024u, 1024u, 64u};

  static const device_facts& get();
};

}  // namespace driver_double
