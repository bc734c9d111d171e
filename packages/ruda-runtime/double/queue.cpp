#include "reports.hpp"
#include "settings.hpp"
#include "streams.hpp"

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace driver_double {
namespace {
std::atomic<uint64_t> next_id{1};
}

stream::stream(context& owner, unsigned stream_flags, role which)
    : handle{kind_of},
      in(owner),
      flags(stream_flags),
      as(which),
      id(next_id++),
      random_(settings::get().seed * 0x9e3779b97f4a7c15ull + id) {
  const char* kinds[] = {"stream", "default stream", "thread's stream"};
  std::snprintf(text, sizeof text, "%s %d", kinds[static_cast<int>(which)], static_cast<int>(id));
}

uint64_t stream::push(std::shared_ptr<operation> work, std::vector<position> waits) {
  std::lock_guard lock(mutex_);
  if (!started_) {
    std::thread([this] { this->work(); }).detach();
    started_ = true;
  }
  items_.push_back({std::move(work), std::move(waits)});
  uint64_t number = submitted_.load(std::memory_order_relaxed) + 1;
  submitted_.store(number, std::memory_order_release);
  arrived_.notify_one();
  return number;
}

void stream::work() {
  const int longest = settings::get().delay_us;
  for (;;) {
    item next;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] { return !items_.empty() || finishing_; });
      if (items_.empty()) return;
      next = std::move(items_.front());
      items_.pop_front();
    }
    for (const position& each : next.waits) each.on->wait(each.number);
    if (longest > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % (longest + 1)));
    }
    CUresult code = next.work->run(*this);
    if (code != CUDA_SUCCESS) fail(code);
    next.work.reset();
    {
      std::lock_guard lock(mutex_);
      completed_.fetch_add(1, std::memory_order_release);
    }
    done_.notify_all();
  }
}

void stream::wait(uint64_t number) {
  if (completed() >= number) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return completed() >= number; });
}

void stream::finish() {
  std::lock_guard lock(mutex_);
  finishing_ = true;
  arrived_.notify_one();
}

void stream::fail(CUresult code) {
  std::lock_guard lock(mutex_);
  if (failure_.load(std::memory_order_relaxed) != CUDA_SUCCESS) return;
  failure_text_ = thread_report();
  failure_.store(code);
}

CUresult stream::failure() const { return static_cast<CUresult>(failure_.load()); }

CUresult stream::take_failure() {
  if (failure_.load(std::memory_order_relaxed) == CUDA_SUCCESS) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  tell_failure(std::exchange(failure_text_, ""));
  return static_cast<CUresult>(failure_.exchange(CUDA_SUCCESS));
}

}  // namespace driver_double
