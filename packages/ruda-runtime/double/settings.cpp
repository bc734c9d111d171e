#include "settings.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace driver_double {
namespace {

void refuse(settings& to, const char* name, const char* value, const char* wanted) {
  if (to.error.empty()) {
    to.error = std::string("[driver double] ") + name + " is " + value + ", wanted " + wanted;
  }
}

void read(settings& to, const char* name, uint64_t low, uint64_t high, uint64_t& value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return;
  char* end = nullptr;
  errno = 0;
  uint64_t number = std::strtoull(text, &end, 0);
  if (errno != 0 || *end != 0 || *text == '-' || number < low || number > high) {
    std::string wanted = "a number from " + std::to_string(low) + " to " + std::to_string(high);
    refuse(to, name, text, wanted.c_str());
    return;
  }
  value = number;
}

template <class T>
void read_as(settings& to, const char* name, uint64_t low, uint64_t high, T& value) {
  uint64_t number = static_cast<uint64_t>(value);
  read(to, name, low, high, number);
  value = static_cast<T>(number);
}

// The driver's own rule: the listed ordinals up to the first that does not exist.
int visible(int devices) {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return devices;
  int count = 0;
  while (*text != 0) {
    char* end = nullptr;
    long ordinal = std::strtol(text, &end, 10);
    if (end == text || ordinal < 0 || ordinal >= devices || count == devices) break;
    ++count;
    text = *end == ',' ? end + 1 : end;
  }
  return count;
}

settings from_environment() {
  settings made;
  read_as(made, "RUDA_DOUBLE_DEVICES", 0, 8, made.devices);
  made.devices = visible(made.devices);
  if (const char* text = std::getenv("RUDA_DOUBLE_COMPUTE_CAPABILITY"); text != nullptr && *text) {
    int used = 0;
    if (std::sscanf(text, "%d.%d%n", &made.major, &made.minor, &used) != 2 || text[used] != 0 ||
        made.major < 5 || made.major > 15 || made.minor < 0 || made.minor > 9) {
      refuse(made, "RUDA_DOUBLE_COMPUTE_CAPABILITY", text, "MAJOR.MINOR, for example 9.0");
    }
  }
  read_as(made, "RUDA_DOUBLE_MEMORY", 1 << 20, 64ull << 30, made.memory);
  read_as(made, "RUDA_DOUBLE_DRIVER_VERSION", 11020, 99990, made.driver_version);
  read_as(made, "RUDA_DOUBLE_RECORD_ONLY", 0, 1, made.record_only);
  read_as(made, "RUDA_DOUBLE_SEED", 0, UINT64_MAX, made.seed);
  read_as(made, "RUDA_DOUBLE_DELAY_US", 0, 1000000, made.delay_us);
  read_as(made, "RUDA_DOUBLE_SHUFFLE", 0, 1, made.shuffle);
  read_as(made, "RUDA_DOUBLE_LEAKS", 0, 1, made.leaks);
  read_as(made, "RUDA_DOUBLE_ARENA", 1 << 20, 1ull << 47, made.arena);
  const char* python = std::getenv("RUDA_DOUBLE_PYTHON");
  made.python = python != nullptr && *python ? python : "python3";
  return made;
}

}  // namespace

const settings& settings::get() {
  static const settings& made = *new settings(from_environment());
  return made;
}

}  // namespace driver_double
