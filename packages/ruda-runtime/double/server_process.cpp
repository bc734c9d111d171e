#include "server_process.hpp"

#include "arena.hpp"
#include "settings.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

extern char** environ;

namespace driver_double {
namespace {

// What the server must not inherit: it interprets, on the host target.
constexpr const char* dropped[] = {"TRITON_INTERPRET=", "RUDA_TARGET=",      "RUDA_CUDA_DRIVER=",
                                   "RUDA_ASYNC=",       "RUDA_TORCH_ASYNC=", "RUDA_POISON="};

std::vector<std::string> environment() {
  const char* path = std::getenv("RUDA_DOUBLE_PYTHONPATH");
  const bool threads = std::getenv("OPENBLAS_NUM_THREADS") != nullptr;
  std::vector<std::string> made;
  for (char** each = environ; *each != nullptr; ++each) {
    bool keep = path == nullptr || std::strncmp(*each, "PYTHONPATH=", 11) != 0;
    for (const char* name : dropped) keep &= std::strncmp(*each, name, std::strlen(name)) != 0;
    if (keep) made.emplace_back(*each);
  }
  made.emplace_back("TRITON_INTERPRET=1");
  made.emplace_back("RUDA_TARGET=host");
  if (!threads) made.emplace_back("OPENBLAS_NUM_THREADS=1");  // products of single blocks
  if (path != nullptr) made.emplace_back(std::string("PYTHONPATH=") + path);
  return made;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> made;
  for (std::string& each : texts) made.push_back(each.data());
  made.push_back(nullptr);
  return made;
}

}  // namespace

bool server_process::start(std::string* error) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    *error = std::strerror(errno);
    return false;
  }
  // Above the numbers that they get in the child.
  int remote = fcntl(ends[1], F_DUPFD_CLOEXEC, 100);
  int memory = fcntl(arena::get().descriptor(), F_DUPFD_CLOEXEC, 100);
  close(ends[1]);
  socket_ = ends[0];
  std::thread([this, remote, memory] { live(remote, memory); }).detach();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return child_ != 0; });
  if (child_ > 0) return true;
  *error = settings::get().python + ": " + std::strerror(start_error_);
  return false;
}

void server_process::live(int remote, int memory) {
  const settings& values = settings::get();
  const arena& at = arena::get();
  std::vector<std::string> words{values.python,
                                 "-m",
                                 "ruda_runtime.testing.server",
                                 std::to_string(at.device_begin()),
                                 std::to_string(at.host_end() - at.device_begin()),
                                 std::to_string(values.seed),
                                 std::to_string(int{values.shuffle})};
  std::vector<std::string> variables = environment();
  std::vector<char*> arguments = pointers(words), inherited = pointers(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, remote, 3);
  posix_spawn_file_actions_adddup2(&actions, memory, 4);
  pid_t child = -1;
  int code = posix_spawnp(&child, values.python.c_str(), &actions, nullptr, arguments.data(),
                          inherited.data());
  posix_spawn_file_actions_destroy(&actions);
  close(remote);
  close(memory);
  {
    std::lock_guard lock(mutex_);
    child_ = code == 0 ? child : -1;
    start_error_ = code;
  }
  changed_.notify_all();
  if (code != 0) return;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::lock_guard lock(mutex_);
  status_ = status;
  ended_ = true;
  changed_.notify_all();
}

bool server_process::send(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t sent = ::send(socket_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool server_process::receive(void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t got = recv(socket_, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

std::string server_process::ending() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::seconds(5), [this] { return ended_; })) {
    return "it closed its connection";
  }
  if (WIFSIGNALED(status_)) {
    return std::string("it was ended by signal ") + std::to_string(WTERMSIG(status_)) + " (" +
           strsignal(WTERMSIG(status_)) + ")";
  }
  return "it ended with exit code " + std::to_string(WEXITSTATUS(status_));
}

void server_process::stop() {
  std::unique_lock lock(mutex_);
  if (child_ <= 0) return;
  shutdown(socket_, SHUT_RDWR);
  auto ended = [this] { return ended_; };
  if (changed_.wait_for(lock, std::chrono::milliseconds(500), ended)) return;
  kill(child_, SIGKILL);
  changed_.wait_for(lock, std::chrono::seconds(2), ended);
}

}  // namespace driver_double
