// What overhead.py times. Every function returns nanoseconds a round; each side of a pair runs in the
// same process and loop.

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <ruda/entry.hpp>

namespace {

template <class Body>
double nanoseconds(int64_t rounds, Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < rounds; ++i) body();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(rounds);
}

// The compiler must not remove an allocation that nobody looks at.
void keep(void* pointer) { asm volatile("" : : "r"(pointer) : "memory"); }

RUDA_ARGUMENTS(nothing_args, int64_t unused;)
RUDA_ARGUMENTS(wait_args, int64_t milliseconds;)
RUDA_ARGUMENTS(views_args, const ruda_view* a; const ruda_view* b; const ruda_view* c;
               const ruda_view* d; const ruda_view* e; const ruda_view* f; const ruda_view* g;
               const ruda_view* h; const ruda_view* i; const ruda_view* j;)
int32_t nothing(const void*, ruda_error*) { return RUDA_OK; }
int32_t wait(const void* raw, ruda_error*) {
  std::this_thread::sleep_for(
      std::chrono::milliseconds(static_cast<const wait_args*>(raw)->milliseconds));
  return RUDA_OK;
}

void small_part(void* context, int64_t begin, int64_t, int32_t) {
  static_cast<volatile int64_t*>(context)[begin * 8] = begin;
}

}  // namespace

extern "C" {

int32_t bench_attach(const void* table, ruda_error* error) {
  RUDA_TRY(ruda::attach(table, "bench", error));
  RUDA_TRY(ruda::register_kernel("bench.wait", "bench", wait_args_layout, wait, error));
  RUDA_TRY(ruda::register_kernel("bench.views", "bench", views_args_layout, nothing, error));
  return ruda::register_kernel("bench.nothing", "bench", nothing_args_layout, nothing, error);
}

// Allocate and release one block; `touched` bytes of it are written.
double bench_pool(int64_t rounds, int64_t bytes, int64_t touched) {
  return nanoseconds(rounds, [=] {
    void* block = ruda::api()->allocate(static_cast<size_t>(bytes), nullptr);
    if (touched != 0) std::memset(block, 1, static_cast<size_t>(touched));
    keep(block);
    ruda::api()->release(block);
  });
}

double bench_malloc(int64_t rounds, int64_t bytes, int64_t touched) {
  return nanoseconds(rounds, [=] {
    void* block = std::malloc(static_cast<size_t>(bytes));
    if (touched != 0) std::memset(block, 1, static_cast<size_t>(touched));
    keep(block);
    std::free(block);
  });
}

double bench_launch(int64_t rounds) {
  const ruda_kernel* kernel = ruda::api()->find_kernel("bench.nothing");
  const nothing_args args{0};
  return nanoseconds(rounds, [&] { ruda::api()->launch(kernel, &args, nullptr, nullptr); });
}

// Launches that a graph captures from here on (the caller captures), for overhead.py.
int32_t bench_submit(int64_t launches, ruda_error* error) {
  const ruda_kernel* kernel = ruda::api()->find_kernel("bench.nothing");
  const nothing_args args{0};
  for (int64_t i = 0; i < launches; ++i)
    RUDA_TRY(ruda::api()->launch(kernel, &args, nullptr, error));
  return RUDA_OK;
}

// Asynchronous dispatch: a launch, and the wait for it. The worker spins between rounds that follow each
// other, and sleeps when `pause_us` is more than it spins.
double bench_handoff(int64_t rounds, int64_t pause_us) {
  const ruda_kernel* kernel = ruda::api()->find_kernel("bench.nothing");
  const nothing_args args{0};
  double total = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    if (pause_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    total += nanoseconds(1, [&] {
      ruda::api()->launch(kernel, &args, nullptr, nullptr);
      ruda::api()->synchronize(0, nullptr);
    });
  }
  return total / static_cast<double>(rounds);
}

// Asynchronous dispatch: what a launch of ten views costs its caller while a 50 ms kernel runs.
double bench_queued_launch(int64_t rounds) {
  const ruda_kernel* wait = ruda::api()->find_kernel("bench.wait");
  const ruda_kernel* kernel = ruda::api()->find_kernel("bench.views");
  const int64_t sizes[3] = {1, 1, 1};
  const ruda_view view{nullptr, sizes, sizes, 3, RUDA_FLOAT32, RUDA_HOST, 0};
  const wait_args busy{50};
  const views_args args{&view, &view, &view, &view, &view, &view, &view, &view, &view, &view};
  ruda::api()->launch(wait, &busy, nullptr, nullptr);
  const double spent =
      nanoseconds(rounds, [&] { ruda::api()->launch(kernel, &args, nullptr, nullptr); });
  ruda::api()->synchronize(0, nullptr);
  return spent;
}

double bench_parallel_for(int64_t rounds, int64_t parts) {
  alignas(64) static int64_t lines[64 * 8];
  return nanoseconds(rounds,
                     [=] { ruda::api()->parallel_for(0, parts, 1, small_part, lines); });
}

double bench_openmp(int64_t rounds, int64_t parts) {
  alignas(64) static int64_t lines[64 * 8];
  return nanoseconds(rounds, [=] {
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < parts; ++i) small_part(lines, i, i + 1, 0);
  });
}

}  // extern "C"
