#include "environment.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ruda::native {
namespace {

environment current;

// A whole decimal number in [low, high].
bool parse_integer(const char* text, int64_t low, int64_t high, int64_t* value) {
  if (*text < '0' || *text > '9') return false;
  char* end = nullptr;
  errno = 0;
  const long long parsed = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != 0 || parsed < low || parsed > high) return false;
  *value = parsed;
  return true;
}

// An unset or empty variable counts as absent.
const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

std::string wrong(const char* name, const char* got, const char* wanted) {
  return std::string("[") + name + "] got '" + got + "', wanted " + wanted +
         "; correct or unset the variable before ruda_runtime is imported";
}

}  // namespace

const environment& settings() { return current; }

std::string read_environment() {
  environment read;
  int64_t number = 0;
  if (const char* text = variable("RUDA_NUM_THREADS")) {
    if (!parse_integer(text, 1, 1024, &number))
      return wrong("RUDA_NUM_THREADS", text, "a whole number from 1 to 1024");
    read.threads = static_cast<int32_t>(number);
  }
  if (const char* text = variable("RUDA_CPU")) {
    if (std::strcmp(text, "baseline") != 0 && std::strcmp(text, "auto") != 0)
      return wrong("RUDA_CPU", text, "'baseline' or 'auto'");
    read.baseline = std::strcmp(text, "baseline") == 0;
  }
  if (const char* text = variable("RUDA_MEMORY_LIMIT")) {
    if (!parse_integer(text, 1, INT64_MAX, &number))
      return wrong("RUDA_MEMORY_LIMIT", text, "a whole number of bytes above 0");
    read.memory_limit = number;
  }
  if (const char* text = variable("RUDA_MAX_STREAMS")) {
    if (!parse_integer(text, 1, 1024, &number))
      return wrong("RUDA_MAX_STREAMS", text, "a whole number from 1 to 1024");
    read.max_streams = static_cast<int32_t>(number);
  }
  for (const auto& [name, target] :
       {std::pair{"RUDA_POISON", &read.poison}, std::pair{"RUDA_ASYNC", &read.async}}) {
    if (const char* text = variable(name)) {
      if (!parse_integer(text, 0, 1, &number)) return wrong(name, text, "'0' or '1'");
      *target = number == 1;
    }
  }
  current = read;
  return "";
}

}  // namespace ruda::native
