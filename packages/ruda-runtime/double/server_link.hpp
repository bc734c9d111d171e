// The link to the process that interprets kernels: it starts with the first launch.
#pragma once

#include "launch.hpp"
#include "memory.hpp"
#include "server_process.hpp"

#include <set>

namespace driver_double {

class server_link {
 public:
  static server_link& get();

  // What the server checks pointers against, in the device's order; sent with the next launch.
  void allocated(const allocation& of);
  void freed(const allocation& of);

  // Runs the kernel; returns when it is done. One at a time.
  CUresult launch(const kernel_operation& what, const stream& on);

  void stop();

 private:
  struct change {
    uint64_t start, size, serial;  // size 0: freed
  };
  bool send_launch(const kernel_operation& what, const description& of);
  CUresult lost(const kernel_operation& what);

  std::mutex changes_mutex_;
  std::vector<change> changes_;

  std::mutex mutex_;
  server_process process_;
  bool started_ = false, failed_ = false;
  std::set<uint64_t> described_;
  uint64_t launches_ = 0;
  std::atomic<bool> stopping_{false};
};

}  // namespace driver_double
