// What an argument struct holds, read at compile time from the text of its fields. A queued launch
// copies by this description; a field that it cannot describe does not compile.
//
// Fields may be
//   plain values        int64_t n;  double eps;  int32_t flags[4];
//   views               const ruda_view* x;                   null: absent
//   lists of views      const ruda_view* const* gradients;    null entries: absent ones
//   lists of values     const int64_t* offsets;
//   results             double* norm;                         written by the kernel
// A list's length is the int64_t field NAME_count, or for lists of views also the field `tensors`.
#ifndef RUDA_LAYOUT_HPP
#define RUDA_LAYOUT_HPP

#include <stddef.h>
#include <stdint.h>

namespace ruda::detail {

// FNV-1a of a struct's spelled-out fields: both sides of a launch compute it from the same header, and
// a header that changed on one side only is refused before the first call.
constexpr uint64_t fnv1a(const char* text) {
  uint64_t hash = 14695981039346656037ull;
  for (; *text != 0; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 1099511628211ull;
  return hash;
}

struct word {
  const char* text = nullptr;
  size_t length = 0;

  constexpr bool is(const char* other) const {
    size_t i = 0;
    for (; i < length && other[i] != 0; ++i)
      if (text[i] != other[i]) return false;
    return i == length && other[i] == 0;
  }
  // This word is `name` with `ending` behind it.
  constexpr bool is(const word& name, const char* ending) const {
    if (length < name.length) return false;
    for (size_t i = 0; i < name.length; ++i)
      if (text[i] != name.text[i]) return false;
    return word{text + name.length, length - name.length}.is(ending);
  }
};

constexpr bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The next name, number or sign of `text`, which moves behind it; empty at the end.
constexpr word next_word(const char*& text) {
  while (*text == ' ' || *text == '\n' || *text == '\t') ++text;
  const char* begin = text;
  if (is_name_char(*text)) {
    while (is_name_char(*text)) ++text;
  } else if (*text != 0) {
    ++text;
  }
  return {begin, static_cast<size_t>(text - begin)};
}

// Bytes of a plain type, which is also its alignment; 0: not one of them.
constexpr uint32_t plain_bytes(const word& type) {
  if (type.is("int64_t") || type.is("uint64_t") || type.is("size_t") || type.is("double")) return 8;
  if (type.is("int32_t") || type.is("uint32_t") || type.is("int") || type.is("float")) return 4;
  if (type.is("int16_t") || type.is("uint16_t")) return 2;
  if (type.is("int8_t") || type.is("uint8_t") || type.is("bool")) return 1;
  return 0;
}

struct declaration {
  word type, name;
  bool constant = false;  // the (innermost) pointee
  int pointers = 0;
  uint32_t elements = 1;  // of an array inside the struct
};

constexpr declaration parse_declaration(const char*& text, word first) {
  declaration result;
  if (first.is("const")) {
    result.constant = true;
    first = next_word(text);
  }
  result.type = first;
  word each = next_word(text);
  for (; each.is("*") || each.is("const"); each = next_word(text)) {
    if (each.is("*")) ++result.pointers;
    if (each.is("const") && result.pointers == 0) result.constant = true;
  }
  if (each.length == 0 || !is_name_char(*each.text)) throw "RUDA_ARGUMENTS: a field needs a name";
  result.name = each;
  for (each = next_word(text); each.is("["); each = next_word(text)) {
    const word number = next_word(text);
    uint32_t count = 0;
    for (size_t i = 0; i < number.length; ++i) {
      const char digit = number.text[i];
      if (digit < '0' || digit > '9') throw "RUDA_ARGUMENTS: an array's size must be a number";
      count = count * 10 + static_cast<uint32_t>(digit - '0');
    }
    result.elements *= count;
    if (!next_word(text).is("]")) throw "RUDA_ARGUMENTS: an array's size must be a number";
  }
  if (!each.is(";")) throw "RUDA_ARGUMENTS: one field a declaration, ended by a semicolon";
  return result;
}

// Calls visit(declaration, offset) for every field and returns the struct's size.
template <class Visit>
constexpr uint32_t walk_fields(const char* text, Visit&& visit) {
  uint32_t offset = 0, alignment = 1;
  for (;;) {
    const word first = next_word(text);
    if (first.length == 0) break;
    const declaration field = parse_declaration(text, first);
    const uint32_t bytes = field.pointers > 0 ? sizeof(void*) : plain_bytes(field.type);
    if (bytes == 0)
      throw "RUDA_ARGUMENTS: a field is a plain number, a pointer to ruda_view or a pointer to plain "
            "numbers";
    offset = (offset + bytes - 1) / bytes * bytes;
    alignment = bytes > alignment ? bytes : alignment;
    visit(field, offset);
    offset += bytes * field.elements;
  }
  return (offset + alignment - 1) / alignment * alignment;
}

// The offset of the int64_t field that says how long the list `name` is.
constexpr uint16_t count_offset(const char* text, const word& name, bool views) {
  uint32_t own = 0, shared = 0;
  bool has_own = false, has_shared = false;
  walk_fields(text, [&](const declaration& field, uint32_t offset) {
    if (field.pointers != 0 || field.elements != 1 || !field.type.is("int64_t")) return;
    if (field.name.is(name, "_count")) {
      own = offset;
      has_own = true;
    } else if (views && field.name.is("tensors")) {
      shared = offset;
      has_shared = true;
    }
  });
  if (!has_own && !has_shared)
    throw "RUDA_ARGUMENTS: a list needs its length, an int64_t field NAME_count (or `tensors`)";
  return static_cast<uint16_t>(has_own ? own : shared);
}

constexpr ruda_layout parse_layout(const char* text, size_t bytes) {
  ruda_layout result{};
  result.hash = fnv1a(text) ^ bytes;
  result.size = static_cast<uint32_t>(bytes);
  const uint32_t walked = walk_fields(text, [&](const declaration& field, uint32_t offset) {
    if (field.pointers == 0) return;
    if (field.elements != 1) throw "RUDA_ARGUMENTS: an array of pointers inside the struct";
    if (result.count == RUDA_MAX_FIELDS) throw "RUDA_ARGUMENTS: too many pointers";
    ruda_field& added = result.fields[result.count++];
    added.offset = static_cast<uint16_t>(offset);
    const uint32_t item = plain_bytes(field.type);
    if (field.type.is("ruda_view") && field.constant && field.pointers == 1) {
      added.kind = RUDA_FIELD_VIEW;
    } else if (field.type.is("ruda_view") && field.constant && field.pointers == 2) {
      added.kind = RUDA_FIELD_VIEWS;
      added.length = count_offset(text, field.name, true);
    } else if (item != 0 && field.pointers == 1) {
      added.kind = field.constant ? RUDA_FIELD_VALUES : RUDA_FIELD_RESULT;
      added.item = static_cast<uint16_t>(item);
      if (field.constant) added.length = count_offset(text, field.name, false);
    } else {
      throw "RUDA_ARGUMENTS: a pointer to something that cannot be copied";
    }
  });
  if (walked != bytes) throw "RUDA_ARGUMENTS: the fields do not add up to the struct";
  return result;
}

}  // namespace ruda::detail

// Defines `struct NAME { FIELDS };` and NAME##_layout.
#define RUDA_ARGUMENTS(NAME, ...)                                                        \
  struct NAME {                                                                          \
    __VA_ARGS__                                                                          \
  };                                                                                     \
  inline constexpr ruda_layout NAME##_layout =                                           \
      ::ruda::detail::parse_layout(#__VA_ARGS__, sizeof(NAME));

#endif  // RUDA_LAYOUT_HPP
