// As much JSON as a kernel's description needs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace driver_double {

struct json {
  enum class type { null, boolean, number, text, list, object };
  type is = type::null;
  double number = 0;  // a boolean is 0 or 1
  std::string text;
  std::vector<json> list;
  std::map<std::string, json, std::less<>> object;

  // Throws std::invalid_argument with the place of the fault.
  static json parse(std::string_view source);

  // A member, or null where there is none.
  const json& operator[](std::string_view name) const;
  bool is_text() const { return is == type::text; }
  bool is_number() const { return is == type::number; }
};

}  // namespace driver_double
