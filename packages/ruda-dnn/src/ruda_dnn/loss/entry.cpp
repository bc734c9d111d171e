/* "linear_cross_entropy.forward": checks, the loop over chunks of valid rows, and the products
 * through ruda-blas's registered "gemm.matmul". */
#include <algorithm>
#include <cstring>
#include <vector>

#include <ruda/blas.h>

#include "device.hpp"
#include "entries.hpp"
#include "../normalization/host.hpp"
#include "host.hpp"
#include "rows.hpp"

namespace ruda {
namespace {

constexpr const char* operation = "linear_cross_entropy";
constexpr int64_t tile_budget = int64_t{8} << 20;     // bytes of one widened tile of the head

/* A float32 matrix on the stack that a ruda_view can point into. */
struct matrix {
  int64_t sizes[2];
  int64_t strides[2];
  ruda_view view;

  matrix(const float* data, int64_t rows, int64_t columns, int64_t row_stride,
         int64_t column_stride)
      : sizes{rows, columns}, strides{row_stride, column_stride} {
    view = {const_cast<float*>(data), sizes, strides, 2, RUDA_FLOAT32, RUDA_HOST, 0};
  }
  matrix(const matrix&) = delete;
};

/* out = a @ b + beta * out. */
int32_t multiply(const ruda_kernel* gemm, const matrix& a, const matrix& b, const matrix& out,
                 double beta, ruda_error* error) {
  const gemm_args args{&a.view, &b.view, nullptr, &out.view, 1.0, beta,
                       GEMM_AUTO};
  return gemm->run(&args, error);
}

int32_t check_output(const ruda_view* view, std::initializer_list<int64_t> shape, int32_t dtype,
                     const char* name, ruda_error* error) {
  RUDA_TRY(check_dense(view, operation, name, error));
  RUDA_TRY(check_dtype(view, {dtype}, operation, name, error));
  return check_shape(view, shape, operation, name, error);
}

int32_t check(const linear_cross_entropy_args& args, ruda_error* error) {
  RUDA_TRY(check_activation(args.hidden, operation, "hidden", error));
  RUDA_TRY(check_activation(args.head, operation, "head", error));
  RUDA_TRY(check_dense(args.target, operation, "target", error));
  RUDA_TRY(check_dtype(args.target, {RUDA_INT64}, operation, "target", error));
  RUDA_CHECK(args.hidden->ndim == 2 && args.head->ndim == 2, error, RUDA_ERROR_VALUE,
             "[%s] hidden, head: got shapes %s and %s, wanted [T, H] and [V, H]", operation,
             shape_text(*args.hidden).c_str(), shape_text(*args.head).c_str());
  const int64_t rows = args.hidden->sizes[0], width = args.hidden->sizes[1];
  const int64_t classes = args.head->sizes[0];
  RUDA_CHECK(args.head->sizes[1] == width && width >= 1 && classes >= 1, error, RUDA_ERROR_VALUE,
             "[%s] head: got shape %s, wanted [V, H] with H = %lld, V >= 1 and H >= 1", operation,
             shape_text(*args.head).c_str(), static_cast<long long>(width));
  RUDA_TRY(check_shape(args.target, {rows}, operation, "target", error));
  if (args.bias != nullptr) {
    RUDA_TRY(check_activation(args.bias, operation, "bias", error));
    RUDA_TRY(check_shape(args.bias, {classes}, operation, "bias", error));
  }
  RUDA_TRY(check_output(args.loss, {}, RUDA_FLOAT32, "loss", error));
  RUDA_TRY(check_output(args.count, {}, RUDA_INT64, "count", error));
  if (args.dhidden != nullptr) {
    RUDA_TRY(check_output(args.dhidden, {rows, width}, RUDA_FLOAT32, "dhidden", error));
  }
  if (args.dhead != nullptr) {
    RUDA_TRY(check_output(args.dhead, {classes, width}, RUDA_FLOAT32, "dhead", error));
  }
  if (args.dbias != nullptr) {
    RUDA_CHECK(args.bias != nullptr, error, RUDA_ERROR_VALUE,
               "[%s] dbias: got an output without a bias, wanted both or neither", operation);
    RUDA_TRY(check_output(args.dbias, {classes}, RUDA_FLOAT32, "dbias", error));
  }
  RUDA_CHECK(args.token_chunk >= 0, error, RUDA_ERROR_VALUE,
             "[%s] token_chunk: got %lld, wanted 0 (chosen by size) or more", operation,
             static_cast<long long>(args.token_chunk));
  return RUDA_OK;
}

/* The rows that count; an error names the first target outside the vocabulary. */
int32_t valid_rows(const linear_cross_entropy_args& args, std::vector<int64_t>& index,
                   ruda_error* error) {
  const int64_t* target = data<const int64_t>(*args.target);
  const int64_t rows = args.hidden->sizes[0], classes = args.head->sizes[0];
  for (int64_t row = 0; row < rows; ++row) {
    if (target[row] == args.ignore_index) continue;
    if (target[row] < 0 || target[row] >= classes)
      return fail_target(row, target[row], classes, args.ignore_index, error);
    index.push_back(row);
  }
  return RUDA_OK;
}

/* The head as float32, whole or a tile of classes at a time: a 16-bit head is never widened as a
 * whole, and its products stay float32 on both sides. */
class float_head {
 public:
  explicit float_head(const ruda_view& head)
      : head_(head), classes_(head.sizes[0]), width_(head.sizes[1]) {
    tile_ = classes_;
    if (head.dtype != RUDA_FLOAT32) {
      const int64_t wanted = tile_budget / (width_ * static_cast<int64_t>(sizeof(float)));
      tile_ = std::min(classes_, std::max<int64_t>(256, wanted));
      storage_ = scratch<float>(tile_ * width_);
    }
  }

  /* fn(first class, classes in the tile, float32 [classes, width]). */
  template <class F>
  int32_t for_tiles(F&& fn) {
    for (int64_t first = 0; first < classes_; first += tile_) {
      const int64_t count = std::min(tile_, classes_ - first);
      RUDA_TRY(fn(first, count, tile(first, count)));
    }
    return RUDA_OK;
  }

 private:
  const float* tile(int64_t first, int64_t count) {
    if (head_.dtype == RUDA_FLOAT32) return data<const float>(head_) + first * width_;
    const auto* source = data<const uint16_t>(head_) + first * width_;
    const auto widen = RUDA_HOST(widen_to_float);
    parallel_for(0, count * width_, 65536, [&](int64_t begin, int64_t end, int32_t) {
      widen(source + begin, head_.dtype, storage_.get() + begin, end - begin);
    });
    return storage_.get();
  }

  const ruda_view& head_;
  int64_t classes_, width_, tile_;
  scratch<float> storage_;
};

/* `values[rows, width]` to rows index[...] of the output. */
void scatter(const float* values, const int64_t* index, int64_t rows, int64_t width, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + index[row] * width, values + row * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void zero(const ruda_view* view) {
  if (view != nullptr) std::memset(view->data, 0, static_cast<size_t>(byte_count(*view)));
}

int32_t run(const linear_cross_entropy_args& args, const std::vector<int64_t>& index,
            const ruda_kernel* gemm, double* loss, ruda_error* error) {
  const int64_t width = args.hidden->sizes[1], classes = args.head->sizes[0];
  const int64_t valid = static_cast<int64_t>(index.size());
  const bool gradient =
      args.dhidden != nullptr || args.dhead != nullptr || args.dbias != nullptr;
  const int64_t chunk = chunk_rows(valid, classes, args.token_chunk);
  float_head head(*args.head);
  scratch<float> hidden(chunk * width), logits(chunk * classes), dhidden, bias;
  if (args.dhidden != nullptr) dhidden = scratch<float>(chunk * width);
  if (args.bias != nullptr) {
    bias = scratch<float>(classes);
    RUDA_HOST(widen_to_float)(args.bias->data, args.bias->dtype, bias.get(), classes);
  }
  std::vector<int64_t> targets(static_cast<size_t>(chunk));
  std::vector<double> losses(static_cast<size_t>(chunk));
  const auto gather = RUDA_HOST(gather_to_float);
  const auto softmax = RUDA_HOST(cross_entropy);
  const auto add = RUDA_HOST(add_columns);

  for (int64_t start = 0; start < valid; start += chunk) {
    const int64_t rows = std::min(chunk, valid - start);
    const int64_t* rows_index = index.data() + start;
    parallel_for(0, rows, grain_for(width, 16384), [&](int64_t begin, int64_t end, int32_t) {
      gather(args.hidden->data, args.hidden->dtype, rows_index, width, hidden.get(), begin, end);
    });
    const matrix left(hidden.get(), rows, width, width, 1);
    RUDA_TRY(head.for_tiles([&](int64_t first, int64_t count, const float* tile) {
      const matrix right(tile, width, count, 1, width);
      const matrix out(logits.get() + first, rows, count, classes, 1);
      return multiply(gemm, left, right, out, 0.0, error);
    }));
    for (int64_t row = 0; row < rows; ++row) {
      targets[static_cast<size_t>(row)] = data<const int64_t>(*args.target)[rows_index[row]];
    }
    const cross_entropy_rows work{logits.get(), bias.get(), targets.data(), losses.data(), classes,
                                  gradient};
    parallel_for(0, rows, grain_for(classes, 16384),
                 [&](int64_t begin, int64_t end, int32_t) { softmax(work, begin, end); });
    for (int64_t row = 0; row < rows; ++row) *loss += losses[static_cast<size_t>(row)];

    if (args.dhidden != nullptr) {
      RUDA_TRY(head.for_tiles([&](int64_t first, int64_t count, const float* tile) {
        const matrix probabilities(logits.get() + first, rows, count, classes, 1);
        const matrix right(tile, count, width, width, 1);
        const matrix out(dhidden.get(), rows, width, width, 1);
        return multiply(gemm, probabilities, right, out, first == 0 ? 0.0 : 1.0, error);
      }));
      scatter(dhidden.get(), rows_index, rows, width, data<float>(*args.dhidden));
    }
    if (args.dhead != nullptr) {
      const matrix transposed(logits.get(), classes, rows, 1, classes);
      const matrix out(data<float>(*args.dhead), classes, width, width, 1);
      RUDA_TRY(multiply(gemm, transposed, left, out, start == 0 ? 0.0 : 1.0, error));
    }
    if (args.dbias != nullptr) {
      parallel_for(0, classes, grain_for(rows, 16384), [&](int64_t begin, int64_t end, int32_t) {
        add(logits.get(), rows, classes, data<float>(*args.dbias), begin, end);
      });
    }
  }
  return RUDA_OK;
}

int32_t forward(const void* raw, ruda_error* error) {
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const linear_cross_entropy_args*>(raw);
    RUDA_TRY(check(args, error));
    if (on_device(*args.hidden)) return linear_cross_entropy_cuda(args, error);
    std::vector<int64_t> index;
    RUDA_TRY(valid_rows(args, index, error));
    const ruda_kernel* gemm = nullptr;
    RUDA_TRY(find_kernel("gemm.matmul", gemm_args_layout, &gemm, error));
    zero(args.dhidden);  // ignored rows get no gradient
    zero(args.dbias);
    if (index.empty()) zero(args.dhead);  // otherwise the first chunk overwrites it
    double loss = 0.0;
    if (!index.empty()) RUDA_TRY(run(args, index, gemm, &loss, error));
    *data<float>(*args.loss) = static_cast<float>(loss);
    *data<int64_t>(*args.count) = static_cast<int64_t>(index.size());
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_loss(ruda_error* error) {
  return register_kernel("linear_cross_entropy.forward", "ruda-dnn",
                         linear_cross_entropy_args_layout, forward, error);
}

}  // namespace ruda
