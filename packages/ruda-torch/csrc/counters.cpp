#include "counters.h"

namespace ruda_torch {

Counters& counters() {
  static Counters instance;
  return instance;
}

}  // namespace ruda_torch
