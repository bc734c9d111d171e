// Streams: in-order queues, each with a worker thread that starts with the first piece of work.
#pragma once

#include "contexts.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <random>

namespace driver_double {

// One piece of device work. Shared, because an executable graph runs the same ones many times.
struct operation {
  enum class type {
    kernel = 0,
    copy = 1,
    set = 2,
    host = 3,
    graph = 4,
    empty = 5,
    wait = 6,
    record = 7,
    allocate = 10,
    free = 11
  };
  explicit operation(type kind_of_work) : kind(kind_of_work) {}
  virtual ~operation() = default;
  // In the stream's worker. A failure has been reported; it surfaces at the next synchronisation.
  virtual CUresult run(stream& on) = 0;
  // Calls `each` with addresses of the memory that the work is given.
  virtual void addresses(const std::function<void(uint64_t)>& each) const {}
  const type kind;
};

// A place in a stream: its first `number` pieces of work.
struct position {
  stream* on = nullptr;
  uint64_t number = 0;
};

struct capture;  // see capture.hpp

struct stream : handle {
  static constexpr kind kind_of = kind::stream;
  enum class role { made, legacy, per_thread };

  stream(context& owner, unsigned stream_flags, role which);

  context& in;
  const unsigned flags;
  const role as;
  uint64_t id = 0;
  int priority = 0;
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
  const char* name() const { return text; }

  // Queues the work behind what is there and behind the positions waited for.
  uint64_t push(std::shared_ptr<operation> work, std::vector<position> waits);

  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  bool idle() const { return completed() == submitted(); }
  void wait(uint64_t number);
  void finish();  // the worker ends when the queue is empty

  void fail(CUresult code);  // keeps the first one
  CUresult take_failure();   // hands it over, once
  CUresult failure() const;  // leaves it to the next wait

  std::atomic<capture*> capturing{nullptr};  // changed under capture_mutex

 private:
  struct item {
    std::shared_ptr<operation> work;
    std::vector<position> waits;
  };
  void work();

  char text[24];
  std::mutex mutex_;
  std::condition_variable arrived_, done_;
  std::deque<item> items_;
  bool started_ = false, finishing_ = false;
  std::atomic<uint64_t> submitted_{0}, completed_{0};
  std::atomic<int> failure_{0};
  std::string failure_text_;  // its report
  std::mt19937_64 random_;
};

// The stream that a handle means in the current context; null and the two special handles included.
CUresult resolve(const char* call, CUstream handle, stream** out);

// Gives work to a stream: captured, or queued behind what default-stream rules ask for. `where`
// gets the place of the work unless it was captured.
CUresult submit(const char* call, stream& to, std::shared_ptr<operation> work,
                position* where = nullptr);

// Queues work that waits for a position.
CUresult submit_wait(stream& to, position awaited);

// A call that must not come while the stream captures.
CUresult refuse_capture(const char* call, const stream& on);

CUresult synchronize(stream& on);
CUresult synchronize_context(context& of);
void wait_for_context(context& of);  // the same, leaving failures where they are

}  // namespace driver_double
