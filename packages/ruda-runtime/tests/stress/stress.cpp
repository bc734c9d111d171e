// Threads that allocate, launch, record, wait, hand blocks to each other and free them in random order,
// against a model of what every block holds. For builds with -fsanitize=address and -fsanitize=thread
// (tools/sanitize.py).
//
//   stress [rounds a thread] [threads] [seed]        RUDA_ASYNC=0|1 as for every program
//
// Every element of a block has one value, which the model knows: work on a block is a function of the
// values before it. Prints what it did and exits with 1 when a value, an error or a count is wrong.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ruda/entry.hpp>

#include "allocator.hpp"
#include "api.hpp"
#include "environment.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

namespace {

constexpr int64_t max_elements = 6000;  // small and large blocks of the allocator
constexpr size_t max_held = 12;

std::atomic<int64_t> wrong{0};

[[gnu::format(printf, 1, 2)]] void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  ++wrong;
}

// ---- kernels --------------------------------------------------------------------------------

// x = value
RUDA_ARGUMENTS(fill_args, const ruda_view* x; int64_t value;)
// x = factor * x + the sum of the others
RUDA_ARGUMENTS(combine_args, const ruda_view* x; const ruda_view* const* others;
               const int64_t* factors; int64_t factors_count; int64_t others_count;)
// The sum of x, given to host memory or to a block.
RUDA_ARGUMENTS(sum_args, const ruda_view* x; int64_t* sum;)
RUDA_ARGUMENTS(fail_args, int64_t code;)

using number = uint64_t;  // wraps around

number* numbers(const ruda_view* view) { return ruda::data<number>(*view); }

int32_t fill(const void* raw, ruda_error* error) {
  return ruda::guard("stress.fill", error, [&]() -> int32_t {
    const auto& args = *static_cast<const fill_args*>(raw);
    ruda::parallel_for(0, args.x->sizes[0], 256, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) numbers(args.x)[i] = static_cast<number>(args.value);
    });
    return RUDA_OK;
  });
}

int32_t combine(const void* raw, ruda_error* error) {
  return ruda::guard("stress.combine", error, [&]() -> int32_t {
    const auto& args = *static_cast<const combine_args*>(raw);
    const int64_t count = args.x->sizes[0];
    const int32_t threads = ruda::api()->num_threads();
    const ruda::scratch<number> sums(count);
    const ruda::scratch<number> parts(threads);
    ruda::parallel_for(0, count, 128, [&](int64_t begin, int64_t end, int32_t worker) {
      if (worker >= threads) complain("worker %d of %d", worker, threads);
      for (int64_t i = begin; i < end; ++i) {
        parts[worker] = static_cast<number>(args.factors[0]) * numbers(args.x)[i];
        for (int64_t k = 0; k < args.others_count; ++k)
          if (args.others[k] != nullptr)
            parts[worker] += numbers(args.others[k])[i % args.others[k]->sizes[0]];
        sums[i] = parts[worker];
      }
    });
    for (int64_t i = 0; i < count; ++i) numbers(args.x)[i] = sums[i];
    return RUDA_OK;
  });
}

int32_t sum(const void* raw, ruda_error*) {
  const auto& args = *static_cast<const sum_args*>(raw);
  number total = 0;
  for (int64_t i = 0; i < args.x->sizes[0]; ++i) total += numbers(args.x)[i];
  *args.sum = static_cast<int64_t>(total);
  return RUDA_OK;
}

int32_t fail(const void* raw, ruda_error* error) {
  const auto& args = *static_cast<const fail_args*>(raw);
  return ruda::fail(error, static_cast<int32_t>(args.code), "[stress] asked to fail");
}

const ruda_kernel* kernel(const char* name, const ruda_layout& layout) {
  const ruda_kernel* found = nullptr;
  ruda_error error{};
  if (ruda::find_kernel(name, layout, &found, &error) != RUDA_OK) complain("%s", error.message);
  return found;
}

void register_kernels() {
  ruda_error error{};
  for (const auto& [name, layout, run] :
       {std::tuple{"stress.fill", &fill_args_layout, &fill},
        std::tuple{"stress.combine", &combine_args_layout, &combine},
        std::tuple{"stress.sum", &sum_args_layout, &sum},
        std::tuple{"stress.fail", &fail_args_layout, &fail}})
    if (ruda::register_kernel(name, "stress", *layout, run, &error) != RUDA_OK)
      complain("%s", error.message);
}

// ---- the model ------------------------------------------------------------------------------

struct block {
  number* data;
  int64_t count;
  number value;  // of every element once the work submitted so far is done
};

// A view that goes out of scope as soon as the launch has returned.
struct passing_view {
  explicit passing_view(const block& of)
      : sizes{of.count}, strides{1}, view{of.data, sizes, strides, 1, RUDA_INT64, RUDA_HOST, 0} {}
  ~passing_view() {  // a shallow copy would show
    sizes[0] = -1;
    view.data = nullptr;
  }
  int64_t sizes[1];
  int64_t strides[1];
  ruda_view view;
};

struct parcel {
  block content;
  ruda_event ready;
};

struct mailbox {
  std::mutex mutex;
  std::deque<parcel> parcels;
} mail;

class actor {
 public:
  actor(uint64_t seed, int64_t* operations) : random_(seed), operations_(operations) {
    for (int32_t& stream : streams_) call(ruda::api()->open_stream(&stream, &error_));
  }
  ~actor() {
    while (!held_.empty()) drop(held_.size() - 1);
    synchronize();
    for (const int32_t stream : streams_) call(ruda::api()->close_stream(stream, &error_));
  }

  void act() {
    ++*operations_;
    const uint64_t choice = random_() % 100;
    if (held_.size() < 3 || (choice < 20 && held_.size() < max_held)) return create();
    if (choice < 55) return mix();
    if (choice < 65) return drop(random_() % held_.size());
    if (choice < 72) return check(random_() % held_.size());
    if (choice < 80) return total(random_() % held_.size());
    if (choice < 86) return change_stream();
    if (choice < 91) return send(random_() % held_.size());
    if (choice < 96) return receive();
    if (choice < 98) return expect_failure();
    ruda::api()->empty_cache();
  }

 private:
  void call(int32_t status) {
    if (status != RUDA_OK) complain("status %d: %s", status, error_.message);
  }
  int32_t stream() const { return streams_[current_]; }
  void launch(const ruda_kernel* which, const void* args) {
    call(ruda::api()->launch(which, args, ruda::api()->stream_handle(stream()), &error_));
  }
  void synchronize() { call(ruda::api()->synchronize(stream(), &error_)); }

  void create() {
    call(ruda::api()->set_current_stream(stream(), &error_));  // whose the block will be
    const bool on_host = random_() % 4 == 0;
    if (on_host) synchronize();  // what was queued may still use the memory
    block made{nullptr, 1 + static_cast<int64_t>(random_() % max_elements), random_() % 1000};
    made.data =
        static_cast<number*>(ruda::api()->allocate(static_cast<size_t>(made.count) * 8, &error_));
    if (made.data == nullptr) return complain("%s", error_.message);
    if (on_host) {
      std::fill_n(made.data, made.count, made.value);
      return held_.push_back(made);
    }
    static const ruda_kernel* const which = kernel("stress.fill", fill_args_layout);
    const passing_view x(made);
    fill_args args{&x.view, static_cast<int64_t>(made.value)};
    launch(which, &args);
    args = {};
    held_.push_back(made);
  }

  void mix() {
    static const ruda_kernel* const which = kernel("stress.combine", combine_args_layout);
    block& target = held_[random_() % held_.size()];
    const block& other = held_[random_() % held_.size()];
    int64_t factor = static_cast<int64_t>(random_() % 3);
    const passing_view x(target);
    const passing_view y(other);
    const ruda_view* others[] = {nullptr, &y.view};
    const combine_args args{&x.view, others, &factor, 1, 2};
    const number value = static_cast<number>(factor) * target.value + other.value;
    launch(which, &args);
    factor = 99;  // a queue that kept the pointers would see these
    others[1] = nullptr;
    target.value = value;
  }

  void check(size_t index) {
    synchronize();
    const block& each = held_[index];
    for (int64_t i = 0; i < each.count; ++i)
      if (each.data[i] != each.value)
        return complain("element %lld of %lld is %llu, wanted %llu", static_cast<long long>(i),
                        static_cast<long long>(each.count),
                        static_cast<unsigned long long>(each.data[i]),
                        static_cast<unsigned long long>(each.value));
  }

  // The launch waits by itself: the result is on this thread's stack.
  void total(size_t index) {
    static const ruda_kernel* const which = kernel("stress.sum", sum_args_layout);
    int64_t result = -1;
    const passing_view x(held_[index]);
    const sum_args args{&x.view, &result};
    launch(which, &args);
    const auto wanted =
        static_cast<int64_t>(static_cast<number>(held_[index].count) * held_[index].value);
    if (result != wanted)
      complain("sum %lld, wanted %lld", static_cast<long long>(result),
               static_cast<long long>(wanted));
  }

  void drop(size_t index) {
    ruda::api()->release(held_[index].data);
    held_[index] = held_.back();
    held_.pop_back();
  }

  void change_stream() {
    const int32_t before = stream();
    current_ = 1 - current_;
    call(ruda::api()->wait_stream(stream(), before, &error_));
    for (const block& each : held_) call(ruda::api()->record_stream(each.data, stream(), &error_));
  }

  void send(size_t index) {
    parcel sent{held_[index], ruda::api()->create_event(static_cast<int32_t>(random_() % 2))};
    call(ruda::api()->record_event(sent.ready, stream(), &error_));
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
    const bool on_host = random_() % 3 == 0;
    if (on_host) {
      call(ruda::api()->synchronize_event(got.ready, &error_));
      if (ruda::api()->query_event(got.ready) == 0) complain("an event waited for is not done");
    } else {
      call(ruda::api()->wait_event(stream(), got.ready, &error_));
    }
    ruda::api()->destroy_event(got.ready);
    for (const int32_t each : streams_)
      call(ruda::api()->record_stream(got.content.data, each, &error_));
    held_.push_back(got.content);
  }

  void expect_failure() {
    static const ruda_kernel* const which = kernel("stress.fail", fail_args_layout);
    const fail_args args{RUDA_ERROR_TYPE};
    const bool queued = ruda::api()->asynchronous() != 0;
    const int32_t at_once =
        ruda::api()->launch(which, &args, ruda::api()->stream_handle(stream()), &error_);
    const int32_t later = ruda::api()->synchronize(stream(), &error_);
    const int32_t again = ruda::api()->synchronize(stream(), &error_);
    if (at_once != (queued ? RUDA_OK : RUDA_ERROR_TYPE) ||
        later != (queued ? RUDA_ERROR_TYPE : RUDA_OK) || again != RUDA_OK)
      complain("a failure surfaced as %d, %d, %d", at_once, later, again);
  }

  std::mt19937_64 random_;
  int64_t* operations_;
  ruda_error error_{};
  int32_t streams_[2] = {0, 0};
  int current_ = 0;
  std::vector<block> held_;
};

}  // namespace

int main(int count, char** arguments) {
  const auto number_at = [&](int index, int64_t otherwise) {
    return index < count ? std::atoll(arguments[index]) : otherwise;
  };
  const int64_t rounds = number_at(1, 2000);
  const int64_t threads = number_at(2, 8);
  const auto seed = static_cast<uint64_t>(number_at(3, 1));

  namespace native = ruda::native;
  if (const std::string problem = native::read_environment(); !problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 2;
  }
  native::prepare_allocator();
  native::prepare_thread_pool();
  native::prepare_streams();
  ruda_error error{};
  if (ruda::attach(&native::api_table(), "stress", &error) != RUDA_OK) return 2;
  register_kernels();

  std::vector<int64_t> operations(static_cast<size_t>(threads) * 16);  // a line each
  std::vector<std::thread> running;
  for (int64_t i = 0; i < threads; ++i)
    running.emplace_back([&, i] {
      actor self(seed * 1000 + static_cast<uint64_t>(i), &operations[static_cast<size_t>(i) * 16]);
      for (int64_t round = 0; round < rounds; ++round) self.act();
    });
  // Meanwhile the number of threads changes: queued loops keep the one they were submitted with.
  for (int32_t round = 0; round < 40; ++round) {
    if (ruda::api()->set_num_threads(1 + round % 4, &error) != RUDA_OK) complain("%s", error.message);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& each : running) each.join();
  for (const parcel& left : mail.parcels) {
    if (ruda::api()->synchronize_event(left.ready, &error) != RUDA_OK) complain("%s", error.message);
    ruda::api()->destroy_event(left.ready);
    ruda::api()->release(left.content.data);
  }
  if (ruda::api()->synchronize(-1, &error) != RUDA_OK) complain("%s", error.message);
  native::shut_down_streams();
  ruda::api()->empty_cache();
  ruda_memory_stats stats{};
  ruda::api()->memory_stats(&stats);
  if (stats.count != 0 || stats.allocated != 0 || stats.reserved != 0)
    complain("%lld blocks of %lld bytes are left, %lld reserved",
             static_cast<long long>(stats.count), static_cast<long long>(stats.allocated),
             static_cast<long long>(stats.reserved));
  int64_t all = 0;
  for (const int64_t each : operations) all += each;
  std::printf("%s: %lld operations, %lld launches, %lld allocations, %lld wrong\n",
              ruda::api()->asynchronous() != 0 ? "asynchronous" : "synchronous",
              static_cast<long long>(all), static_cast<long long>(ruda::api()->launch_count()),
              static_cast<long long>(stats.allocations), static_cast<long long>(wrong.load()));
  return wrong == 0 ? 0 : 1;
}
