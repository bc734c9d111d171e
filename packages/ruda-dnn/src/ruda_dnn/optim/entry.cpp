/* "adamw.step", "gradient.unscale" and "gradient.norm": checks, choice and launch. All tensors of a
 * call are one flat range, cut into chunks whose borders depend on the sizes alone. */
#include <algorithm>
#include <cmath>
#include <vector>

#include "device.hpp"
#include "entries.hpp"
#include "host.hpp"

namespace ruda {
namespace {

constexpr int64_t chunk_elements = 16384;

struct chunk {
  int64_t tensor;
  int64_t begin;
  int64_t end;
};

std::vector<chunk> cut(const ruda_view* const* views, int64_t tensors) {
  std::vector<chunk> chunks;
  for (int64_t tensor = 0; tensor < tensors; ++tensor) {
    const int64_t count = element_count(*views[tensor]);
    for (int64_t begin = 0; begin < count; begin += chunk_elements) {
      chunks.push_back({tensor, begin, std::min(begin + chunk_elements, count)});
    }
  }
  return chunks;
}

/* fn(index of the chunk, chunk) for every chunk, in parallel. */
template <class F>
void for_chunks(const std::vector<chunk>& chunks, F&& fn) {
  parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) fn(i, chunks[static_cast<size_t>(i)]);
  });
}

/* Whether checked tensors, of which there may be none, are the GPU's. */
bool tensors_on_device() { return api()->target() == RUDA_CUDA; }

std::string numbered(const char* name, int64_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

int32_t check_gradients(const ruda_view* const* gradients, int64_t tensors, double scale,
                        const char* operation, ruda_error* error) {
  RUDA_CHECK(tensors >= 0, error, RUDA_ERROR_VALUE, "[%s] tensors: got %lld, wanted 0 or more",
             operation, static_cast<long long>(tensors));
  RUDA_CHECK(std::isfinite(scale) && std::isfinite(static_cast<float>(scale)), error,
             RUDA_ERROR_VALUE, "[%s] scale: got %g, wanted a finite number", operation, scale);
  for (int64_t i = 0; i < tensors; ++i) {
    RUDA_TRY(check_activation(gradients[i], operation, numbered("gradients", i).c_str(), error));
  }
  return RUDA_OK;
}

int32_t unscale(const void* raw, ruda_error* error) {
  const char* operation = "gradient.unscale";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const gradient_unscale_args*>(raw);
    RUDA_TRY(check_gradients(args.gradients, args.tensors, args.scale, operation, error));
    RUDA_CHECK(args.finite != nullptr, error, RUDA_ERROR_VALUE,
               "[%s] finite: got no place for the result", operation);
    if (tensors_on_device()) return gradient_unscale_cuda(args, error);
    const auto chunks = cut(args.gradients, args.tensors);
    const float scale = static_cast<float>(args.scale);
    const auto run = RUDA_HOST(scale_in_place);
    std::vector<uint8_t> finite(chunks.size());
    for_chunks(chunks, [&](int64_t i, const chunk& part) {
      const ruda_view& view = *args.gradients[part.tensor];
      finite[static_cast<size_t>(i)] = run(view.data, view.dtype, scale, part.begin, part.end);
    });
    *args.finite = std::all_of(finite.begin(), finite.end(), [](uint8_t flag) { return flag != 0; });
    return RUDA_OK;
  });
}

int32_t norm(const void* raw, ruda_error* error) {
  const char* operation = "gradient.norm";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const gradient_norm_args*>(raw);
    RUDA_TRY(check_gradients(args.gradients, args.tensors, args.scale, operation, error));
    RUDA_CHECK(args.norm != nullptr && args.finite != nullptr, error, RUDA_ERROR_VALUE,
               "[%s] norm, finite: got no place for the results", operation);
    if (tensors_on_device()) return gradient_norm_cuda(args, error);
    const auto chunks = cut(args.gradients, args.tensors);
    const float scale = static_cast<float>(args.scale);
    const auto run = RUDA_HOST(scaled_square_sum);
    std::vector<double> sums(chunks.size());
    for_chunks(chunks, [&](int64_t i, const chunk& part) {
      const ruda_view& view = *args.gradients[part.tensor];
      sums[static_cast<size_t>(i)] = run(view.data, view.dtype, scale, part.begin, part.end);
    });
    double total = 0.0;
    for (const double sum : sums) total += sum;
    *args.norm = std::sqrt(total);
    *args.finite = std::isfinite(total);
    return RUDA_OK;
  });
}

/* A float32 state tensor of the parameter's size. */
int32_t check_state(const ruda_view* state, const ruda_view* parameter, const char* operation,
                    const std::string& name, ruda_error* error) {
  RUDA_TRY(check_dense(state, operation, name.c_str(), error));
  RUDA_TRY(check_dtype(state, {RUDA_FLOAT32}, operation, name.c_str(), error));
  return check_same_shape(state, parameter, operation, name.c_str(), "the parameter", error);
}

int32_t check_adamw(const adamw_step_args& args, const char* operation, ruda_error* error) {
  const auto in_unit = [](double value) { return value >= 0.0 && value < 1.0; };
  RUDA_CHECK(args.tensors >= 0, error, RUDA_ERROR_VALUE, "[%s] tensors: got %lld, wanted 0 or more",
             operation, static_cast<long long>(args.tensors));
  RUDA_CHECK(args.step >= 1, error, RUDA_ERROR_VALUE,
             "[%s] step: got %lld, wanted the number of this step, counted from 1", operation,
             static_cast<long long>(args.step));
  RUDA_CHECK(in_unit(args.beta1) && in_unit(args.beta2), error, RUDA_ERROR_VALUE,
             "[%s] betas: got (%g, %g), wanted numbers in [0, 1)", operation, args.beta1,
             args.beta2);
  RUDA_CHECK(std::isfinite(args.learning_rate) && args.learning_rate >= 0.0, error,
             RUDA_ERROR_VALUE, "[%s] learning_rate: got %g, wanted a finite number >= 0", operation,
             args.learning_rate);
  RUDA_CHECK(std::isfinite(args.epsilon) && args.epsilon >= 0.0, error, RUDA_ERROR_VALUE,
             "[%s] epsilon: got %g, wanted a finite number >= 0", operation, args.epsilon);
  RUDA_CHECK(std::isfinite(args.weight_decay) && args.weight_decay >= 0.0, error, RUDA_ERROR_VALUE,
             "[%s] weight_decay: got %g, wanted a finite number >= 0", operation,
             args.weight_decay);
  RUDA_CHECK(std::isfinite(args.gradient_scale), error, RUDA_ERROR_VALUE,
             "[%s] gradient_scale: got %g, wanted a finite number", operation,
             args.gradient_scale);
  for (int64_t i = 0; i < args.tensors; ++i) {
    const ruda_view* parameter = args.parameters[i];
    const ruda_view* gradient = args.gradients[i];
    const ruda_view* master = args.masters == nullptr ? nullptr : args.masters[i];
    RUDA_TRY(check_activation(parameter, operation, numbered("parameters", i).c_str(), error));
    const std::string name = numbered("gradients", i);
    RUDA_TRY(check_dense(gradient, operation, name.c_str(), error));
    RUDA_TRY(check_same_shape(gradient, parameter, operation, name.c_str(), "the parameter",
                              error));
    if (gradient->dtype != RUDA_FLOAT32) {
      RUDA_TRY(check_dtype(gradient, {RUDA_FLOAT32, parameter->dtype}, operation, name.c_str(),
                           error));
    }
    RUDA_CHECK(master != nullptr || parameter->dtype == RUDA_FLOAT32, error, RUDA_ERROR_VALUE,
               "[%s] masters[%lld]: got nothing, wanted float32%s for a parameter of %s", operation,
               static_cast<long long>(i), shape_text(*parameter).c_str(),
               dtype_name(parameter->dtype));
    if (master != nullptr) {
      RUDA_TRY(check_state(master, parameter, operation, numbered("masters", i), error));
    }
    RUDA_TRY(check_state(args.first_moments[i], parameter, operation, numbered("first_moments", i),
                         error));
    RUDA_TRY(check_state(args.second_moments[i], parameter, operation,
                         numbered("second_moments", i), error));
  }
  return RUDA_OK;
}

int32_t adamw(const void* raw, ruda_error* error) {
  const char* operation = "adamw.step";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const adamw_step_args*>(raw);
    RUDA_TRY(check_adamw(args, operation, error));
    if (tensors_on_device()) return adamw_step_cuda(args, error);
    std::vector<adamw_tensor> tensors(static_cast<size_t>(args.tensors));
    for (int64_t i = 0; i < args.tensors; ++i) {
      const ruda_view* master = args.masters == nullptr ? nullptr : args.masters[i];
      tensors[static_cast<size_t>(i)] = {args.parameters[i]->data,
                                         args.gradients[i]->data,
                                         master == nullptr ? nullptr : data<float>(*master),
                                         data<float>(*args.first_moments[i]),
                                         data<float>(*args.second_moments[i]),
                                         args.parameters[i]->dtype,
                                         args.gradients[i]->dtype};
    }
    const double step = static_cast<double>(args.step);
    // Scalars in float64, as torch computes them in Python; each is rounded once.
    const adamw_numbers numbers{
        static_cast<float>(1.0 - args.learning_rate * args.weight_decay),
        static_cast<float>(args.beta1),
        static_cast<float>(1.0 - args.beta1),
        static_cast<float>(args.beta2),
        static_cast<float>(1.0 - args.beta2),
        static_cast<float>(args.learning_rate / (1.0 - std::pow(args.beta1, step))),
        static_cast<float>(std::sqrt(1.0 - std::pow(args.beta2, step))),
        static_cast<float>(args.epsilon),
        static_cast<float>(args.gradient_scale)};
    const auto run = RUDA_HOST(adamw_update);
    for_chunks(cut(args.parameters, args.tensors), [&](int64_t, const chunk& part) {
      run(tensors[static_cast<size_t>(part.tensor)], numbers, part.begin, part.end);
    });
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_optim(ruda_error* error) {
  RUDA_TRY(register_kernel("adamw.step", "ruda-dnn", adamw_step_args_layout, adamw, error));
  RUDA_TRY(register_kernel("gradient.unscale", "ruda-dnn", gradient_unscale_args_layout, unscale,
                           error));
  return register_kernel("gradient.norm", "ruda-dnn", gradient_norm_args_layout, norm, error);
}

}  // namespace ruda
