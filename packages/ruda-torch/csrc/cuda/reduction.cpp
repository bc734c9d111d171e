#include "cuda/reduction.h"

#include "cuda/operators.h"
#include "runtime.h"

#include <ATen/ops/empty.h>
#include <ruda/device.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;

ruda::device_kernel reduce_kernel{"reduction.reduce"};
ruda::device_kernel locate_kernel{"reduction.locate"};
ruda::device_kernel cumulate_kernel{"reduction.cumulate"};

constexpr size_t kMostDims = 4;
constexpr int64_t kPrograms = 512;    // fewer: the reduction is split into parts
constexpr int64_t kSmallestPart = 4;  // blocks

int64_t blocks(int64_t count, int64_t of) { return (count + of - 1) / of; }

// The strides, in elements, of the source and of the results; partial results are a third.
enum { kSource, kOut, kPartial, kTensors };

struct Dim {
  int64_t size;
  std::array<int64_t, kTensors> strides;
};

// Dimensions of size 2 or more, the fastest of the source first, merged where they can be.
struct Dims {
  std::vector<Dim> all;

  void add(int64_t size, int64_t source, int64_t out) {
    if (size != 1) all.push_back({size, {source, out, 0}});
  }

  void coalesce() {
    std::stable_sort(all.begin(), all.end(), [](const Dim& a, const Dim& b) {
      return std::abs(a.strides[kSource]) < std::abs(b.strides[kSource]);
    });
    std::vector<Dim> merged;
    for (const Dim& dim : all) {
      if (!merged.empty()) {
        Dim& last = merged.back();
        if (dim.strides[kSource] == last.size * last.strides[kSource] &&
            dim.strides[kOut] == last.size * last.strides[kOut]) {
          last.size *= dim.size;
          continue;
        }
      }
      merged.push_back(dim);
    }
    if (merged.empty()) merged.push_back({1, {0, 0, 0}});
    int64_t before = 1;
    for (Dim& dim : merged) {
      dim.strides[kPartial] = before;
      before *= dim.size;
    }
    all = std::move(merged);
  }

  bool fits() const { return all.size() <= kMostDims; }
  int64_t count() const {
    int64_t result = 1;
    for (const Dim& dim : all) result *= dim.size;
    return result;
  }
  int64_t size(size_t dim) const { return dim < all.size() ? all[dim].size : 1; }
  int64_t stride(size_t dim, int tensor) const {
    return dim < all.size() ? all[dim].strides[tensor] : 0;
  }
};

struct Call {
  const char* operation = nullptr;
  ruda_argument source{};
  ruda_argument out{};  // the indices, of locate
  ruda_argument values = ruda::nothing();
  Dims kept, reduced;

  bool fits() const { return kept.fits() && reduced.fits(); }
  int64_t kernel_dims() const {
    return kept.all.size() == 1 && reduced.all.size() == 1 ? 1 : static_cast<int64_t>(kMostDims);
  }
  // The kept dimension is the contiguous one: tiles have columns.
  bool across() const {
    return std::abs(kept.all[0].strides[kSource]) == 1 &&
           std::abs(reduced.all[0].strides[kSource]) != 1 && kept.count() > 1;
  }
};

struct Tile {
  int64_t rows, block;

  Tile(int64_t count, bool across) {
    if (across) {
      rows = 64, block = 32;
    } else if (count <= 32) {
      rows = 64, block = 32;
    } else if (count <= 256) {
      rows = 8, block = 256;
    } else {
      rows = 1, block = 2048;
    }
  }
};

struct Parts {
  int64_t count = 1;
  int64_t each;

  Parts(int64_t outputs, int64_t reduced, const Tile& tile) : each(reduced) {
    const int64_t wanted = std::min(blocks(kPrograms, blocks(outputs, tile.rows)),
                                    reduced / (tile.block * kSmallestPart));
    if (wanted <= 1) return;
    each = blocks(blocks(reduced, wanted), tile.block) * tile.block;
    count = blocks(reduced, each);
  }
};

ruda_argument pointer(const Tensor& tensor, const char* operation) {
  const auto dtype = ruda_dtype_of(tensor.scalar_type());
  if (!dtype.has_value()) refuse_on_cuda(operation, tensor);
  return ruda::pointer(tensor.const_data_ptr(), *dtype);
}

bool is_floating(int32_t dtype) {
  return dtype == RUDA_FLOAT32 || dtype == RUDA_FLOAT16 || dtype == RUDA_BFLOAT16 ||
         dtype == RUDA_FLOAT64;
}

// What partial results of a dtype are kept in.
c10::ScalarType accumulator(int32_t dtype, bool counted) {
  if (counted || !is_floating(dtype)) return at::kLong;
  return dtype == RUDA_FLOAT64 ? at::kDouble : at::kFloat;
}

Tensor scratch(int64_t parts, int64_t outputs, c10::ScalarType type) {
  return at::empty({parts, outputs}, at::TensorOptions().device(kRuda).dtype(type));
}

ruda::grid programs(const Call& call, int64_t outputs, const Tile& tile, int64_t parts) {
  const int64_t x = blocks(outputs, tile.rows);
  TORCH_CHECK_VALUE(x <= std::numeric_limits<int32_t>::max(), "[", call.operation, "] got ",
                    outputs, " results, wanted fewer on the cuda target");
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(parts), 1};
}

class Arguments {
 public:
  void add(const ruda_argument& value) { list_.push_back(value); }
  void add(int64_t value) { list_.push_back(ruda::integer(value)); }

  void add_kept(const Dims& kept, int source, int out) {
    for (size_t dim = 0; dim + 1 < kMostDims; ++dim) add(kept.size(dim));
    for (size_t dim = 0; dim < kMostDims; ++dim) add(kept.stride(dim, source));
    for (size_t dim = 0; dim < kMostDims; ++dim) add(kept.stride(dim, out));
  }
  void add_reduced(const Dims& reduced) {
    for (size_t dim = 0; dim + 1 < kMostDims; ++dim) add(reduced.size(dim));
    for (size_t dim = 0; dim < kMostDims; ++dim) add(reduced.stride(dim, kSource));
  }
  // Partial results: one dimension of parts.
  void add_parts(int64_t parts, int64_t stride) {
    for (const int64_t value : {parts, int64_t{1}, int64_t{1}}) add(value);
    for (const int64_t value : {stride, int64_t{0}, int64_t{0}, int64_t{0}}) add(value);
  }
  void add_tile(int64_t dims, const Tile& tile, bool across) {
    add(dims);
    add(tile.rows);
    add(tile.block);
    add(ruda::boolean(across));
  }
  void launch(ruda::device_kernel& kernel, const ruda::grid& grid) const {
    ruda_error error{};
    check(kernel.launch_list(grid, {}, &error, list_.data(), static_cast<int32_t>(list_.size())),
          error);
  }

 private:
  std::vector<ruda_argument> list_;
};

void run_reduce(const Call& call, const Reduction& kind) {
  const int64_t outputs = call.kept.count();
  const int64_t count = call.reduced.count();
  const bool across = call.across();
  const Tile tile(count, across);
  const Parts parts(outputs, count, tile);
  const bool split = parts.count > 1;
  Tensor partial;
  if (split) {
    const bool counted = std::string_view(kind.map) == "nonzero";
    partial = scratch(parts.count, outputs, accumulator(call.source.dtype, counted));
  }
  Arguments first;
  first.add(call.source);
  first.add(split ? pointer(partial, call.operation) : call.out);
  for (const int64_t value : {outputs, count, parts.each, split ? outputs : 0}) first.add(value);
  first.add(ruda::real(kind.parameter));
  first.add_kept(call.kept, kSource, split ? kPartial : kOut);
  first.add_reduced(call.reduced);
  first.add(ruda::text(kind.map));
  first.add(ruda::text(kind.combine));
  first.add(ruda::text(split ? "value" : kind.finish));
  first.add_tile(call.kernel_dims(), tile, across);
  first.launch(reduce_kernel, programs(call, outputs, tile, parts.count));
  if (!split) return;
  const Tile columns(parts.count, true);
  Arguments second;
  second.add(pointer(partial, call.operation));
  second.add(call.out);
  for (const int64_t value : {outputs, parts.count, parts.count, int64_t{0}}) second.add(value);
  second.add(ruda::real(kind.parameter));
  second.add_kept(call.kept, kPartial, kOut);
  second.add_parts(parts.count, outputs);
  second.add(ruda::text("value"));
  second.add(ruda::text(kind.combine));
  second.add(ruda::text(kind.finish));
  second.add_tile(call.kernel_dims(), columns, true);
  second.launch(reduce_kernel, programs(call, outputs, columns, 1));
}

void run_locate(const Call& call, bool largest) {
  const int64_t outputs = call.kept.count();
  const int64_t count = call.reduced.count();
  const bool across = call.across();
  const Tile tile(count, across);
  const Parts parts(outputs, count, tile);
  const bool split = parts.count > 1;
  const int64_t dims = call.kept.all.size() == 1 ? 1 : static_cast<int64_t>(kMostDims);
  Tensor best, places;
  if (split) {
    best = scratch(parts.count, outputs, accumulator(call.source.dtype, false));
    places = scratch(parts.count, outputs, at::kLong);
  }
  Arguments first;
  first.add(call.source);
  first.add(ruda::nothing());
  first.add(split ? pointer(best, call.operation) : call.values);
  first.add(split ? pointer(places, call.operation) : call.out);
  for (const int64_t value : {outputs, count, parts.each, split ? outputs : 0}) first.add(value);
  first.add_kept(call.kept, kSource, split ? kPartial : kOut);
  first.add(call.reduced.stride(0, kSource));
  first.add(ruda::boolean(largest));
  first.add_tile(dims, tile, across);
  first.launch(locate_kernel, programs(call, outputs, tile, parts.count));
  if (!split) return;
  const Tile columns(parts.count, true);
  Arguments second;
  second.add(pointer(best, call.operation));
  second.add(pointer(places, call.operation));
  second.add(call.values);
  second.add(call.out);
  for (const int64_t value : {outputs, parts.count, parts.count, int64_t{0}}) second.add(value);
  second.add_kept(call.kept, kPartial, kOut);
  second.add(outputs);
  second.add(ruda::boolean(largest));
  second.add_tile(dims, columns, true);
  second.launch(locate_kernel, programs(call, outputs, columns, 1));
}

// `out` has the source's rank, with size 1 in the dimensions that are reduced.
Call call_of(const char* operation, const Tensor& source, const Tensor& out) {
  Call call;
  call.operation = operation;
  call.source = pointer(source, operation);
  call.out = pointer(out, operation);
  for (int64_t dim = 0; dim < source.dim(); ++dim) {
    const bool reduced = out.size(dim) == 1;
    Dims& group = reduced ? call.reduced : call.kept;
    group.add(source.size(dim), source.stride(dim), reduced ? 0 : out.stride(dim));
  }
  call.kept.coalesce();
  call.reduced.coalesce();
  return call;
}

// The call of an iterator; a source of too many dimensions is made contiguous and kept in `held`.
Call call_of(const char* operation, at::TensorIterator& iterator, Tensor& held) {
  const Tensor& out = iterator.tensor(0);
  held = iterator.tensor(1);
  Call call = call_of(operation, held, out);
  if (!call.fits()) {
    held = held.contiguous();
    call = call_of(operation, held, out);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      call.fits(), "[", operation, "] dim: got ", call.kept.all.size(), " separate kept and ",
      call.reduced.all.size(), " separate reduced dimensions, wanted at most ", kMostDims,
      " of each on the cuda target");
  return call;
}

}  // namespace

void reduce(const char* operation, at::TensorIterator& iterator, const Reduction& kind) {
  if (iterator.numel() == 0) return;
  Tensor held;
  run_reduce(call_of(operation, iterator, held), kind);
}

void locate(const char* operation, at::TensorIterator& iterator, bool largest) {
  if (iterator.numel() == 0) return;
  Tensor held;
  const Call call = call_of(operation, iterator, held);
  TORCH_INTERNAL_ASSERT(call.reduced.all.size() == 1);
  run_locate(call, largest);
}

void locate(const char* operation, const Tensor& self, int64_t dim, bool largest,
            const Tensor& values, const Tensor& indices) {
  if (indices.numel() == 0) return;
  Tensor source = self;
  const Tensor kept = indices.unsqueeze(dim);
  Call call = call_of(operation, source, kept);
  if (!call.fits()) {
    source = self.contiguous();
    call = call_of(operation, source, kept);
  }
  call.values = pointer(values, operation);
  run_locate(call, largest);
}

void cumulate(const char* operation, const Tensor& source, const Tensor& out, int64_t dim) {
  if (source.numel() == 0) return;
  const int64_t count = source.size(dim);
  int64_t inner = 1;
  for (int64_t behind = dim + 1; behind < source.dim(); ++behind) inner *= source.size(behind);
  const int64_t rows = source.numel() / count;
  const int64_t tile_rows = inner == 1 ? 8 : 64;
  const int64_t grid = blocks(rows, tile_rows);
  TORCH_CHECK_VALUE(grid <= std::numeric_limits<int32_t>::max(), "[", operation, "] got ", rows,
                    " rows, wanted fewer on the cuda target");
  ruda_error error{};
  check(cumulate_kernel.launch({static_cast<uint32_t>(grid), 1, 1}, {}, &error,
                               pointer(source, operation), pointer(out, operation),
                               ruda::integer(rows), ruda::integer(count), ruda::integer(inner),
                               ruda::integer(tile_rows), ruda::integer(inner == 1 ? 128 : 16)),
        error);
}

}  // namespace ruda_torch::cuda
