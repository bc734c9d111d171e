#include "shutdown.hpp"

#include "memory.hpp"
#include "modules.hpp"
#include "pinned.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {

void shut_down() noexcept {
  if (!usable()) return;
  finish_streams();
  unload_modules();
  destroy_pinned();
  destroy_pool();
  destroy_streams();
  end();
}

}  // namespace ruda::native::cuda
