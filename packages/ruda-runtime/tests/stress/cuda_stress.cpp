// Threads that allocate, copy, launch, record, wait, capture, hand blocks to each other and free them in
// random order on shared streams of the cuda target, against a model of what every block holds. Runs on
// the driver double with its built-in kernels, under -fsanitize=address and -fsanitize=thread
// (tools/sanitize.py).
//
//   cuda_stress DOUBLE [rounds a thread] [threads] [seed]      RUDA_ASYNC=0|1, RUDA_DOUBLE_* as always
//
// DOUBLE is the path of the double. Every element of a block has one value, which the model knows.
// Prints what it did and exits with 1 when a value, an error or a count is wrong.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ruda/device.hpp>

#include "allocator.hpp"
#include "api.hpp"
#include "cuda/copies.hpp"
#include "cuda/target.hpp"
#include "cuda_stress_kernels.hpp"
#include "environment.hpp"
#include "graph.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

namespace {

namespace native = ruda::native;

constexpr int32_t stream_count = 32;
constexpr int64_t max_elements = 3000;
constexpr size_t max_held = 10;

std::atomic<int64_t> wrong{0};

[[gnu::format(printf, 1, 2)]] void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  ++wrong;
}

// ---- the model ------------------------------------------------------------------------------

struct block {
  uint64_t* data;
  int64_t count;
  uint64_t value;  // of every element once the work submitted so far is done
  int32_t stream;  // behind whose work all of it is done
};

struct parcel {
  block content;
  ruda_event ready;
};

struct mailbox {
  std::mutex mutex;
  std::deque<parcel> parcels;
} mail;

std::vector<int32_t> streams;  // shared by all threads, but for one each that graphs are captured on

class actor {
 public:
  actor(uint64_t seed, size_t index, size_t threads)
      : random_(seed), own_(streams[index]), shared_(threads) {}
  ~actor() {
    while (!held_.empty()) drop(held_.size() - 1);
  }

  void act() {
    const uint64_t choice = random_() % 100;
    if (held_.size() < 3 || (choice < 18 && held_.size() < max_held)) return create();
    if (choice < 45) return add();
    if (choice < 55) return duplicate();
    if (choice < 67) return drop(random_() % held_.size());
    if (choice < 76) return check(random_() % held_.size());
    if (choice < 84) return send(random_() % held_.size());
    if (choice < 92) return receive();
    if (choice < 95) return replay();
    if (choice < 98) return time_some_work();
    call(ruda::api()->synchronize(any_stream(), &error_));
    if (choice == 99) ruda::api()->empty_cache();
  }

 private:
  void call(int32_t status) {
    if (status != RUDA_OK) complain("status %d: %s", status, error_.message);
  }

  int32_t any_stream() {
    if (random_() % 8 == 0) return own_;
    return streams[shared_ + random_() % (streams.size() - shared_)];
  }

  void enter(int32_t stream) { call(ruda::api()->set_current_stream(stream, &error_)); }

  // Later work of `stream` on the block comes after what is submitted.
  void order(block& used, int32_t stream) {
    if (used.stream == stream) return;
    if (random_() % 2 == 0) {
      call(ruda::api()->wait_stream(stream, used.stream, &error_));
    } else {
      const ruda_event ready = ruda::api()->create_event(0);
      call(ruda::api()->record_event(ready, used.stream, &error_));
      call(ruda::api()->wait_event(stream, ready, &error_));
      ruda::api()->destroy_event(ready);
    }
    call(ruda::api()->record_stream(used.data, stream, &error_));
    used.stream = stream;
  }

  block allocate(int64_t count, int32_t stream) {
    enter(stream);  // whose the block will be
    block made{nullptr, count, random_() % 1000, stream};
    made.data =
        static_cast<uint64_t*>(ruda::api()->allocate(static_cast<size_t>(count) * 8, &error_));
    if (made.data == nullptr) complain("%s", error_.message);
    return made;
  }

  void create() {
    block made = allocate(1 + static_cast<int64_t>(random_() % max_elements), any_stream());
    if (made.data == nullptr) return;
    const size_t bytes = static_cast<size_t>(made.count) * 8;
    switch (random_() % 4) {
      case 0: call(stress::fill(made.data, made.count, made.value, random_, &error_)); break;
      case 1:
        made.value = 0x0101010101010101 * (made.value % 256);
        call(ruda::api()->fill(made.data, static_cast<uint8_t>(made.value), bytes, made.stream,
                               &error_));
        break;
      case 2: {
        std::vector<uint64_t> source(static_cast<size_t>(made.count), made.value);
        call(ruda::api()->copy_to_device(made.data, source.data(), bytes, made.stream, &error_));
        std::fill(source.begin(), source.end(), 77);  // it is free again
        break;
      }
      default: {
        auto* source = static_cast<uint64_t*>(ruda::api()->allocate_pinned(bytes, &error_));
        if (source == nullptr) return complain("%s", error_.message);
        std::fill_n(source, made.count, made.value);
        call(ruda::api()->copy_to_device(made.data, source, bytes, made.stream, &error_));
        ruda::api()->release_pinned(source);  // which waits for the copy before it serves again
      }
    }
    held_.push_back(made);
  }

  void add() {
    block& x = held_[random_() % held_.size()];
    block& y = held_[random_() % held_.size()];
    const int32_t stream = any_stream();
    order(x, stream);
    order(y, stream);
    enter(stream);
    const uint64_t factor = random_() % 3;
    // In two parts, so that an address need not be divisible by 16.
    const int64_t first = &x != &y && random_() % 2 == 0
                              ? static_cast<int64_t>(random_() % static_cast<uint64_t>(x.count))
                              : 0;
    if (first != 0)
      call(stress::add(x.data, y.data, first, y.count, factor, random_, &error_));
    call(stress::add(x.data + first, y.data, x.count - first, y.count, factor, random_, &error_));
    x.value = factor * x.value + y.value;
  }

  // A copy of a block, plain, by a kernel or of a view that is not contiguous.
  void duplicate() {
    if (held_.size() >= max_held) return;
    const size_t index = random_() % held_.size();
    const int32_t stream = any_stream();
    order(held_[index], stream);
    const block from = held_[index];
    const int64_t columns = 4, rows = from.count / columns;
    const bool turned = rows > 0 && random_() % 3 == 0;
    block made = allocate(turned ? rows * columns : from.count, stream);
    if (made.data == nullptr) return;
    made.value = from.value;
    const size_t bytes = static_cast<size_t>(made.count) * 8;
    if (turned) {
      call(native::cuda::gather(made.data, from.data, {columns, rows}, {1, columns}, 8, stream,
                                &error_));
    } else if (random_() % 2 == 0) {
      call(ruda::api()->copy_on_device(made.data, from.data, bytes, stream, &error_));
    } else {
      call(stress::copy(made.data, from.data, made.count, random_, &error_));
    }
    held_.push_back(made);
  }

  void compare(const block& each, const uint64_t* found) {
    for (int64_t i = 0; i < each.count; ++i)
      if (found[i] != each.value)
        return complain("element %lld of %lld is %llu, wanted %llu", static_cast<long long>(i),
                        static_cast<long long>(each.count),
                        static_cast<unsigned long long>(found[i]),
                        static_cast<unsigned long long>(each.value));
  }

  void check(size_t index) {
    const block& each = held_[index];
    const size_t bytes = static_cast<size_t>(each.count) * 8;
    if (random_() % 2 == 0) {
      std::vector<uint64_t> found(static_cast<size_t>(each.count));
      call(ruda::api()->copy_to_host(found.data(), each.data, bytes, each.stream, &error_));
      return compare(each, found.data());
    }
    auto* found = static_cast<uint64_t*>(ruda::api()->allocate_pinned(bytes, &error_));
    if (found == nullptr) return complain("%s", error_.message);
    call(ruda::api()->copy_to_host(found, each.data, bytes, each.stream, &error_));
    call(ruda::api()->synchronize(each.stream, &error_));
    compare(each, found);
    ruda::api()->release_pinned(found);
  }

  void drop(size_t index) {
    ruda::api()->release(held_[index].data);
    held_[index] = held_.back();
    held_.pop_back();
  }

  void send(size_t index) {
    if (held_[index].stream == own_) order(held_[index], streams[shared_]);  // others may not use it
    parcel sent{held_[index], ruda::api()->create_event(static_cast<int32_t>(random_() % 2))};
    call(ruda::api()->record_event(sent.ready, sent.content.stream, &error_));
    held_[index] = held_.back();
    held_.pop_back();
    const std::lock_guard lock(mail.mutex);
    mail.parcels.push_back(sent);
  }

  void receive() {
    parcel got{};
    {
      const std::lock_guard lock(mail.mutex);
      if (mail.parcels.empty()) return;
      got = mail.parcels.front();
      mail.parcels.pop_front();
    }
    if (random_() % 3 == 0) {
      call(ruda::api()->synchronize_event(got.ready, &error_));
      if (ruda::api()->query_event(got.ready) == 0) complain("an event waited for is not done");
    } else {
      const int32_t stream = any_stream();
      call(ruda::api()->wait_event(stream, got.ready, &error_));
      call(ruda::api()->record_stream(got.content.data, stream, &error_));
      got.content.stream = stream;
    }
    ruda::api()->destroy_event(got.ready);
    held_.push_back(got.content);
  }

  void replay() {
    block& x = held_[random_() % held_.size()];
    block& y = held_[random_() % held_.size()];
    order(x, own_);
    order(y, own_);
    enter(own_);
    native::graph graph;
    call(graph.begin(own_, &error_));
    if (ruda::api()->is_capturing(own_) != 1) complain("a captured stream does not say so");
    call(stress::add(x.data, y.data, x.count, y.count, 2, random_, &error_));
    const block scratch = allocate(x.count, own_);  // kept by the graph
    call(ruda::api()->copy_on_device(scratch.data, x.data, static_cast<size_t>(x.count) * 8, own_,
                                     &error_));
    ruda::api()->release(scratch.data);
    call(graph.end(&error_));
    for (uint64_t times = 1 + random_() % 3; times > 0; --times) {
      call(graph.replay(own_, &error_));
      x.value = 2 * x.value + y.value;
    }
    if (random_() % 2 == 0) graph.close();
  }

  void time_some_work() {
    const int32_t stream = any_stream();
    const ruda_event begin = ruda::api()->create_event(1), end = ruda::api()->create_event(1);
    call(ruda::api()->record_event(begin, stream, &error_));
    ruda::api()->query_stream(stream);
    call(ruda::api()->record_event(end, stream, &error_));
    call(ruda::api()->synchronize_event(end, &error_));
    double milliseconds = -1;
    call(ruda::api()->elapsed_time(begin, end, &milliseconds, &error_));
    if (milliseconds < 0) complain("an event is %g ms before an earlier one", -milliseconds);
    ruda::api()->destroy_event(begin);
    ruda::api()->destroy_event(end);
    ruda_memory_stats stats{};
    ruda::api()->memory_stats(&stats);
    if (stats.allocated < 0 || stats.allocated > stats.peak_allocated)
      complain("%lld bytes are allocated, at most %lld were",
               static_cast<long long>(stats.allocated),
               static_cast<long long>(stats.peak_allocated));
  }

  std::mt19937_64 random_;
  ruda_error error_{};
  int32_t own_;
  size_t shared_;  // where the shared streams begin
  std::vector<block> held_;
};

// What the process must not have any more when the target has ended.
void count_what_is_left(void* library) {
  const auto counter = reinterpret_cast<int64_t (*)(const char*)>(dlsym(library, "ruda_double_counter"));
  for (const char* name : {"live_allocations", "live_host_allocations", "live_streams", "live_events",
                           "live_modules", "live_graphs", "live_graph_execs", "live_pools"})
    if (counter(name) != 0)
      complain("%s is %lld at the end", name, static_cast<long long>(counter(name)));
  const auto count = reinterpret_cast<int64_t (*)()>(dlsym(library, "ruda_double_report_count"));
  const auto report = reinterpret_cast<const char* (*)(int64_t)>(dlsym(library, "ruda_double_report"));
  for (int64_t i = 0; i < std::min<int64_t>(count(), 5); ++i) complain("%s", report(i));
}

}  // namespace

int main(int count, char** arguments) {
  const auto number_at = [&](int index, int64_t otherwise) {
    return index < count ? std::atoll(arguments[index]) : otherwise;
  };
  const int64_t rounds = number_at(2, 2000);
  const auto threads = static_cast<size_t>(number_at(3, 8));
  const auto seed = static_cast<uint64_t>(number_at(4, 1));
  void* library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL) : nullptr;
  if (library == nullptr || threads >= stream_count) {
    std::fprintf(stderr, "cuda_stress DOUBLE [rounds] [threads below 32] [seed]: %s\n",
                 library == nullptr ? dlerror() : "");
    return 2;
  }
  std::string problem = native::read_environment();
  native::prepare_allocator();
  native::prepare_thread_pool();
  native::prepare_streams();
  if (problem.empty()) problem = native::cuda::start();
  ruda_error error{};
  if (problem.empty() && ruda::attach(&native::api_table(), "stress", &error) != RUDA_OK)
    problem = error.message;
  if (problem.empty()) problem = stress::define_kernels();
  if (!problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 2;
  }

  streams.resize(stream_count);
  for (int32_t& stream : streams)
    if (ruda::api()->open_stream(&stream, &error) != RUDA_OK) complain("%s", error.message);
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i)
    running.emplace_back([=] {
      actor self(seed * 1000 + i, i, threads);
      for (int64_t round = 0; round < rounds; ++round) self.act();
    });
  for (std::thread& each : running) each.join();
  for (const parcel& left : mail.parcels) {
    ruda::api()->destroy_event(left.ready);
    ruda::api()->release(left.content.data);
  }
  if (ruda::api()->synchronize(-1, &error) != RUDA_OK) complain("%s", error.message);
  for (const int32_t stream : streams)
    if (ruda::api()->close_stream(stream, &error) != RUDA_OK) complain("%s", error.message);
  ruda::api()->empty_cache();
  ruda_memory_stats stats{};
  ruda::api()->memory_stats(&stats);
  if (stats.count != 0 || stats.allocated != 0 || stats.reserved != 0)
    complain("%lld blocks of %lld bytes are left, %lld reserved",
             static_cast<long long>(stats.count), static_cast<long long>(stats.allocated),
             static_cast<long long>(stats.reserved));
  native::shut_down_streams();
  count_what_is_left(library);
  std::printf("cuda, %s: %lld operations, %lld launches, %lld allocations, %lld wrong\n",
              ruda::api()->asynchronous() != 0 ? "asynchronous" : "synchronous",
              static_cast<long long>(rounds * static_cast<int64_t>(threads)),
              static_cast<long long>(stress::launches()), static_cast<long long>(stats.allocations),
              static_cast<long long>(wrong.load()));
  return wrong == 0 ? 0 : 1;
}
