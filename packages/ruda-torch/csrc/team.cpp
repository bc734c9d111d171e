// Compiled with -fopenmp, unlike the rest of the module.
#include "team.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>

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

}  // namespace

void install_team() {
  ruda_error error{};
  check(api()->set_team(run_on_team, &error), error);
}

}  // namespace ruda_torch
