#include "cuda/indexing.h"

#include "cuda/operators.h"
#include "cuda/reduction.h"
#include "ops/host_call.h"
#include "runtime.h"

#include <ATen/ops/empty.h>
#include <ruda/device.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;

ruda::device_kernel take_kernel{"indexing.take"};
ruda::device_kernel put_kernel{"indexing.put"};
ruda::device_kernel chain_kernel{"indexing.chain"};
ruda::device_kernel accumulate_kernel{"indexing.accumulate"};
ruda::device_kernel gather_kernel{"indexing.gather"};
ruda::device_kernel scatter_kernel{"indexing.scatter"};
ruda::device_kernel scatter_add_kernel{"indexing.scatter_add"};
ruda::device_kernel flatten_kernel{"indexing.flatten"};
ruda::device_kernel count_kernel{"indexing.count_blocks"};
ruda::device_kernel positions_kernel{"indexing.positions"};
ruda::device_kernel coordinate_kernel{"indexing.coordinate"};
ruda::device_kernel triangle_kernel{"indexing.triangle"};
ruda::device_kernel sort_kernel{"indexing.sort"};
ruda::device_kernel merge_kernel{"indexing.merge"};

constexpr int64_t kBlock = 1024;
constexpr int64_t kLanes = 128;
constexpr int64_t kChainRows = 32, kChainBlock = 128;
constexpr int64_t kSortRows = 32, kSortBlock = 128;
constexpr int64_t kWholeSort = 4096, kSortChunk = 2048, kMergeRows = 256;
constexpr int64_t kMostSorted = 1 << 20;

int64_t blocks(int64_t count, int64_t of) { return (count + of - 1) / of; }

ruda::grid programs(const char* operation, int64_t x, int64_t y = 1) {
  TORCH_CHECK_VALUE(x <= std::numeric_limits<int32_t>::max() && y <= 65535, "[", operation,
                    "] got a launch of ", x, " x ", y, " programs, wanted fewer elements on the "
                    "cuda target");
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1};
}

template <class... Arguments>
void launch(ruda::device_kernel& kernel, const ruda::grid& grid, const Arguments&... arguments) {
  ruda_error error{};
  check(kernel.launch(grid, {}, &error, arguments...), error);
}

ruda_argument number(int64_t value) { return ruda::integer(value); }

ruda_argument pointer(const Tensor& tensor) {
  const auto dtype = ruda_dtype_of(tensor.scalar_type());
  TORCH_INTERNAL_ASSERT(dtype.has_value());
  return ruda::pointer(tensor.const_data_ptr(), *dtype);
}

ruda_argument values(const char* operation, const Tensor& tensor) {
  if (!ruda_dtype_of(tensor.scalar_type()).has_value()) refuse_on_cuda(operation, tensor);
  return pointer(tensor);
}

// What is only moved is moved as a type of the same width; complex128 is two of 8 bytes.
ruda_argument bits(const Tensor& tensor) {
  const auto item = tensor.element_size();
  const int32_t dtype = item == 1   ? RUDA_UINT8
                        : item == 2 ? RUDA_FLOAT16
                        : item == 4 ? RUDA_INT32
                                    : RUDA_INT64;
  return ruda::pointer(tensor.const_data_ptr(), dtype);
}

struct Tile {
  int64_t rows = 2, columns = 512;

  explicit Tile(int64_t inner) {
    for (const int64_t width : {1, 16, 256}) {
      if (inner > width) continue;
      rows = kBlock / width;
      columns = width;
      return;
    }
  }
};

// Raised on the device by an index out of range, where the call waits for its work anyway.
class RangeFlag {
 public:
  RangeFlag(const Lookup& lookup, int64_t lowest, int64_t size)
      : lookup_(lookup), lowest_(lowest), size_(size) {
    stream_ = api()->current_stream();
    if (api()->asynchronous() != 0 || api()->is_capturing(stream_) != 0) return;
    memory_ = at::empty({4}, at::TensorOptions().device(kRuda).dtype(at::kInt));
    ruda_error error{};
    check(api()->fill(memory_.mutable_data_ptr(), 0, memory_.nbytes(), stream_, &error), error);
  }

  ruda_argument argument() const { return memory_.defined() ? pointer(memory_) : ruda::nothing(); }
  ruda_argument lowest() const { return number(lowest_); }
  ruda_argument size() const { return number(size_); }

  void check_raised() const {
    if (!memory_.defined()) return;
    int32_t raised = 0;
    ruda_error error{};
    check(api()->copy_to_host(&raised, memory_.const_data_ptr(), sizeof(raised), stream_, &error),
          error);
    TORCH_CHECK_INDEX(raised == 0, "[", lookup_.operation, "] index out of range: wanted ", lowest_,
                      " to ", size_ - 1);
  }

 private:
  const Lookup& lookup_;
  int64_t lowest_, size_;
  int32_t stream_;
  Tensor memory_;
};

RangeFlag range(const Lookup& lookup, int64_t size) {
  return {lookup, lookup.wrap ? -size : 0, size};
}

// complex128 as two elements of 8 bytes.
int64_t inner_bits(const Tensor& tensor, int64_t inner) {
  return tensor.element_size() == 16 ? 2 * inner : inner;
}

void check_moved(const char* operation, const Tensor& tensor) {
  if (tensor.element_size() > 8) refuse_on_cuda(operation, tensor);
}

}  // namespace

Axis::Axis(at::IntArrayRef sizes, int64_t dim) {
  for (int64_t each = 0; each < static_cast<int64_t>(sizes.size()); ++each) {
    (each < dim ? outer : each == dim ? size : inner) *= sizes[each];
  }
}

Tensor checked_index(const char* operation, const char* argument, const Tensor& index) {
  if (!index.is_privateuseone()) refuse_device(operation, argument, index);
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, "[",
                    operation, "] ", argument, ": got dtype ", index.scalar_type(),
                    ", wanted int64 or int32");
  return index.contiguous();
}

void take(const Lookup& lookup, const Tensor& source, const Tensor& index, const Tensor& out,
          const Axis& axis) {
  if (out.numel() == 0) return;
  const RangeFlag flag = range(lookup, axis.size);
  const int64_t inner = inner_bits(source, axis.inner);
  const int64_t rows = axis.outer * index.numel();
  const Tile tile(inner);
  launch(take_kernel,
         programs(lookup.operation, blocks(rows, tile.rows), blocks(inner, tile.columns)),
         bits(source), pointer(index), bits(out), flag.argument(), number(rows),
         number(index.numel()), number(inner), flag.lowest(), flag.size(), number(tile.rows),
         number(tile.columns));
  flag.check_raised();
}

void put(const Lookup& lookup, const Tensor& target, const Tensor& index, const Tensor& source,
         const Axis& axis) {
  const int64_t inner = inner_bits(target, axis.inner);
  const int64_t rows = axis.outer * index.numel();
  if (rows * inner == 0) return;
  const RangeFlag flag = range(lookup, axis.size);
  const bool one = source.numel() == 1 && inner == axis.inner;
  const Tile tile(inner);
  launch(put_kernel,
         programs(lookup.operation, blocks(rows, tile.rows), blocks(inner, tile.columns)),
         bits(target), pointer(index), bits(source), flag.argument(), number(rows),
         number(index.numel()), number(inner), flag.lowest(), flag.size(), number(one ? 0 : inner),
         number(one ? 0 : 1), number(tile.rows), number(tile.columns));
  flag.check_raised();
}

void accumulate(const Lookup& lookup, const Tensor& target, const Tensor& index,
                const Tensor& source, const Axis& axis, double scale, int64_t skipped) {
  const int64_t items = index.numel();
  const int64_t rows = axis.outer * items;
  if (rows * axis.inner == 0) return;
  const ruda_argument to = values(lookup.operation, target);
  TORCH_CHECK_NOT_IMPLEMENTED(items <= std::numeric_limits<int32_t>::max(), "[", lookup.operation,
                              "] index: got ", items, " elements, wanted at most 2^31 - 1");
  const RangeFlag flag = range(lookup, axis.size);
  const auto options = at::TensorOptions().device(kRuda).dtype(at::kInt);
  const Tensor following = at::empty({items}, options);
  const Tensor heads = at::empty({items}, options);
  launch(chain_kernel, programs(lookup.operation, blocks(items, kChainRows)), pointer(index),
         pointer(following), pointer(heads), flag.argument(), number(items), flag.lowest(),
         flag.size(), number(skipped), number(kChainRows), number(kChainBlock));
  const Tile tile(axis.inner);
  launch(accumulate_kernel,
         programs(lookup.operation, blocks(rows, tile.rows), blocks(axis.inner, tile.columns)), to,
         pointer(index), pointer(following), pointer(heads), pointer(source), number(rows),
         number(items), number(axis.inner), number(axis.size), ruda::real(scale), number(tile.rows),
         number(tile.columns));
  flag.check_raised();
}

void gather(const Lookup& lookup, const Tensor& source, const Tensor& index, const Tensor& out,
            const Axis& axis) {
  const int64_t count = index.numel();
  if (count == 0) return;
  check_moved(lookup.operation, source);
  const RangeFlag flag = range(lookup, axis.size);
  launch(gather_kernel, programs(lookup.operation, blocks(count, kBlock)), bits(source),
         pointer(index), bits(out), flag.argument(), number(count),
         number(count / (axis.outer * axis.inner)), number(axis.inner), flag.lowest(), flag.size(),
         number(kBlock));
  flag.check_raised();
}

void scatter(const Lookup& lookup, const Tensor& target, const Tensor& index, const Tensor& source,
             const Axis& axis) {
  const int64_t count = index.numel();
  if (count == 0) return;
  check_moved(lookup.operation, target);
  const RangeFlag flag = range(lookup, axis.size);
  launch(scatter_kernel, programs(lookup.operation, blocks(count, kBlock)), bits(target),
         pointer(index), bits(source), flag.argument(), number(count),
         number(count / (axis.outer * axis.inner)), number(axis.inner), flag.lowest(), flag.size(),
         number(source.numel() == 1 ? 0 : 1), number(kBlock));
  flag.check_raised();
}

void scatter_add(const Lookup& lookup, const Tensor& target, const Tensor& index,
                 const Tensor& source, const Axis& axis) {
  const int64_t count = index.numel();
  if (count == 0) return;
  const int64_t lanes = axis.outer * axis.inner;
  if (lanes == 1) return accumulate(lookup, target, index, source, axis);
  const RangeFlag flag = range(lookup, axis.size);
  launch(scatter_add_kernel, programs(lookup.operation, blocks(lanes, kLanes)),
         values(lookup.operation, target), pointer(index), pointer(source), flag.argument(),
         number(lanes), number(count / lanes), number(axis.inner), flag.lowest(), flag.size(),
         number(kLanes));
  flag.check_raised();
}

void flatten(const Lookup& lookup, const Tensor& index, const Tensor& places, int64_t size,
             int64_t step, bool first) {
  const int64_t count = index.numel();
  if (count == 0) return;
  const RangeFlag flag = range(lookup, size);
  launch(flatten_kernel, programs(lookup.operation, blocks(count, kBlock)), pointer(index),
         pointer(places), flag.argument(), number(count), flag.lowest(), flag.size(), number(step),
         ruda::boolean(first), number(kBlock));
  flag.check_raised();
}

Tensor positions(const char* operation, const Tensor& source) {
  const int64_t count = source.numel();
  const auto options = at::TensorOptions().device(kRuda).dtype(at::kLong);
  if (count == 0) return at::empty({0}, options);
  const int32_t stream = api()->current_stream();
  TORCH_CHECK(api()->is_capturing(stream) == 0, "[", operation, "] cannot be captured in a graph: "
              "the size of its result depends on values");
  const int64_t parts = blocks(count, kBlock);
  const Tensor counts = at::empty({parts}, options);
  const Tensor ends = at::empty({parts}, options);
  launch(count_kernel, programs(operation, parts), values(operation, source), pointer(counts),
         number(count), number(kBlock));
  cumulate(operation, counts, ends, 0);
  int64_t found = 0;
  ruda_error error{};
  check(api()->copy_to_host(&found, ends.const_data_ptr<int64_t>() + (parts - 1), sizeof(found),
                            stream, &error),
        error);
  Tensor out = at::empty({found}, options);
  if (found == 0) return out;
  launch(positions_kernel, programs(operation, parts), pointer(source), pointer(ends), pointer(out),
         number(count), number(kBlock));
  return out;
}

void coordinates(const Tensor& places, at::IntArrayRef sizes, const Tensor& out) {
  const int64_t count = places.numel();
  const auto rank = static_cast<int64_t>(sizes.size());
  int64_t divisor = 1;
  for (int64_t dim = rank - 1; dim >= 0 && count != 0; --dim) {
    launch(coordinate_kernel, programs("nonzero", blocks(count, kBlock)), pointer(places),
           ruda::pointer(out.const_data_ptr<int64_t>() + dim, RUDA_INT64), number(count),
           number(rank), number(sizes[dim]), number(divisor), number(kBlock));
    divisor *= sizes[dim];
  }
}

void triangle(const char* operation, const Tensor& source, const Tensor& out, int64_t diagonal,
              bool upper) {
  const int64_t count = source.numel();
  if (count == 0) return;
  check_moved(operation, source);
  launch(triangle_kernel, programs(operation, blocks(count, kBlock)), bits(source), bits(out),
         number(count), number(source.size(-2)), number(source.size(-1)), number(diagonal),
         ruda::boolean(upper), number(kBlock));
}

void sort(const char* operation, const Tensor& source, const Tensor& sorted, const Tensor& indices,
          bool largest) {
  if (sorted.numel() == 0) return;
  const int64_t count = source.size(-1);
  TORCH_CHECK_NOT_IMPLEMENTED(count <= kMostSorted, "[", operation, "] got rows of ", count,
                              " values, wanted at most ", kMostSorted, " on the cuda target");
  const int64_t keep = sorted.size(-1);
  const int64_t rows = source.numel() / count;
  const int64_t chunk = count <= kWholeSort ? count : kSortChunk;
  const int64_t chunks = blocks(count, chunk);
  const int64_t length = std::min(keep, chunk);
  Tensor some = sorted, places = indices;
  if (chunks > 1) {
    some = at::empty({rows, chunks, length}, sorted.options());
    places = at::empty({rows, chunks, length}, indices.options());
  }
  const int64_t each = blocks(chunk, kSortRows);
  launch(sort_kernel, programs(operation, rows * chunks * each), values(operation, source),
         pointer(some), pointer(places), number(count), number(chunk), number(chunks),
         number(length), number(each), ruda::boolean(largest), number(kSortRows),
         number(kSortBlock));
  if (chunks == 1) return;
  int64_t steps = 0;
  while (length >> steps != 0) ++steps;
  const int64_t parts = blocks(chunks * length, kMergeRows);
  launch(merge_kernel, programs(operation, rows * parts), pointer(some), pointer(places),
         pointer(sorted), pointer(indices), number(count), number(chunk), number(chunks),
         number(length), number(keep), number(parts), number(steps), ruda::boolean(largest),
         number(kMergeRows));
}

}  // namespace ruda_torch::cuda
