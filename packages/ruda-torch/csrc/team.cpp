// Compiled with -fopenmp, unlike the rest of the module.
#include "team.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "runtime.h"

namespace ruda_torch {

namespace {

void run_on_team(int32_t members, void (*body)(void* state, int32_t member), void* state) {
  const int32_t threads = std::min<int32_t>(members, at::get_num_threads());
  if (threads <= 1 || omp_in_parallel() != 0) {
    body(state, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  body(state, omp_get_thread_num());
}

int32_t team_size() { return omp_in_parallel() != 0 ? 1 : at::get_num_threads(); }

constexpr ruda_team kTeam{&run_on_team, &team_size, &at::set_num_threads};

}  // namespace

void install_team() {
  // An explicit RUDA_NUM_THREADS, which ruda-runtime has read, holds for both.
  if (const char* text = std::getenv("RUDA_NUM_THREADS"); text != nullptr && *text != 0) {
    at::set_num_threads(api()->num_threads());
  }
  ruda_error error{};
  check(api()->set_team(&kTeam, &error), error);
}

}  // namespace ruda_torch
