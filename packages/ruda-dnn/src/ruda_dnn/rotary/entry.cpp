/* "rotary.forward" and "rotary.backward": checks, choice and launch. */
#include "device.hpp"
#include "entries.hpp"
#include "host.hpp"

namespace ruda {
namespace {

/* cos or sin: [B or 1, T, R]. */
int32_t check_table(const ruda_view* table, const ruda_view* x, const char* operation,
                    const char* name, ruda_error* error) {
  RUDA_TRY(check_dense(table, operation, name, error));
  if (table->dtype != RUDA_FLOAT32) {
    RUDA_TRY(check_dtype(table, {RUDA_FLOAT32, x->dtype}, operation, name, error));
  }
  const int64_t batch = x->sizes[0], length = x->sizes[1], features = x->sizes[3];
  const bool fits = table->ndim == 3 && (table->sizes[0] == 1 || table->sizes[0] == batch) &&
                    table->sizes[1] == length && table->sizes[2] % 2 == 0 &&
                    table->sizes[2] >= 2 && table->sizes[2] <= features;
  RUDA_CHECK(fits, error, RUDA_ERROR_VALUE,
             "[%s] %s: got shape %s for x of shape %s, wanted [%lld or 1, %lld, R] with an even "
             "R of 2 to %lld",
             operation, name, shape_text(*table).c_str(), shape_text(*x).c_str(),
             static_cast<long long>(batch), static_cast<long long>(length),
             static_cast<long long>(features));
  return RUDA_OK;
}

int32_t check_input(const ruda_view* x, const char* operation, const char* name,
                    ruda_error* error) {
  RUDA_TRY(check_target(x, operation, name, error));
  RUDA_TRY(check_dtype(x, {RUDA_FLOAT32, RUDA_FLOAT16, RUDA_BFLOAT16}, operation, name, error));
  RUDA_CHECK(x->ndim == 4 && x->sizes[3] >= 2, error, RUDA_ERROR_VALUE,
             "[%s] %s: got shape %s, wanted [B, T, H, D] with D of 2 or more", operation, name,
             shape_text(*x).c_str());
  RUDA_CHECK(x->strides[3] == 1 || element_count(*x) == 0, error, RUDA_ERROR_VALUE,
             "[%s] %s: got strides %s, wanted adjacent features (a last stride of 1); call "
             "contiguous()",
             operation, name, strides_text(*x).c_str());
  return RUDA_OK;
}

int32_t run(const rotary_args& args, const char* operation, const char* name, bool transposed,
            ruda_error* error) {
  RUDA_TRY(check_input(args.x, operation, name, error));
  RUDA_TRY(check_table(args.cos, args.x, operation, "cos", error));
  RUDA_TRY(check_table(args.sin, args.x, operation, "sin", error));
  RUDA_TRY(check_same_shape(args.sin, args.cos, operation, "sin", "cos", error));
  RUDA_TRY(check_dtype(args.sin, {args.cos->dtype}, operation, "sin", error));
  RUDA_TRY(check_like(args.y, args.x, operation, "y", name, error));
  if (on_device(*args.x)) return rotary_cuda(args, operation, transposed, error);
  const int64_t* sizes = args.x->sizes;
  const int64_t rotated = args.cos->sizes[2];
  const rotary_tokens work{args.x->data,
                           args.cos->data,
                           args.sin->data,
                           args.y->data,
                           {args.x->strides[0], args.x->strides[1], args.x->strides[2]},
                           args.cos->sizes[0] == 1 ? 0 : sizes[1] * rotated,
                           sizes[1],
                           sizes[2],
                           sizes[3],
                           rotated,
                           args.x->dtype,
                           args.cos->dtype,
                           transposed};
  const auto rotate_tokens = RUDA_HOST(rotate);
  parallel_for(0, element_count(*args.x) == 0 ? 0 : sizes[0] * sizes[1],
               grain_for(sizes[2] * sizes[3], 16384),
               [&](int64_t begin, int64_t end, int32_t) { rotate_tokens(work, begin, end); });
  return RUDA_OK;
}

int32_t forward(const void* raw, ruda_error* error) {
  return guard("rotary", error, [&]() -> int32_t {
    return run(*static_cast<const rotary_args*>(raw), "rotary", "x", false, error);
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  return guard("rotary_backward", error, [&]() -> int32_t {
    return run(*static_cast<const rotary_args*>(raw), "rotary_backward", "grad", true, error);
  });
}

}  // namespace

int32_t register_rotary(ruda_error* error) {
  RUDA_TRY(register_kernel("rotary.forward", "ruda-dnn", rotary_args_layout, forward, error));
  return register_kernel("rotary.backward", "ruda-dnn", rotary_args_layout, backward, error);
}

}  // namespace ruda
