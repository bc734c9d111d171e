#include "queue.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <exception>
#include <thread>

#include <ruda/entry.hpp>

#include "streams.hpp"
#include "thread_pool.hpp"
#include "waiting.hpp"

namespace ruda::native {

int32_t queue::submit(task* added, uint64_t* number, ruda_error* error) noexcept {
  if (const uint64_t last = submitted(); last - completed() >= max_length)
    wait(last - max_length + 1);
  {
    const std::lock_guard lock(mutex_);
    RUDA_CHECK(started_ || start(), error, RUDA_ERROR_RUNTIME,
               "[launch] the worker of stream %d could not be started: the system has no thread left",
               stream_);
    added->number = submitted_.load(std::memory_order_relaxed) + 1;
    *number = added->number;
    added->next = nullptr;
    (tail_ == nullptr ? head_ : tail_->next) = added;
    tail_ = added;
    submitted_.store(added->number, std::memory_order_release);
  }
  arrivals_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) != 0) futex_wake(arrivals_, 1);
  return RUDA_OK;
}

void queue::wait(uint64_t number) noexcept {
  const auto done = [&] { return completed_.load(std::memory_order_seq_cst) >= number; };
  if (done() || spin_and_yield_until(done)) return;
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = departures_.load(std::memory_order_seq_cst);
    if (done()) break;
    futex_wait(departures_, seen);
  }
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

int32_t queue::take_failure(uint64_t after, uint64_t until, ruda_error* error) noexcept {
  const std::lock_guard lock(mutex_);
  const auto within = [&](const failure& each) {
    return each.number > after && each.number <= until;
  };
  const auto first = std::find_if(failures_.begin(), failures_.end(), within);
  if (first == failures_.end()) return RUDA_OK;
  const int32_t code = first->error.code;
  const auto count = std::count_if(failures_.begin(), failures_.end(), within);
  if (error != nullptr) {
    *error = first->error;
    const size_t length = std::char_traits<char>::length(error->message);
    if (count > 1)
      std::snprintf(error->message + length, sizeof(error->message) - length,
                    " (%lld more of the work queued behind it failed)",
                    static_cast<long long>(count - 1));
  }
  std::erase_if(failures_, within);
  return code;
}

void queue::hold() noexcept {
  for (;;) {
    wait(submitted());
    mutex_.lock();
    if (idle()) return;
    mutex_.unlock();
  }
}

// Needs the lock.
bool queue::start() noexcept {
  // Signals are for the threads of the program, not for workers.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread worker([this] { work(); });
    pthread_setname_np(worker.native_handle(), "ruda-stream");
    worker.detach();  // it sleeps in a queue that is never destroyed
    started_ = true;
  } catch (const std::exception&) {
    started_ = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started_;
}

task* queue::pop() noexcept {
  const std::lock_guard lock(mutex_);
  task* first = head_;
  if (first != nullptr) {
    head_ = first->next;
    if (head_ == nullptr) tail_ = nullptr;
  }
  return first;
}

void queue::run(task& each) noexcept {
  ruda_error error;
  error.code = RUDA_OK;
  error.message[0] = 0;
  set_submitted_threads(each.threads);
  if (each.run(each, &error) == RUDA_OK) return;
  failure added{each.number, {}};
  fail(&added.error, error.code, "[%s] in the queued work of stream %d: %s", each.name, stream_,
       error.message);
  const std::lock_guard lock(mutex_);
  try {
    failures_.push_back(added);
  } catch (const std::exception&) {  // no memory to note it: say it where it can be said
    std::fprintf(stderr, "ruda_runtime: %s\n", added.error.message);
  }
}

void queue::complete(uint64_t number) noexcept {
  completed_.store(number, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  departures_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(departures_, INT_MAX);
}

void queue::work() noexcept {
  enter_stream(stream_);
  uint32_t seen = 0;
  for (;;) {
    while (task* each = pop()) {
      run(*each);
      const uint64_t number = each->number;
      each->destroy(*each);
      complete(number);
    }
    const auto arrived = [&] { return arrivals_.load(std::memory_order_seq_cst) != seen; };
    if (!spin_and_yield_until(arrived)) {
      asleep_.store(1, std::memory_order_seq_cst);
      while (!arrived()) futex_wait(arrivals_, seen);
      asleep_.store(0, std::memory_order_seq_cst);
    }
    seen = arrivals_.load(std::memory_order_seq_cst);
  }
}

}  // namespace ruda::native
