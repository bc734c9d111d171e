/* What attention's arguments must be. */
#include "checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "entries.hpp"

namespace ruda {
namespace {

/* Of a storage dtype, with a contiguous last axis unless the tensor is empty. */
int32_t check_rows(const ruda_view* view, const char* operation, const char* name, int32_t rank,
                   ruda_error* error) {
  RUDA_TRY(check_target(view, operation, name, error));
  RUDA_TRY(check_dtype(view, {RUDA_FLOAT32, RUDA_FLOAT16, RUDA_BFLOAT16}, operation, name, error));
  RUDA_CHECK(view->ndim == rank, error, RUDA_ERROR_VALUE,
             "[%s] %s: got shape %s, wanted %s", operation, name, shape_text(*view).c_str(),
             rank == 4 ? "[batch, length, heads, width]" : "[total, heads, width] with cu_seqlens");
  const bool adjacent = view->strides[rank - 1] == 1 || view->sizes[rank - 1] <= 1;
  RUDA_CHECK(adjacent || element_count(*view) == 0, error, RUDA_ERROR_VALUE,
             "[%s] %s: got strides %s, wanted a contiguous last axis", operation, name,
             strides_text(*view).c_str());
  return RUDA_OK;
}

int32_t check_ends(const ruda_view* ends, const char* operation, const char* name,
                   ruda_error* error) {
  RUDA_TRY(check_dense(ends, operation, name, error));
  RUDA_TRY(check_dtype(ends, {RUDA_INT32}, operation, name, error));
  RUDA_CHECK(ends->ndim == 1 && ends->sizes[0] >= 1, error, RUDA_ERROR_VALUE,
             "[%s] %s: got shape %s, wanted [sequences + 1]", operation, name,
             shape_text(*ends).c_str());
  return RUDA_OK;
}

/* Ends in device memory are read from there, which waits for the work before. */
int32_t read_ends(const ruda_view* ends, int64_t total, const char* operation, const char* name,
                  std::vector<int32_t>& values, ruda_error* error) {
  values.resize(static_cast<size_t>(ends->sizes[0]));
  const size_t bytes = values.size() * sizeof(int32_t);
  if (on_device(*ends)) {
    RUDA_TRY(api()->copy_to_host(values.data(), ends->data, bytes, api()->current_stream(), error));
  } else {
    std::memcpy(values.data(), ends->data, bytes);
  }
  const bool ordered = values.front() == 0 && std::is_sorted(values.begin(), values.end());
  RUDA_CHECK(ordered && values.back() == total, error, RUDA_ERROR_VALUE,
             "[%s] %s: got ends from %d to %d%s, wanted ends from 0 that never fall, to %lld",
             operation, name, values.front(), values.back(), ordered ? "" : " out of order",
             static_cast<long long>(total));
  return RUDA_OK;
}

int32_t check_mask(const attention_arguments& args, const char* operation, ruda_error* error) {
  const ruda_view* mask = args.mask;
  RUDA_TRY(check_target(mask, operation, "mask", error));
  RUDA_TRY(check_dtype(mask, {RUDA_BOOL, RUDA_FLOAT32, args.q->dtype}, operation, "mask", error));
  RUDA_CHECK(!args.packed(), error, RUDA_ERROR_VALUE,
             "[%s] mask: got one with packed sequences, wanted none", operation);
  const int64_t wanted[4] = {args.q->sizes[0], args.q->sizes[2], args.q->sizes[1],
                             args.k->sizes[1]};
  bool fits = mask->ndim == 4;
  for (int32_t i = 0; fits && i < 4; ++i) {
    fits = mask->sizes[i] == wanted[i] || (i < 3 && mask->sizes[i] == 1);
  }
  RUDA_CHECK(fits, error, RUDA_ERROR_VALUE,
             "[%s] mask: got shape %s, wanted [%lld or 1, %lld or 1, %lld or 1, %lld]", operation,
             shape_text(*mask).c_str(), static_cast<long long>(wanted[0]),
             static_cast<long long>(wanted[1]), static_cast<long long>(wanted[2]),
             static_cast<long long>(wanted[3]));
  return RUDA_OK;
}

int32_t check_lse(const attention_arguments& args, const char* operation, ruda_error* error) {
  RUDA_TRY(check_target(args.lse, operation, "lse", error));
  RUDA_TRY(check_dtype(args.lse, {RUDA_FLOAT32}, operation, "lse", error));
  const int64_t* sizes = args.q->sizes;
  if (args.packed()) {
    return check_shape(args.lse, {sizes[1], sizes[0]}, operation, "lse", error);
  }
  return check_shape(args.lse, {sizes[0], sizes[2], sizes[1]}, operation, "lse", error);
}

/* `ends` of packed sequences, else `length`. */
int64_t longest(const std::vector<int32_t>& ends, int64_t length) {
  if (ends.empty()) return length;
  int64_t most = 0;
  for (size_t i = 1; i < ends.size(); ++i) most = std::max<int64_t>(most, ends[i] - ends[i - 1]);
  return most;
}

}  // namespace

int32_t check_attention_gradient(const ruda_view* view, const ruda_view* model, int32_t dtype,
                                 const char* operation, const char* name, const char* model_name,
                                 ruda_error* error) {
  RUDA_TRY(check_rows(view, operation, name, model->ndim, error));
  RUDA_TRY(check_same_shape(view, model, operation, name, model_name, error));
  return check_dtype(view, {dtype}, operation, name, error);
}

int32_t check_attention_inputs(const attention_arguments& args, const char* operation,
                               ruda_error* error) {
  RUDA_CHECK((args.cu_q == nullptr) == (args.cu_k == nullptr), error, RUDA_ERROR_VALUE,
             "[%s] got one of cu_seqlens_q and cu_seqlens_k, wanted both or neither", operation);
  const int32_t rank = args.rank();
  RUDA_TRY(check_rows(args.q, operation, "q", rank, error));
  RUDA_TRY(check_rows(args.k, operation, "k", rank, error));
  RUDA_TRY(check_rows(args.v, operation, "v", rank, error));
  RUDA_TRY(check_dtype(args.k, {args.q->dtype}, operation, "k", error));
  RUDA_TRY(check_dtype(args.v, {args.q->dtype}, operation, "v", error));
  const int64_t *q = args.q->sizes, *k = args.k->sizes, *v = args.v->sizes;
  const int64_t heads = q[rank - 2], groups = k[rank - 2];
  RUDA_CHECK(k[rank - 1] == q[rank - 1] && q[rank - 1] >= 1, error, RUDA_ERROR_VALUE,
             "[%s] k: got shape %s, wanted q's width %lld (at least 1)", operation,
             shape_text(*args.k).c_str(), static_cast<long long>(q[rank - 1]));
  RUDA_CHECK(groups >= 1 && heads % groups == 0, error, RUDA_ERROR_VALUE,
             "[%s] k: got %lld heads, wanted a divisor of q's %lld", operation,
             static_cast<long long>(groups), static_cast<long long>(heads));
  RUDA_CHECK(rank == 3 || k[0] == q[0], error, RUDA_ERROR_VALUE,
             "[%s] k: got shape %s, wanted q's batch %lld", operation, shape_text(*args.k).c_str(),
             static_cast<long long>(q[0]));
  bool same = v[rank - 1] >= 1;
  for (int32_t i = 0; i + 1 < rank; ++i) same = same && v[i] == k[i];
  RUDA_CHECK(same, error, RUDA_ERROR_VALUE,
             "[%s] v: got shape %s, wanted k's shape %s up to the width (at least 1)", operation,
             shape_text(*args.v).c_str(), shape_text(*args.k).c_str());
  if (args.packed()) {
    RUDA_TRY(check_ends(args.cu_q, operation, "cu_seqlens_q", error));
    RUDA_TRY(check_ends(args.cu_k, operation, "cu_seqlens_k", error));
    RUDA_TRY(check_same_shape(args.cu_k, args.cu_q, operation, "cu_seqlens_k", "cu_seqlens_q",
                              error));
  }
  if (args.mask != nullptr) RUDA_TRY(check_mask(args, operation, error));
  if (args.lse != nullptr) RUDA_TRY(check_lse(args, operation, error));
  RUDA_CHECK(std::isfinite(static_cast<float>(args.scale)), error, RUDA_ERROR_VALUE,
             "[%s] scale: got %g, wanted a number that is finite in float32", operation, args.scale);
  return RUDA_OK;
}

int32_t check_attention_result(const ruda_view* view, const attention_arguments& args,
                               const char* operation, const char* name, ruda_error* error) {
  const int32_t rank = args.rank();
  RUDA_TRY(check_rows(view, operation, name, rank, error));
  RUDA_TRY(check_dtype(view, {args.q->dtype}, operation, name, error));
  const int64_t *q = args.q->sizes, width = args.v->sizes[rank - 1];
  if (rank == 3) return check_shape(view, {q[0], q[1], width}, operation, name, error);
  return check_shape(view, {q[0], q[1], q[2], width}, operation, name, error);
}

int32_t read_sequence_ends(attention_arguments& args, const char* operation, ruda_error* error) {
  if (!args.packed()) return RUDA_OK;
  const int64_t q_total = args.q->sizes[0], k_total = args.k->sizes[0];
  RUDA_TRY(read_ends(args.cu_q, q_total, operation, "cu_seqlens_q", args.q_ends, error));
  if (args.cu_q->data == args.cu_k->data && q_total == k_total) {
    args.k_ends = args.q_ends;
    return RUDA_OK;
  }
  return read_ends(args.cu_k, k_total, operation, "cu_seqlens_k", args.k_ends, error);
}

attention_lengths longest_lengths(const attention_arguments& args) {
  return {longest(args.q_ends, args.q->sizes[1]), longest(args.k_ends, args.k->sizes[1])};
}

}  // namespace ruda
