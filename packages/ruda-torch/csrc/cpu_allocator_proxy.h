// Results of ATen's CPU kernels in our memory.
//
// A CPU kernel that runs on aliases of ruda memory takes its results from the CPU allocator. While
// an `InsideRuda` lives on the calling thread, that allocator gives blocks of our pool instead:
// counted, cached, and movable into a ruda storage without a copy. Elsewhere it is untouched, and so
// it is on the cuda target, whose pool has no memory that a CPU kernel could use.
#pragma once

namespace ruda_torch {

// Puts the proxy in front of the CPU allocator. Once, at import.
void install_cpu_allocator_proxy();

// True while the calling thread is inside a ruda operator.
bool inside_ruda();

class InsideRuda {
 public:
  InsideRuda();
  ~InsideRuda();
  InsideRuda(const InsideRuda&) = delete;
  InsideRuda& operator=(const InsideRuda&) = delete;

 private:
  bool before_;
};

}  // namespace ruda_torch
