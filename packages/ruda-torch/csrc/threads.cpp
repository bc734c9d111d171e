// Compiled with -fopenmp, unlike the rest of the module.
#include "threads.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <cstdlib>

// Of the MKL in torch's library, where it has one. Returns the number before; 0: the process's.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int count);

namespace ruda_torch {

namespace {

int32_t thread_count() { return omp_in_parallel() != 0 ? 1 : at::get_num_threads(); }

constexpr ruda_thread_setting kSetting{&thread_count, &at::set_num_threads};

}  // namespace

void follow_aten_threads() {
  // An explicit RUDA_NUM_THREADS, which ruda-runtime has read, holds for both.
  if (const char* text = std::getenv("RUDA_NUM_THREADS"); text != nullptr && *text != 0) {
    at::set_num_threads(api()->num_threads());
  }
  ruda_error error{};
  check(api()->follow_threads(&kSetting, &error), error);
}

OneThread::OneThread() {
  const int32_t count = at::get_num_threads();
  if (count <= 1) return;
  before_ = count;
  omp_set_num_threads(1);  // the calling thread's number only
  if (MKL_Set_Num_Threads_Local != nullptr) mkl_before_ = MKL_Set_Num_Threads_Local(1);
}

void OneThread::end() {
  if (before_ == 0) return;
  omp_set_num_threads(before_);
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(mkl_before_);
  before_ = 0;
}

}  // namespace ruda_torch
