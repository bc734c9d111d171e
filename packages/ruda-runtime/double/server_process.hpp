// The interpreting server as a child process.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

namespace driver_double {

class server_process {
 public:
  // Starts it; false leaves the reason in `error`.
  bool start(std::string* error);

  // All of it or nothing; false: the server is gone.
  bool send(const void* data, size_t bytes);
  bool receive(void* data, size_t bytes);

  // How it ended, in words; waits for the end.
  std::string ending();

  // Closes the link, gives the server a moment, then kills it. No child is left behind.
  void stop();

 private:
  // A thread of its own: the kernel ties the server's life to the thread that made it.
  void live(int remote, int memory);

  std::mutex mutex_;
  std::condition_variable changed_;
  int socket_ = -1;
  int child_ = 0;  // 0: not started yet, -1: not startable
  int start_error_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace driver_double
