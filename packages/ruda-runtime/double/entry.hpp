// What every entry point shares: the checks on entering, and the table behind cuGetProcAddress.
#pragma once

#include "driver_types.hpp"

namespace driver_double {

// Fails before cuInit, and in a child of the process that called it.
CUresult enter();
bool initialised();

// While true, the null stream means the calling thread's default stream.
extern thread_local bool null_is_per_thread;

using entry_pointer = void (*)();

// One version of one symbol. `function` is the variant with the legacy default stream.
void add_entry(const char* name, int version, entry_pointer function, entry_pointer per_thread);

template <auto function>
struct per_thread_variant;

template <class... Arguments, CUresult (*function)(Arguments...)>
struct per_thread_variant<function> {
  static CUresult call(Arguments... arguments) {
    struct scope {
      bool before = null_is_per_thread;
      scope() { null_is_per_thread = true; }
      ~scope() { null_is_per_thread = before; }
    } in_scope;
    return function(arguments...);
  }
};

// In each source file, after its functions: `const entry_table table{entry<&cuInit>("cuInit",
// 2000)};`
struct entry_row {};

template <auto function>
entry_row entry(const char* name, int version) {
  add_entry(name, version, reinterpret_cast<entry_pointer>(function),
            reinterpret_cast<entry_pointer>(&per_thread_variant<function>::call));
  return {};
}

struct entry_table {
  template <class... Rows>
  explicit entry_table(Rows...) {}
};

}  // namespace driver_double
