#include "plan.hpp"

#include <algorithm>
#include <utility>

namespace ruda::blas {
namespace {

/* Batch dimension d (counted from the last one, 0 first) of an operand: size 1 where it has none. */
int64_t batch_size(const ruda_view& view, int32_t d) {
  const int32_t index = view.ndim - 3 - d;
  return index < 0 ? 1 : view.sizes[index];
}

int64_t batch_stride(const ruda_view& view, int32_t d) {
  const int32_t index = view.ndim - 3 - d;
  return index < 0 || view.sizes[index] == 1 ? 0 : view.strides[index];
}

std::string pair_text(const ruda_view& a, const ruda_view& b) {
  return shape_text(a) + " and " + shape_text(b);
}

int32_t check_shapes(const ruda_view& a, const ruda_view& b, const ruda_view* bias,
                     const ruda_view& out, const char* operation, ruda_error* error) {
  for (const auto& [view, name] : {std::pair{&a, "a"}, std::pair{&b, "b"}, std::pair{&out, "out"}})
    RUDA_CHECK(view->ndim >= 2 && view->ndim <= most_dims, error, RUDA_ERROR_VALUE,
               "[%s] %s: got shape %s, wanted 2 to %d dimensions", operation, name,
               shape_text(*view).c_str(), most_dims);
  const int64_t inner = a.sizes[a.ndim - 1];
  RUDA_CHECK(inner == b.sizes[b.ndim - 2], error, RUDA_ERROR_VALUE,
             "[%s] a and b: got shapes %s, wanted [..., M, K] and [..., K, N] with one K",
             operation, pair_text(a, b).c_str());
  const int64_t m = a.sizes[a.ndim - 2], n = b.sizes[b.ndim - 1];
  int64_t wanted[most_dims];
  const int32_t dims = std::max(a.ndim, b.ndim);
  for (int32_t d = 0; d < dims - 2; ++d) {
    const int64_t left = batch_size(a, d), right = batch_size(b, d);
    RUDA_CHECK(left == right || left == 1 || right == 1, error, RUDA_ERROR_VALUE,
               "[%s] a and b: got shapes %s, wanted batch dimensions that are equal or 1", operation,
               pair_text(a, b).c_str());
    wanted[dims - 3 - d] = left == 1 ? right : left;
  }
  wanted[dims - 2] = m;
  wanted[dims - 1] = n;
  RUDA_CHECK(out.ndim == dims && std::equal(wanted, wanted + dims, out.sizes), error,
             RUDA_ERROR_VALUE, "[%s] out: got shape %s, wanted %s", operation,
             shape_text(out).c_str(), list_text(wanted, dims).c_str());
  if (bias != nullptr) return check_shape(bias, {n}, operation, "bias", error);
  return RUDA_OK;
}

/* Rows of the innermost batch dimensions follow each other in a and c while b stays: one taller
 * product instead of many. */
void merge_batch_into_rows(gemm_problem* p) {
  while (p->batch_dims > 0) {
    const int32_t d = p->batch_dims - 1;
    const bool follows = p->m == 1 || (p->a_strides[d] == p->m * p->a.row_stride &&
                                       p->c_strides[d] == p->m * p->c.row_stride);
    if (p->b_strides[d] != 0 || !follows) return;
    if (p->m == 1) {
      p->a.row_stride = p->a_strides[d];
      p->c.row_stride = p->c_strides[d];
    }
    p->m *= p->sizes[d];
    p->batch_dims = d;
  }
}

}  // namespace

void gemm_problem::offsets(int64_t batch, int64_t* a_offset, int64_t* b_offset,
                           int64_t* c_offset) const {
  *a_offset = *b_offset = *c_offset = 0;
  for (int32_t d = batch_dims - 1; d >= 0; --d) {
    const int64_t index = batch % sizes[d];
    batch /= sizes[d];
    *a_offset += index * a_strides[d];
    *b_offset += index * b_strides[d];
    *c_offset += index * c_strides[d];
  }
}

namespace {
matrix moved(matrix origin, int64_t offset) {
  origin.data += offset * origin.item;
  return origin;
}
}  // namespace

matrix gemm_problem::a_of(int64_t batch) const {
  int64_t at_a, at_b, at_c;
  offsets(batch, &at_a, &at_b, &at_c);
  return moved(a, at_a);
}

matrix gemm_problem::b_of(int64_t batch) const {
  int64_t at_a, at_b, at_c;
  offsets(batch, &at_a, &at_b, &at_c);
  return moved(b, at_b);
}

matrix gemm_problem::c_of(int64_t batch) const {
  int64_t at_a, at_b, at_c;
  offsets(batch, &at_a, &at_b, &at_c);
  return moved(c, at_c);
}

int32_t check_product(const gemm_args& args, bool one_dtype, const char* operation,
                      ruda_error* error) {
  RUDA_TRY(check_operand(args.a, operation, "a", error));
  RUDA_TRY(check_operand(args.b, operation, "b", error));
  RUDA_TRY(check_operand(args.out, operation, "out", error));
  if (args.bias != nullptr) RUDA_TRY(check_operand(args.bias, operation, "bias", error));
  RUDA_CHECK(!one_dtype || args.a->dtype == args.b->dtype, error, RUDA_ERROR_TYPE,
             "[%s] b: got dtype %s, wanted a's dtype %s", operation, dtype_name(args.b->dtype),
             dtype_name(args.a->dtype));
  RUDA_TRY(check_shapes(*args.a, *args.b, args.bias, *args.out, operation, error));
  RUDA_TRY(check_result_memory(*args.out, operation, error));
  RUDA_TRY(check_no_overlap(*args.out, args.a, operation, "a", error));
  RUDA_TRY(check_no_overlap(*args.out, args.b, operation, "b", error));
  return check_no_overlap(*args.out, args.bias, operation, "bias", error);
}

gemm_problem problem_of(const gemm_args& args) {
  gemm_problem p;
  p.a = matrix_of(*args.a);
  p.b = matrix_of(*args.b);
  p.c = matrix_of(*args.out);
  p.m = args.out->sizes[args.out->ndim - 2];
  p.n = args.out->sizes[args.out->ndim - 1];
  p.k = args.a->sizes[args.a->ndim - 1];
  p.how.alpha = static_cast<float>(args.alpha);
  p.how.beta = static_cast<float>(args.beta);
  p.how.bias = row_of(args.bias);
  for (int32_t d = args.out->ndim - 3; d >= 0; --d) {  // the outermost dimension first
    const int64_t size = batch_size(*args.out, d);
    if (size == 1) continue;
    const int32_t at = p.batch_dims++;
    p.sizes[at] = size;
    p.a_strides[at] = batch_stride(*args.a, d);
    p.b_strides[at] = batch_stride(*args.b, d);
    p.c_strides[at] = batch_stride(*args.out, d);
  }
  merge_batch_into_rows(&p);
  for (int32_t d = 0; d < p.batch_dims; ++d) p.batches *= p.sizes[d];
  return p;
}

void transpose(gemm_problem* p) {
  const matrix a = p->a;
  p->a = p->b.transposed();
  p->b = a.transposed();
  p->c = p->c.transposed();
  p->how.bias = p->how.bias.transposed();
  std::swap(p->m, p->n);
  std::swap(p->a_strides, p->b_strides);
}

}  // namespace ruda::blas
