#include "json.hpp"

#include <charconv>
#include <stdexcept>

namespace driver_double {
namespace {

class reader {
 public:
  explicit reader(std::string_view source) : source_(source) {}

  json document() {
    json value = read(0);
    skip();
    if (at_ != source_.size()) fail("nothing more");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* wanted) const {
    throw std::invalid_argument("JSON: wanted " + std::string(wanted) + " at character " +
                                std::to_string(at_));
  }

  void skip() {
    while (at_ < source_.size() && std::string_view(" \t\r\n").find(source_[at_]) != source_.npos) {
      ++at_;
    }
  }

  bool take(char wanted) {
    skip();
    if (at_ >= source_.size() || source_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool word(std::string_view wanted) {
    if (source_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  json read(int depth) {
    if (depth > 64) fail("fewer levels");
    skip();
    json value;
    if (take('{')) {
      value.is = json::type::object;
      if (take('}')) return value;
      do {
        skip();
        std::string name = text();
        if (!take(':')) fail("':'");
        value.object[std::move(name)] = read(depth + 1);
      } while (take(','));
      if (!take('}')) fail("',' or '}'");
    } else if (take('[')) {
      value.is = json::type::list;
      if (take(']')) return value;
      do value.list.push_back(read(depth + 1));
      while (take(','));
      if (!take(']')) fail("',' or ']'");
    } else if (at_ < source_.size() && source_[at_] == '"') {
      value.is = json::type::text;
      value.text = text();
    } else if (word("true") || word("false")) {
      value.is = json::type::boolean;
      value.number = source_[at_ - 2] == 'u' ? 1 : 0;  // tr-u-e, fal-s-e
    } else if (!word("null")) {
      value.is = json::type::number;
      value.number = number();
    }
    return value;
  }

  double number() {
    // Python's json writes these three for floats that JSON has no numbers for.
    if (word("NaN")) return __builtin_nan("");
    if (word("Infinity")) return __builtin_inf();
    if (word("-Infinity")) return -__builtin_inf();
    double value = 0;
    const char* begin = source_.data() + at_;
    auto [end, code] = std::from_chars(begin, source_.data() + source_.size(), value);
    if (code != std::errc()) fail("a value");
    at_ += static_cast<size_t>(end - begin);
    return value;
  }

  unsigned hex4() {
    if (at_ + 4 > source_.size()) fail("four hexadecimal digits");
    unsigned value = 0;
    const char* begin = source_.data() + at_;
    if (std::from_chars(begin, begin + 4, value, 16).ptr != begin + 4) {
      fail("four hexadecimal digits");
    }
    at_ += 4;
    return value;
  }

  void append(std::string& to, unsigned code) {
    if (code < 0x80) {
      to += static_cast<char>(code);
    } else if (code < 0x800) {
      to += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      to += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
             static_cast<char>(0x80 | (code & 63))};
    } else {
      to += {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
             static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
  }

  std::string text() {
    if (!take('"')) fail("a string");
    std::string made;
    while (at_ < source_.size() && source_[at_] != '"') {
      char next = source_[at_++];
      if (next != '\\') {
        made += next;
        continue;
      }
      if (at_ >= source_.size()) fail("an escaped character");
      next = source_[at_++];
      constexpr std::string_view escapes = "bfnrt", meant = "\b\f\n\r\t";
      if (next == 'u') {
        unsigned code = hex4();
        if (code >= 0xd800 && code < 0xdc00 && word("\\u")) {
          code = 0x10000 + ((code - 0xd800) << 10) + (hex4() - 0xdc00);
        }
        append(made, code);
      } else if (size_t found = escapes.find(next); found != escapes.npos) {
        made += meant[found];
      } else {
        made += next;
      }
    }
    if (!take('"')) fail("the string's end");
    return made;
  }

  std::string_view source_;
  size_t at_ = 0;
};

}  // namespace

json json::parse(std::string_view source) { return reader(source).document(); }

const json& json::operator[](std::string_view name) const {
  static const json nothing;
  auto found = object.find(name);
  return found != object.end() ? found->second : nothing;
}

}  // namespace driver_double
