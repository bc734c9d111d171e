// The work that a node's parameters ask for, checked.
#pragma once

#include "streams.hpp"

namespace driver_double {

CUresult work_of(const char* call, const CUDA_KERNEL_NODE_PARAMS& wanted,
                 std::shared_ptr<operation>* out);
CUresult work_of(const char* call, const CUDA_MEMCPY3D& wanted, std::shared_ptr<operation>* out);
CUresult work_of(const char* call, const CUDA_MEMSET_NODE_PARAMS& wanted,
                 std::shared_ptr<operation>* out);

}  // namespace driver_double
