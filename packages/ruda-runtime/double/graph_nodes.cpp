#include "copies.hpp"
#include "entry.hpp"
#include "graphs.hpp"
#include "host_functions.hpp"
#include "launch.hpp"
#include "node_parameters.hpp"
#include "reports.hpp"

namespace driver_double {
namespace {

struct nothing_operation final : operation {
  nothing_operation() : operation(type::empty) {}
  CUresult run(stream&) override { return CUDA_SUCCESS; }
};

CUresult add(const char* call, CUgraphNode* out, CUgraph to, const CUgraphNode* needs, size_t count,
             std::shared_ptr<operation> work) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid(to)) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] no graph, or a graph that was destroyed", call);
  }
  for (size_t i = 0; i < count; ++i) {
    if (!valid(needs[i]) || needs[i]->in != to) {
      return report(CUDA_ERROR_INVALID_VALUE, "[%s] dependency %zu is no node of this graph", call,
                    i);
    }
  }
  *out = to->add(std::move(work), {needs, needs + count});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult work_of(const char* call, const CUDA_KERNEL_NODE_PARAMS& wanted,
                 std::shared_ptr<operation>* out) {
  launch_shape shape{{wanted.gridDimX, wanted.gridDimY, wanted.gridDimZ},
                     {wanted.blockDimX, wanted.blockDimY, wanted.blockDimZ},
                     wanted.sharedMemBytes};
  std::shared_ptr<kernel_operation> work;
  CUresult code = make_launch(call, wanted.func != nullptr ? wanted.func : wanted.kern, shape,
                              wanted.kernelParams, wanted.extra, &work);
  *out = std::move(work);
  return code;
}

CUresult work_of(const char* call, const CUDA_MEMCPY3D& wanted, std::shared_ptr<operation>* out) {
  if (wanted.srcMemoryType == CU_MEMORYTYPE_ARRAY || wanted.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto place = [](unsigned type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
  };
  copy_shape shape;
  shape.width = wanted.WidthInBytes;
  shape.rows = wanted.Height;
  shape.slices = wanted.Depth;
  shape.from_pitch = wanted.srcPitch != 0 ? wanted.srcPitch : shape.width;
  shape.to_pitch = wanted.dstPitch != 0 ? wanted.dstPitch : shape.width;
  shape.from_slice = shape.from_pitch * (wanted.srcHeight != 0 ? wanted.srcHeight : shape.rows);
  shape.to_slice = shape.to_pitch * (wanted.dstHeight != 0 ? wanted.dstHeight : shape.rows);
  shape.from = place(wanted.srcMemoryType, wanted.srcHost, wanted.srcDevice) + wanted.srcXInBytes +
               wanted.srcY * shape.from_pitch + wanted.srcZ * shape.from_slice;
  shape.to = place(wanted.dstMemoryType, wanted.dstHost, wanted.dstDevice) + wanted.dstXInBytes +
             wanted.dstY * shape.to_pitch + wanted.dstZ * shape.to_slice;
  if (CUresult code = check_copy(moment::submitting, call, shape); code != CUDA_SUCCESS)
    return code;
  *out = std::make_shared<copy_operation>(call, shape);
  return CUDA_SUCCESS;
}

CUresult work_of(const char* call, const CUDA_MEMSET_NODE_PARAMS& wanted,
                 std::shared_ptr<operation>* out) {
  const unsigned element = wanted.elementSize;
  if (element != 1 && element != 2 && element != 4) return CUDA_ERROR_INVALID_VALUE;
  auto work = std::make_shared<set_operation>(call, wanted.dst, wanted.value, element, wanted.width,
                                              wanted.height, wanted.pitch);
  if (CUresult code = work->check(moment::submitting); code != CUDA_SUCCESS) return code;
  *out = std::move(work);
  return CUDA_SUCCESS;
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                            size_t count, const CUDA_KERNEL_NODE_PARAMS* wanted) {
  const char* call = "cuGraphAddKernelNode";
  std::shared_ptr<operation> work;
  if (CUresult code = work_of(call, *wanted, &work); code != CUDA_SUCCESS) return code;
  return add(call, out, to, needs, count, std::move(work));
}

DRIVER_API CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                         size_t count, const CUDA_MEMCPY3D* wanted, CUcontext) {
  const char* call = "cuGraphAddMemcpyNode";
  std::shared_ptr<operation> work;
  if (CUresult code = work_of(call, *wanted, &work); code != CUDA_SUCCESS) return code;
  return add(call, out, to, needs, count, std::move(work));
}

DRIVER_API CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                         size_t count, const CUDA_MEMSET_NODE_PARAMS* wanted,
                                         CUcontext) {
  const char* call = "cuGraphAddMemsetNode";
  std::shared_ptr<operation> work;
  if (CUresult code = work_of(call, *wanted, &work); code != CUDA_SUCCESS) return code;
  return add(call, out, to, needs, count, std::move(work));
}

DRIVER_API CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                       size_t count, const CUDA_HOST_NODE_PARAMS* wanted) {
  if (wanted == nullptr || wanted->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add("cuGraphAddHostNode", out, to, needs, count,
             std::make_shared<host_operation>(wanted->fn, wanted->userData));
}

DRIVER_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                        size_t count) {
  return add("cuGraphAddEmptyNode", out, to, needs, count, std::make_shared<nothing_operation>());
}

DRIVER_API CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                             size_t count, CUgraph child) {
  if (!valid(child)) return CUDA_ERROR_INVALID_VALUE;
  return add("cuGraphAddChildGraphNode", out, to, needs, count,
             std::make_shared<graph_operation>(make_plan(*child), 0));
}

// The pointers in the answer stay valid as long as the node keeps its parameters.
DRIVER_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode of, CUDA_KERNEL_NODE_PARAMS* out) {
  if (!valid(of) || of->work->kind != operation::type::kernel) return CUDA_ERROR_INVALID_VALUE;
  auto& work = static_cast<kernel_operation&>(*of->work);
  if (work.pointers.empty()) {
    for (uint64_t& each : work.values) work.pointers.push_back(&each);
  }
  const launch_shape& shape = work.shape;
  *out = {work.what,      shape.grid[0],  shape.grid[1],
          shape.grid[2],  shape.block[0], shape.block[1],
          shape.block[2], shape.shared,   work.pointers.empty() ? nullptr : work.pointers.data(),
          nullptr,        nullptr,        nullptr};
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode of,
                                                  const CUDA_KERNEL_NODE_PARAMS* wanted) {
  if (!valid(of) || of->work->kind != operation::type::kernel) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<operation> work;
  CUresult code = work_of("cuGraphKernelNodeSetParams", *wanted, &work);
  if (code == CUDA_SUCCESS) of->work = std::move(work);
  return code;
}

DRIVER_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode of, const CUDA_MEMCPY3D* wanted) {
  if (!valid(of) || of->work->kind != operation::type::copy) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<operation> work;
  CUresult code = work_of("cuGraphMemcpyNodeSetParams", *wanted, &work);
  if (code == CUDA_SUCCESS) of->work = std::move(work);
  return code;
}

DRIVER_API CUresult cuGraphMemsetNodeGetParams(CUgraphNode of, CUDA_MEMSET_NODE_PARAMS* out) {
  if (!valid(of) || of->work->kind != operation::type::set) return CUDA_ERROR_INVALID_VALUE;
  const auto& work = static_cast<const set_operation&>(*of->work);
  *out = {work.to, work.pitch, work.value, work.element, work.width, work.rows};
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode of,
                                               const CUDA_MEMSET_NODE_PARAMS* wanted) {
  if (!valid(of) || of->work->kind != operation::type::set) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<operation> work;
  CUresult code = work_of("cuGraphMemsetNodeSetParams", *wanted, &work);
  if (code == CUDA_SUCCESS) of->work = std::move(work);
  return code;
}

namespace {
const entry_table entries{
    entry<&cuGraphAddKernelNode_v2>("cuGraphAddKernelNode", 12000),
    entry<&cuGraphAddMemcpyNode>("cuGraphAddMemcpyNode", 10000),
    entry<&cuGraphAddMemsetNode>("cuGraphAddMemsetNode", 10000),
    entry<&cuGraphAddHostNode>("cuGraphAddHostNode", 10000),
    entry<&cuGraphAddEmptyNode>("cuGraphAddEmptyNode", 10000),
    entry<&cuGraphAddChildGraphNode>("cuGraphAddChildGraphNode", 10000),
    entry<&cuGraphKernelNodeGetParams_v2>("cuGraphKernelNodeGetParams", 12000),
    entry<&cuGraphKernelNodeSetParams_v2>("cuGraphKernelNodeSetParams", 12000),
    entry<&cuGraphMemcpyNodeSetParams>("cuGraphMemcpyNodeSetParams", 10000),
    entry<&cuGraphMemsetNodeGetParams>("cuGraphMemsetNodeGetParams", 10000),
    entry<&cuGraphMemsetNodeSetParams>("cuGraphMemsetNodeSetParams", 10000),
};
}
