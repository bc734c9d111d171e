// What the tests can only see from C++: the conversions, the helpers of entry.hpp, the pool under
// threads. Compiled by conftest.py with the installed headers, loaded with ctypes.

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ruda/entry.hpp>

extern "C" {

int32_t probe_attach(const void* table, ruda_error* error) {
  return ruda::attach(table, "probe", error);
}

void probe_half_to_float(const uint16_t* in, float* out, int64_t count) {
  ruda::load_floats(reinterpret_cast<const ruda::float16*>(in), out, count);
}
void probe_bfloat_to_float(const uint16_t* in, float* out, int64_t count) {
  ruda::load_floats(reinterpret_cast<const ruda::bfloat16*>(in), out, count);
}
void probe_float_to_half(const float* in, uint16_t* out, int64_t count) {
  ruda::store_floats(in, reinterpret_cast<ruda::float16*>(out), count);
}
void probe_float_to_bfloat(const float* in, uint16_t* out, int64_t count) {
  ruda::store_floats(in, reinterpret_cast<ruda::bfloat16*>(out), count);
}

// Fills parts[i] with the part's begin for every index i of the range; -1 where nothing ran, -2 where
// something ran twice. Returns the largest worker number seen.
int32_t probe_parts(int64_t begin, int64_t end, int64_t grain, int64_t* parts) {
  std::atomic<int32_t> largest{0};
  ruda::parallel_for(begin, end, grain, [&](int64_t first, int64_t last, int32_t worker) {
    for (int64_t i = first; i < last; ++i) parts[i - begin] = parts[i - begin] == -1 ? first : -2;
    for (int32_t seen = largest; seen < worker && !largest.compare_exchange_weak(seen, worker);) {
    }
  });
  return largest;
}

// How many system threads took part in loops of 64 parts of about `spin` iterations each.
int32_t probe_thread_count(int32_t rounds, int64_t spin) {
  std::mutex mutex;
  std::set<pthread_t> threads;
  for (int32_t round = 0; round < rounds; ++round) {
    ruda::parallel_for(0, 64, 1, [&](int64_t, int64_t, int32_t) {
      for (volatile int64_t i = 0; i < spin;) i = i + 1;
      const std::lock_guard lock(mutex);
      threads.insert(pthread_self());
    });
  }
  return static_cast<int32_t>(threads.size());
}

// Reads the number of threads, lets another thread set it to `raised`, and runs a loop: the largest
// worker number minus the largest that the count read allows, or 0.
int32_t probe_raised_count(int32_t raised) {
  const int32_t read = ruda::api()->num_threads();
  std::thread([raised] { ruda::api()->set_num_threads(raised, nullptr); }).join();
  std::atomic<int32_t> beyond{0};
  ruda::parallel_for(0, 64, 1, [&](int64_t, int64_t, int32_t worker) {
    for (volatile int64_t i = 0; i < 200'000;) i = i + 1;
    const int32_t excess = worker - (read - 1);
    for (int32_t seen = beyond; seen < excess && !beyond.compare_exchange_weak(seen, excess);) {
    }
  });
  return beyond;
}

// A float32 sum whose value depends on the parts: equal for every number of threads.
float probe_sum(const float* values, int64_t count, int64_t grain) {
  std::vector<float> partial(static_cast<size_t>((count + grain - 1) / grain), 0.0f);
  ruda::parallel_for(0, count, grain, [&](int64_t begin, int64_t end, int32_t) {
    float sum = 0.0f;
    for (int64_t i = begin; i < end; ++i) sum += values[i];
    partial[static_cast<size_t>(begin / grain)] = sum;
  });
  float sum = 0.0f;
  for (const float each : partial) sum += each;
  return sum;
}

// Nested loops: returns how many of outer * inner indices ran exactly once, with the inner loop on
// the thread of its outer part and in_parallel() set.
int64_t probe_nested(int64_t outer, int64_t inner) {
  std::vector<std::atomic<int32_t>> hits(static_cast<size_t>(outer * inner));
  std::atomic<bool> wrong{ruda::api()->in_parallel() != 0};
  ruda::parallel_for(0, outer, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) {
      const pthread_t self = pthread_self();
      if (ruda::api()->in_parallel() == 0) wrong = true;
      ruda::parallel_for(0, inner, 3, [&](int64_t first, int64_t last, int32_t worker) {
        if (pthread_equal(self, pthread_self()) == 0 || worker != 0) wrong = true;
        for (int64_t j = first; j < last; ++j) ++hits[static_cast<size_t>(i * inner + j)];
      });
    }
  });
  if (ruda::api()->in_parallel() != 0) wrong = true;
  int64_t right = 0;
  for (const auto& each : hits) right += each == 1;
  return wrong ? -1 : right;
}

// `callers` threads run loops at the same time; returns the number of loops with a right sum.
int32_t probe_callers(int32_t callers, int32_t loops) {
  std::atomic<int32_t> right{0};
  std::vector<std::thread> threads;
  for (int32_t caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&] {
      for (int32_t loop = 0; loop < loops; ++loop) {
        std::atomic<int64_t> sum{0};
        ruda::parallel_for(0, 1000, 7, [&](int64_t begin, int64_t end, int32_t) {
          int64_t part = 0;
          for (int64_t i = begin; i < end; ++i) part += i;
          sum += part;
        });
        right += sum == 499500;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return right;
}

// A body that throws: the exception arrives here, as a status, and the pool still works.
int32_t probe_exception(ruda_error* error) {
  return ruda::guard("probe", error, []() -> int32_t {
    ruda::parallel_for(0, 100, 1, [](int64_t begin, int64_t, int32_t) {
      if (begin == 37) throw std::runtime_error("part 37 failed");
    });
    return RUDA_OK;
  });
}

// Threads allocate, write, check and release blocks of many sizes. Returns the number of blocks whose
// content or alignment was wrong.
int64_t probe_allocator(int32_t threads, int32_t rounds, int64_t max_bytes) {
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> running;
  for (int32_t id = 0; id < threads; ++id) {
    running.emplace_back([&, id] {
      struct block {
        unsigned char* data;
        size_t bytes;
        unsigned char mark;
      };
      std::vector<block> live;
      uint64_t seed = 88172645463325252ull + static_cast<uint64_t>(id);
      const auto next = [&seed] {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return seed;
      };
      const auto end = [&](size_t index) {
        const block each = live[index];
        for (const size_t at : {size_t{0}, each.bytes / 2, each.bytes - 1})
          if (each.data[at] != each.mark) ++wrong;
        if (ruda::api()->usable_size(each.data) < each.bytes) ++wrong;
        ruda::api()->release(each.data);
        live[index] = live.back();
        live.pop_back();
      };
      for (int32_t round = 0; round < rounds; ++round) {
        // Sizes are spread evenly over the powers of two.
        size_t bytes = 1 + next() % (uint64_t{1} << (1 + next() % 23));
        if (bytes > static_cast<size_t>(max_bytes)) bytes = static_cast<size_t>(max_bytes);
        ruda_error error{};
        auto* data = static_cast<unsigned char*>(ruda::api()->allocate(bytes, &error));
        if (data == nullptr || reinterpret_cast<uintptr_t>(data) % 64 != 0) {
          ++wrong;
          continue;
        }
        const auto mark = static_cast<unsigned char>(next());
        data[0] = data[bytes / 2] = data[bytes - 1] = mark;
        live.push_back({data, bytes, mark});
        if (live.size() > 40) end(next() % live.size());
      }
      while (!live.empty()) end(live.size() - 1);
    });
  }
  for (std::thread& thread : running) thread.join();
  return wrong;
}

// A kernel: doubles float32 values in place, with scratch memory of the size of the input.
RUDA_ARGUMENTS(probe_double_args, const ruda_view* x;)

static int32_t double_entry(const void* raw, ruda_error* error) {
  return ruda::guard("probe.double", error, [&]() -> int32_t {
    const auto& args = *static_cast<const probe_double_args*>(raw);
    RUDA_TRY(ruda::check_host(args.x, "probe.double", "x", error));
    RUDA_TRY(ruda::check_dtype(args.x, {RUDA_FLOAT32, RUDA_FLOAT64}, "probe.double", "x", error));
    RUDA_CHECK(args.x->dtype == RUDA_FLOAT32, error, RUDA_ERROR_UNSUPPORTED,
               "[probe.double] x: no kernel for %s", ruda::dtype_name(args.x->dtype));
    RUDA_TRY(ruda::check_contiguous(args.x, "probe.double", "x", error));
    const int64_t count = ruda::element_count(*args.x);
    const ruda::scratch<float> copy(count);
    auto* values = ruda::data<float>(*args.x);
    std::memcpy(copy.get(), values, static_cast<size_t>(count) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) values[i] = 2.0f * copy[i];
    return RUDA_OK;
  });
}

int32_t probe_register(ruda_error* error) {
  return ruda::register_kernel("probe.double", "probe", probe_double_args_layout, double_entry,
                               error);
}

int32_t probe_launch(const char* name, uint64_t flip, const ruda_view* x, void* stream,
                     ruda_error* error) {
  const ruda_kernel* kernel = nullptr;
  RUDA_TRY(ruda::find_kernel(name, probe_double_args_layout ^ flip, &kernel, error));
  const probe_double_args args{x};
  return ruda::api()->launch(kernel, &args, stream, error);
}

// A slow kernel: sleeps, then x += addend, after checking its arguments as every kernel does.
RUDA_ARGUMENTS(probe_slow_args, const ruda_view* x; int64_t milliseconds; double addend;)

static int32_t slow_entry(const void* raw, ruda_error* error) {
  const auto& args = *static_cast<const probe_slow_args*>(raw);
  std::this_thread::sleep_for(std::chrono::milliseconds(args.milliseconds));
  RUDA_TRY(ruda::check_host(args.x, "probe.slow", "x", error));
  RUDA_TRY(ruda::check_dtype(args.x, {RUDA_FLOAT32}, "probe.slow", "x", error));
  RUDA_TRY(ruda::check_contiguous(args.x, "probe.slow", "x", error));
  auto* values = ruda::data<float>(*args.x);
  for (int64_t i = 0; i < ruda::element_count(*args.x); ++i)
    values[i] += static_cast<float>(args.addend);
  return RUDA_OK;
}

// Adds a list of views into one and gives the sum and the number of its elements to host memory.
RUDA_ARGUMENTS(probe_list_args, const ruda_view* target; const ruda_view* const* parts;
               const double* weights; int64_t weights_count; int64_t tensors; double* sum;
               int32_t shifts[2];)

static int32_t list_entry(const void* raw, ruda_error*) {
  const auto& args = *static_cast<const probe_list_args*>(raw);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  auto* values = ruda::data<float>(*args.target);
  const int64_t count = ruda::element_count(*args.target);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < args.tensors; ++k)
      if (args.parts[k] != nullptr)
        values[i] += static_cast<float>(args.weights[k] * ruda::data<float>(*args.parts[k])[i]);
    values[i] += static_cast<float>(args.shifts[0] * 100 + args.shifts[1] * 1000);
    sum += values[i];
  }
  if (args.sum != nullptr) *args.sum = sum;
  return RUDA_OK;
}

int32_t probe_register_slow(ruda_error* error) {
  RUDA_TRY(ruda::register_kernel("probe.slow", "probe", probe_slow_args_layout, slow_entry, error));
  return ruda::register_kernel("probe.list", "probe", probe_list_args_layout, list_entry, error);
}

// The view is this function's own copy: it is gone when the call returns.
int32_t probe_slow(const ruda_view* x, int64_t milliseconds, double addend, ruda_error* error) {
  int64_t sizes[8], strides[8];
  std::copy_n(x->sizes, x->ndim, sizes);
  std::copy_n(x->strides, x->ndim, strides);
  ruda_view passing = *x;
  passing.sizes = sizes;
  passing.strides = strides;
  const probe_slow_args args{&passing, milliseconds, addend};
  const int32_t status =
      ruda::api()->launch(ruda::api()->find_kernel("probe.slow"), &args, nullptr, error);
  passing.data = nullptr;
  sizes[0] = -1;
  return status;
}

// target += weights[k] * parts[k]; `parts` has absent entries and everything is scribbled over before
// the call returns. `sum` may be null.
int32_t probe_list(const ruda_view* target, const ruda_view* part, double* sum, ruda_error* error) {
  ruda_view passing = *part;
  const ruda_view* parts[3] = {&passing, nullptr, &passing};
  double weights[3] = {1.0, 7.0, 2.0};
  probe_list_args args{target, parts, weights, 3, 3, sum, {1, 2}};
  const int32_t status =
      ruda::api()->launch(ruda::api()->find_kernel("probe.list"), &args, nullptr, error);
  passing.data = nullptr;
  parts[0] = parts[2] = nullptr;
  weights[0] = weights[2] = -1e9;
  args = {};
  return status;
}

// What a launch costs its caller while the stream is busy: the longest of `launches`, in microseconds.
double probe_longest_launch(const ruda_view* x, int64_t launches, ruda_error* error) {
  double longest = 0;
  for (int64_t i = 0; i < launches; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (probe_slow(x, 0, 1.0, error) != RUDA_OK) return -1;
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
    longest = std::max(longest, spent.count());
  }
  return longest;
}

// Register a kernel without a description of its arguments.
int32_t probe_register_undescribed(ruda_error* error) {
  const ruda_kernel kernel{"probe.undescribed", "probe", 1, slow_entry, nullptr};
  return ruda::api()->register_kernel(&kernel, error);
}

static std::atomic<int32_t> other_threads{3};

// Another library that decides the number of threads.
int32_t probe_is_capturing(int32_t stream) { return ruda::api()->is_capturing(stream); }

int32_t probe_follow_threads(int32_t on, ruda_error* error) {
  static constexpr ruda_thread_setting setting{[] { return other_threads.load(); },
                                               [](int32_t count) { other_threads = count; }};
  return ruda::api()->follow_threads(on != 0 ? &setting : nullptr, error);
}
void probe_set_other_threads(int32_t count) { other_threads = count; }

}  // extern "C"
