// What an argument list tells the compiler.

#include <cstring>

#include <ruda/entry.hpp>

#include "kernel.hpp"

namespace ruda::native::cuda {
namespace {

const char* kind_name(int32_t kind) {
  switch (kind) {
    case RUDA_ARGUMENT_NONE: return "nothing";
    case RUDA_ARGUMENT_POINTER: return "a tensor";
    case RUDA_ARGUMENT_INTEGER: return "an integer";
    case RUDA_ARGUMENT_REAL: return "a real number";
    case RUDA_ARGUMENT_BOOLEAN: return "a boolean";
    case RUDA_ARGUMENT_TEXT: return "a text";
    default: return "an unknown kind of argument";
  }
}

const char* type_name(parameter_type type) {
  switch (type) {
    case parameter_type::pointer: return "a tensor";
    case parameter_type::integer: return "an integer";
    case parameter_type::real: return "a real number";
    case parameter_type::boolean: return "a boolean";
    default: return "a constant";
  }
}

[[gnu::cold]] int32_t fail_dtype(const ruda_device_kernel& kernel, const parameter& wanted,
                                 int32_t dtype, ruda_error* error) {
  std::string text;
  for (int32_t each = RUDA_FLOAT32; each <= RUDA_BOOL; ++each) {
    if ((wanted.dtypes >> each & 1) == 0) continue;
    if (!text.empty()) text += " or ";
    text += dtype_name(each);
  }
  return fail(error, RUDA_ERROR_TYPE, "[%s] %s: got dtype %s, wanted %s", kernel.name.c_str(),
              wanted.name.c_str(), dtype_name(dtype), text.c_str());
}

bool fits(const parameter& wanted, int64_t value) {
  if (wanted.bits == 64) return wanted.is_signed || value >= 0;
  const int64_t high = int64_t{1} << (wanted.is_signed ? wanted.bits - 1 : wanted.bits);
  return value < high && value >= (wanted.is_signed ? -high : 0);
}

int32_t check_argument(const ruda_device_kernel& kernel, const parameter& wanted,
                       const ruda_argument& given, ruda_error* error) {
  bool kind_fits = false;
  switch (wanted.type) {
    case parameter_type::pointer:
      kind_fits = given.kind == RUDA_ARGUMENT_POINTER ||
                  (wanted.optional && given.kind == RUDA_ARGUMENT_NONE);
      break;
    case parameter_type::integer: kind_fits = given.kind == RUDA_ARGUMENT_INTEGER; break;
    case parameter_type::real: kind_fits = given.kind == RUDA_ARGUMENT_REAL; break;
    case parameter_type::boolean: kind_fits = given.kind == RUDA_ARGUMENT_BOOLEAN; break;
    case parameter_type::constant: kind_fits = given.kind != RUDA_ARGUMENT_POINTER; break;
  }
  RUDA_CHECK(kind_fits, error, RUDA_ERROR_TYPE, "[%s] %s: got %s, wanted %s", kernel.name.c_str(),
             wanted.name.c_str(), kind_name(given.kind), type_name(wanted.type));
  if (given.kind == RUDA_ARGUMENT_POINTER &&
      (given.dtype < 0 || given.dtype > RUDA_BOOL || (wanted.dtypes >> given.dtype & 1) == 0))
    return fail_dtype(kernel, wanted, given.dtype, error);
  if (given.kind == RUDA_ARGUMENT_POINTER)
    RUDA_CHECK(reinterpret_cast<uintptr_t>(given.value.pointer) %
                       static_cast<uintptr_t>(item_size(given.dtype)) ==
                   0,
               error, RUDA_ERROR_VALUE, "[%s] %s: got address %p, which is not aligned to its dtype %s",
               kernel.name.c_str(), wanted.name.c_str(), given.value.pointer,
               dtype_name(given.dtype));
  if (wanted.type == parameter_type::integer)
    RUDA_CHECK(fits(wanted, given.value.integer), error, RUDA_ERROR_VALUE,
               "[%s] %s: got %lld, which %s%d does not hold", kernel.name.c_str(),
               wanted.name.c_str(), static_cast<long long>(given.value.integer),
               wanted.is_signed ? "i" : "u", wanted.bits);
  return RUDA_OK;
}

template <class T>
void append(std::string& key, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  key.append(bytes, sizeof(T));
}

void append_constant(std::string& key, const ruda_argument& given) {
  key.push_back(static_cast<char>(0x40 | given.kind));
  if (given.kind == RUDA_ARGUMENT_TEXT) {
    const size_t length = std::strlen(given.value.text);
    append(key, static_cast<uint32_t>(length));
    key.append(given.value.text, length);
  } else if (given.kind == RUDA_ARGUMENT_REAL) {
    append(key, given.value.real);
  } else if (given.kind != RUDA_ARGUMENT_NONE) {
    append(key, given.value.integer);
  }
}

bool can_be_divisible(const parameter& wanted, const fact& known) {
  if (wanted.type == parameter_type::pointer) return !known.absent;
  return wanted.type == parameter_type::integer && wanted.divisible && !known.one;
}

}  // namespace

fact fact_of(const parameter& wanted, const ruda_argument& given) noexcept {
  fact result;
  if (wanted.type == parameter_type::pointer) {
    result.absent = given.kind == RUDA_ARGUMENT_NONE;
    if (result.absent) return result;
    result.dtype = given.dtype;
    result.divisible =
        reinterpret_cast<uintptr_t>(given.value.pointer) % promised_alignment == 0;
  } else if (wanted.type == parameter_type::integer) {
    result.one = wanted.one && given.value.integer == 1;
    result.divisible = !result.one && wanted.divisible &&
                       given.value.integer % static_cast<int64_t>(promised_alignment) == 0;
  }
  return result;
}

void settle_alignment(const ruda_device_kernel& kernel, std::vector<fact>& facts) {
  bool aligned = true;
  for (size_t i = 0; i < facts.size(); ++i)
    aligned = aligned && (facts[i].divisible || !can_be_divisible(kernel.parameters[i], facts[i]));
  if (aligned) return;
  for (fact& each : facts) each.divisible = false;
}

constant constant_of(const ruda_argument& given) {
  constant result;
  result.kind = given.kind;
  if (given.kind == RUDA_ARGUMENT_TEXT) {
    result.text = given.value.text;
  } else if (given.kind == RUDA_ARGUMENT_REAL) {
    result.real = given.value.real;
  } else if (given.kind != RUDA_ARGUMENT_NONE) {
    result.integer = given.value.integer;
  }
  return result;
}

int32_t write_key(const ruda_device_kernel& kernel, const ruda_argument* arguments, int32_t count,
                  const ruda_launch_options& options, std::string& key, ruda_error* error) {
  RUDA_CHECK(static_cast<size_t>(count) == kernel.parameters.size(), error, RUDA_ERROR_TYPE,
             "[%s] got %d arguments, wanted %zu", kernel.name.c_str(), count,
             kernel.parameters.size());
  key.clear();
  bool aligned = true;
  for (int32_t i = 0; i < count; ++i) {
    const parameter& wanted = kernel.parameters[static_cast<size_t>(i)];
    const ruda_argument& given = arguments[i];
    RUDA_TRY(check_argument(kernel, wanted, given, error));
    if (wanted.type == parameter_type::constant) {
      append_constant(key, given);
      continue;
    }
    const fact known = fact_of(wanted, given);
    aligned = aligned && (known.divisible || !can_be_divisible(wanted, known));
    key.push_back(static_cast<char>((known.absent ? 1 : 0) | (known.one ? 2 : 0)));
    key.push_back(static_cast<char>(known.dtype));
  }
  key.push_back(aligned ? 1 : 0);
  append(key, options);
  return RUDA_OK;
}

int32_t check_promises(const ruda_plan& plan, const ruda_argument* arguments, int32_t count,
                       ruda_error* error) {
  const ruda_device_kernel& kernel = *plan.kernel;
  RUDA_CHECK(static_cast<size_t>(count) == kernel.parameters.size(), error, RUDA_ERROR_TYPE,
             "[%s] got %d arguments, wanted %zu", kernel.name.c_str(), count,
             kernel.parameters.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const parameter& wanted = kernel.parameters[at];
    RUDA_TRY(check_argument(kernel, wanted, arguments[i], error));
    const fact& promised = plan.promises[at];
    const fact known = fact_of(wanted, arguments[i]);
    const char* broken = nullptr;
    if (wanted.type == parameter_type::constant) {
      if (!(constant_of(arguments[i]) == plan.constants[at])) broken = "another constant";
    } else if (known.absent != promised.absent) {
      broken = promised.absent ? "no tensor" : "a tensor";
    } else if (known.dtype != promised.dtype) {
      broken = dtype_name(promised.dtype);
    } else if (promised.divisible && !known.divisible) {
      broken = wanted.type == parameter_type::pointer ? "an address divisible by 16"
                                                      : "a number divisible by 16";
    } else if (promised.one && !known.one) {
      broken = "the number 1";
    }
    RUDA_CHECK(broken == nullptr, error, RUDA_ERROR_VALUE,
               "[%s] %s: the plan's code was compiled for %s; call the kernel, which finds the plan "
               "that fits, or make another plan",
               kernel.name.c_str(), wanted.name.c_str(), broken);
  }
  return RUDA_OK;
}

}  // namespace ruda::native::cuda
