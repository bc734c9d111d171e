#include "cuda/pointwise.h"

#include "cuda/operators.h"
#include "runtime.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/util/TypeCast.h>
#include <ruda/device.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace ruda_torch {

namespace {

using at::ScalarType;

constexpr int kRank = 6;      // dimensions of the strided kernel
constexpr int kTensors = 4;   // the result and three operands
constexpr int kOperands = 5;  // tensors and numbers
constexpr int64_t kBlock = 1024;

ruda::device_kernel flat_kernel{"pointwise.flat"};
ruda::device_kernel strided_kernel{"pointwise.strided"};

int64_t bits_of_float(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A number as the kernels take it. ATen refuses a Python number that the dtype does not hold;
// reduced floats are computed in float32.
int64_t bits_of_number(const c10::Scalar& value, ScalarType type) {
  if (type == at::kDouble) return bits_of_float(value.to<double>());
  if (c10::isFloatingType(type)) return bits_of_float(value.to<float>());
  int64_t result = 0;
  AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, type, "pointwise", [&] {
    result = static_cast<int64_t>(value.to<scalar_t>());
  });
  return result;
}

// Here ATen computes with a number beside reduced floats in float32.
bool keeps_precision(std::string_view op) {
  return op == "add" || op == "sub" || op == "add_scaled" || op == "mul" || op == "div";
}

// Operators that ATen's own kernels refuse for integers.
bool is_for_floats(std::string_view op) {
  constexpr std::string_view names[] = {
      "cross_entropy", "elu", "frac", "gelu", "gelu_tanh", "glu", "hardshrink", "hardsigmoid",
      "hardswish", "huber", "leaky_relu", "lerp", "log_sigmoid", "logaddexp", "mish", "mse",
      "round_from", "round_to", "silu", "smooth_l1", "softplus", "softshrink"};
  if (op.size() > 8 && op.substr(op.size() - 8) == "backward") return true;
  return std::find(std::begin(names), std::end(names), op) != std::end(names);
}

// Operators that ATen's own kernels have for some dtypes only.
bool refuses(std::string_view op, ScalarType type) {
  if (c10::isFloatingType(type)) {
    return op.starts_with("bitwise_") || op == "left_shift" || op == "right_shift";
  }
  if (type == at::kBool && (op == "ceil" || op == "floor" || op == "round" || op == "trunc")) {
    return true;
  }
  return is_for_floats(op);
}

double rounded(double value, ScalarType type) {
  switch (type) {
    case at::kDouble: return value;
    case at::kHalf: return static_cast<float>(c10::convert<at::Half>(value));
    case at::kBFloat16: return static_cast<float>(c10::convert<at::BFloat16>(value));
    default: return c10::convert<float>(value);
  }
}

// The value of a CPU tensor is converted as tensors are, without a check.
int64_t bits_of_tensor(const char* op, const at::Tensor& tensor, ScalarType type) {
  const c10::Scalar value = at::native::_local_scalar_dense_cpu(tensor);
  if (c10::isFloatingType(type)) {
    const bool wide = type != at::kDouble && keeps_precision(op);
    return bits_of_float(rounded(value.toDouble(), wide ? at::kFloat : type));
  }
  int64_t result = 0;
  AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, type, "pointwise", [&] {
    const auto converted = value.isFloatingPoint() ? c10::convert<scalar_t>(value.toDouble())
                                                   : c10::convert<scalar_t>(value.toLong());
    result = static_cast<int64_t>(converted);
  });
  return result;
}

int32_t dtype_or_refuse(const char* op, ScalarType type, const at::Tensor& tensor) {
  const std::optional<int32_t> dtype = ruda_dtype_of(type);
  if (!dtype.has_value()) refuse_on_cuda(op, tensor);
  return *dtype;
}

// A launch's tensors and numbers; tensors first the result, then the operands.
struct Call {
  const char* op = nullptr;
  int operands = 0;
  int32_t type = 0;  // of the arithmetic
  std::array<char*, kTensors> pointers{};
  std::array<int32_t, kTensors> dtypes{};
  std::array<int64_t, kTensors> items{};  // bytes of an element
  std::array<int64_t, kOperands> bits{};
  std::vector<int64_t> sizes;  // innermost first
  std::array<std::vector<int64_t>, kTensors> strides;  // in elements; empty: a number

  ruda_argument tensor(int at, int64_t offset = 0) const {
    if (pointers[at] == nullptr) return ruda::nothing();
    return ruda::pointer(pointers[at] + offset, dtypes[at]);
  }
};

ruda::grid programs(const char* op, int64_t count) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  TORCH_CHECK_VALUE(blocks <= std::numeric_limits<int32_t>::max(), "[", op, "] got ", count,
                    " elements, wanted at most 2^41 on the cuda target");
  return {static_cast<uint32_t>(blocks), 1, 1};
}

bool is_flat(const Call& call) {
  if (call.sizes.size() != 1) return false;
  for (const auto& strides : call.strides) {
    if (!strides.empty() && strides[0] != 1) return false;
  }
  return true;
}

void launch_flat(const Call& call) {
  const int64_t count = call.sizes[0];
  ruda_error error{};
  check(flat_kernel.launch(
            programs(call.op, count), {}, &error, call.tensor(0), call.tensor(1), call.tensor(2),
            call.tensor(3), ruda::integer(call.bits[0]), ruda::integer(call.bits[1]),
            ruda::integer(call.bits[2]), ruda::integer(call.bits[3]), ruda::integer(call.bits[4]),
            ruda::integer(count), ruda::text(call.op), ruda::integer(call.operands),
            ruda::text(ruda::dtype_name(call.type)), ruda::text(ruda::dtype_name(call.dtypes[0])),
            ruda::integer(kBlock)),
        error);
}

// The dimensions of the kernel that are not used are of size 1; the outermost one is its last.
void launch_strided(const Call& call, const std::array<int64_t, kTensors>& offsets) {
  const int dims = static_cast<int>(std::min<size_t>(call.sizes.size(), kRank));
  const int outer = dims - 1;
  int64_t count = 1;
  for (int dim = 0; dim < dims; ++dim) count *= call.sizes[dim];
  std::vector<ruda_argument> list;
  list.reserve(64);
  for (int each = 0; each < kTensors; ++each) list.push_back(call.tensor(each, offsets[each]));
  for (const int64_t bits : call.bits) list.push_back(ruda::integer(bits));
  list.push_back(ruda::integer(count));
  for (int dim = 0; dim < kRank - 1; ++dim) {
    list.push_back(ruda::integer(dim < outer ? call.sizes[dim] : 1));
  }
  for (const auto& strides : call.strides) {
    for (int dim = 0; dim < kRank - 1; ++dim) {
      list.push_back(ruda::integer(!strides.empty() && dim < outer ? strides[dim] : 0));
    }
    list.push_back(ruda::integer(strides.empty() ? 0 : strides[outer]));
  }
  list.push_back(ruda::text(call.op));
  list.push_back(ruda::integer(call.operands));
  list.push_back(ruda::text(ruda::dtype_name(call.type)));
  list.push_back(ruda::text(ruda::dtype_name(call.dtypes[0])));
  list.push_back(ruda::integer(outer < 2 ? 2 : outer < 4 ? 4 : kRank));
  list.push_back(ruda::boolean(count > std::numeric_limits<int32_t>::max()));
  list.push_back(ruda::integer(kBlock));
  ruda_error error{};
  check(strided_kernel.launch_list(programs(call.op, count), {}, &error, list.data(),
                                   static_cast<int32_t>(list.size())),
        error);
}

// A launch for every index of the dimensions beyond kRank.
void launch_all(const Call& call) {
  std::vector<int64_t> index(call.sizes.size() > kRank ? call.sizes.size() - kRank : 0, 0);
  for (;;) {
    std::array<int64_t, kTensors> offsets{};
    for (int each = 0; each < kTensors; ++each) {
      for (size_t dim = 0; dim < index.size() && !call.strides[each].empty(); ++dim) {
        offsets[each] += index[dim] * call.strides[each][kRank + dim] * call.items[each];
      }
    }
    launch_strided(call, offsets);
    size_t dim = 0;
    while (dim < index.size() && ++index[dim] == call.sizes[kRank + dim]) index[dim++] = 0;
    if (dim == index.size()) return;
  }
}

void add_tensor(Call& call, int at, at::TensorIteratorBase& iterator, int operand, int32_t dtype) {
  const auto item = static_cast<int64_t>(iterator.element_size(operand));
  call.pointers[at] = static_cast<char*>(iterator.data_ptr(operand));
  call.dtypes[at] = dtype;
  call.items[at] = item;
  const auto strides = iterator.strides(operand);
  if (iterator.numel() == 1) {
    call.strides[at] = {1};
    return;
  }
  for (int dim = 0; dim < iterator.ndim(); ++dim) call.strides[at].push_back(strides[dim] / item);
}

void set_sizes(Call& call, const at::TensorIteratorBase& iterator) {
  if (iterator.numel() == 1) {
    call.sizes = {1};
  } else {
    call.sizes.assign(iterator.shape().begin(), iterator.shape().end());
  }
}

void launch(const Call& call) {
  if (is_flat(call)) {
    launch_flat(call);
  } else {
    launch_all(call);
  }
}

// Copies within a dtype move bits.
ScalarType bits_type(int64_t item) {
  switch (item) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

void copy_bits(at::TensorIteratorBase& iterator) {
  const auto item = static_cast<int64_t>(iterator.element_size(0));
  Call call;
  call.op = "copy";
  call.operands = 1;
  set_sizes(call, iterator);
  if (item <= 8) {
    call.type = *ruda_dtype_of(bits_type(item));
    for (int each = 0; each < 2; ++each) add_tensor(call, each, iterator, each, call.type);
  } else {  // complex128: two of 8 bytes
    call.type = RUDA_INT64;
    call.sizes.insert(call.sizes.begin(), 2);
    for (int each = 0; each < 2; ++each) {
      add_tensor(call, each, iterator, each, call.type);
      for (int64_t& stride : call.strides[each]) stride *= item / 8;
      call.strides[each].insert(call.strides[each].begin(), 1);
      call.items[each] = 8;
    }
  }
  launch(call);
}

}  // namespace

bool same_memory_order(const at::Tensor& target, const at::Tensor& source) {
  if (target.scalar_type() != source.scalar_type()) return false;
  if (target.is_contiguous() && source.is_contiguous()) return true;
  return target.is_non_overlapping_and_dense() && target.strides() == source.strides();
}

void device_copy(const at::Tensor& target, const at::Tensor& source) {
  if (target.numel() == 0) return;
  if (same_memory_order(target, source)) {
    ruda_error error{};
    check(api()->copy_on_device(target.mutable_data_ptr(), source.const_data_ptr(),
                                target.nbytes(), api()->current_stream(), &error),
          error);
    return;
  }
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .set_check_mem_overlap(true)
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(target)
                                    .add_const_input(source)
                                    .build();
  if (target.scalar_type() == source.scalar_type()) {
    copy_bits(iterator);
  } else {
    cuda::pointwise("copy", iterator, source.scalar_type());
  }
}

namespace cuda {

void pointwise(const char* op, at::TensorIteratorBase& iterator, ScalarType type,
               std::initializer_list<c10::Scalar> numbers) {
  const int inputs = iterator.ntensors() - 1;
  Call call;
  call.op = op;
  call.operands = inputs + static_cast<int>(numbers.size());
  TORCH_INTERNAL_ASSERT(iterator.noutputs() == 1 && inputs < kTensors &&
                        call.operands <= kOperands);
  call.type = dtype_or_refuse(op, type, iterator.tensor(inputs));
  if (refuses(op, type)) refuse_on_cuda(op, iterator.tensor(inputs));
  if (iterator.numel() == 0) return;
  set_sizes(call, iterator);
  add_tensor(call, 0, iterator, 0, dtype_or_refuse(op, iterator.dtype(0), iterator.tensor(0)));
  for (int operand = 1; operand <= inputs; ++operand) {
    const int32_t dtype = dtype_or_refuse(op, iterator.dtype(operand), iterator.tensor(operand));
    if (iterator.is_cpu_scalar(operand)) {
      call.bits[operand - 1] = bits_of_tensor(op, iterator.tensor(operand), type);
    } else {
      add_tensor(call, operand, iterator, operand, dtype);
    }
  }
  int at = inputs;
  for (const c10::Scalar& number : numbers) call.bits[at++] = bits_of_number(number, type);
  launch(call);
}

void arange(const at::Tensor& result, const c10::Scalar& start, const c10::Scalar& step) {
  if (result.numel() == 0) return;
  const ScalarType type =
      c10::isFloatingType(result.scalar_type()) ? at::kDouble : at::kLong;
  Call call;
  call.op = "arange";
  call.operands = 2;
  call.dtypes[0] = dtype_or_refuse("arange", result.scalar_type(), result);
  call.type = *ruda_dtype_of(type);
  call.pointers[0] = static_cast<char*>(result.mutable_data_ptr());
  call.sizes = {result.numel()};
  call.strides[0] = {1};
  call.bits[0] = bits_of_number(start, type);
  call.bits[1] = bits_of_number(step, type);
  launch(call);
}

}  // namespace cuda

}  // namespace ruda_torch
