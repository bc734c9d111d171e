#include "server_link.hpp"

#include "reports.hpp"

namespace driver_double {

server_link& server_link::get() {
  static server_link& made = *new server_link;
  return made;
}

void server_link::allocated(const allocation&) {}
void server_link::freed(const allocation&) {}

CUresult server_link::launch(const kernel_operation& what, const stream&) {
  return report(CUDA_ERROR_NOT_SUPPORTED,
                "[cuLaunchKernel] kernel %s: this version of the double does not interpret yet; set "
                "RUDA_DOUBLE_RECORD_ONLY=1", what.what->name.c_str());
}

}  // namespace driver_double
