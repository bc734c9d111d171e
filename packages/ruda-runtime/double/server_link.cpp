#include "server_link.hpp"

#include "reports.hpp"
#include "settings.hpp"

#include <cstring>

namespace driver_double {
namespace {

// The messages; ruda_runtime/testing/server.py has the other side. All numbers are little-endian.
struct describe_message {
  uint32_t kind = 1, bytes = 0;  // of the text behind it
  uint64_t number = 0;
};

struct launch_message {
  uint32_t kind = 2, changes = 0;  // changes and then values come behind
  uint64_t number = 0, launch = 0;
  uint32_t grid[3] = {}, values = 0;
};

struct reply {
  uint32_t code = 0, bytes = 0;  // a CUresult, and the length of the text behind it
};

}  // namespace

server_link& server_link::get() {
  static server_link& made = *new server_link;
  return made;
}

void server_link::allocated(const allocation& of) {
  if (settings::get().record_only) return;
  std::lock_guard lock(changes_mutex_);
  changes_.push_back({of.start, of.size, of.serial});
}

void server_link::freed(const allocation& of) {
  if (settings::get().record_only) return;
  std::lock_guard lock(changes_mutex_);
  changes_.push_back({of.start, 0, of.serial});
}

bool server_link::send_launch(const kernel_operation& what, const description& of) {
  if (described_.insert(of.number).second) {
    describe_message head;
    head.bytes = static_cast<uint32_t>(of.text.size());
    head.number = of.number;
    if (!process_.send(&head, sizeof head) || !process_.send(of.text.data(), of.text.size())) {
      return false;
    }
  }
  std::vector<change> changes;
  {
    std::lock_guard lock(changes_mutex_);
    changes.swap(changes_);
  }
  launch_message head;
  head.changes = static_cast<uint32_t>(changes.size());
  head.number = of.number;
  head.launch = ++launches_;
  std::copy(what.shape.grid.begin(), what.shape.grid.end(), head.grid);
  head.values = static_cast<uint32_t>(what.values.size());
  std::vector<char> message(sizeof head + changes.size() * sizeof(change) + what.values.size() * 8);
  char* at = message.data();
  std::memcpy(at, &head, sizeof head);
  if (!changes.empty())
    std::memcpy(at + sizeof head, changes.data(), changes.size() * sizeof(change));
  std::memcpy(at + sizeof head + changes.size() * sizeof(change), what.values.data(),
              what.values.size() * 8);
  return process_.send(message.data(), message.size());
}

CUresult server_link::lost(const kernel_operation& what) {
  failed_ = true;
  if (stopping_) return CUDA_ERROR_DEINITIALIZED;
  return report(
      CUDA_ERROR_LAUNCH_FAILED,
      "[cuLaunchKernel] kernel %s: the interpreting server is gone: %s; its own messages are "
      "on stderr. Nothing can be launched in this process any more",
      what.what->name.c_str(), process_.ending().c_str());
}

CUresult server_link::launch(const kernel_operation& what, const stream& on) {
  const description* of = what.what->described();
  std::lock_guard lock(mutex_);
  if (failed_) {
    return report(CUDA_ERROR_LAUNCH_FAILED,
                  "[cuLaunchKernel] kernel %s: the interpreting server ended before",
                  what.what->name.c_str());
  }
  if (!started_) {
    std::string error;
    if (!process_.start(&error)) {
      failed_ = true;
      return report(CUDA_ERROR_LAUNCH_FAILED,
                    "[cuLaunchKernel] the interpreting server cannot be started: %s",
                    error.c_str());
    }
    started_ = true;
  }
  reply answer;
  if (!send_launch(what, *of) || !process_.receive(&answer, sizeof answer)) return lost(what);
  std::string text(answer.bytes, 0);
  if (!process_.receive(text.data(), text.size())) return lost(what);
  if (answer.code == CUDA_SUCCESS) {
    ++counters::get().interpreted;
    return CUDA_SUCCESS;
  }
  const auto& grid = what.shape.grid;
  return report(static_cast<CUresult>(answer.code),
                "[cuLaunchKernel] kernel %s (%s) with grid (%u, %u, %u) on %s: %s",
                of->name.c_str(), of->function.c_str(), grid[0], grid[1], grid[2], on.name(),
                text.c_str());
}

void server_link::stop() {
  stopping_ = true;
  process_.stop();
}

}  // namespace driver_double
