#include "boxed.h"

#include "../cuda/operators.h"
#include "../runtime.h"
#include "../streams.h"
#include "../threads.h"
#include "host_call.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

enum class Kind : uint8_t { Tensor, TensorList, OptionalTensorList, Device, Generator };

// An argument that the kernel must look at; all others go through untouched.
struct Argument {
  uint32_t index;
  Kind kind;
  bool written;
  bool host_values;  // a CPU tensor of numbers by contract (`scalars` of the foreach operators)
  bool table;        // that a few values are looked up in: its size says nothing about the work
};

struct Result {
  Kind kind;
  int32_t argument;  // the written argument that is returned, or -1
};

// What the schema says, read once.
struct Plan {
  std::vector<Argument> arguments;
  std::vector<Result> results;
  uint32_t argument_count = 0;
  uint32_t result_count = 0;
  bool plain_results = false;  // every result is a fresh tensor
};

std::optional<Kind> kind_of(const c10::TypePtr& type) {
  const c10::Type* inner = type.get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    inner = optional->getElementType().get();
  }
  switch (inner->kind()) {
    case c10::TypeKind::TensorType: return Kind::Tensor;
    case c10::TypeKind::DeviceObjType: return Kind::Device;
    case c10::TypeKind::GeneratorType: return Kind::Generator;
    case c10::TypeKind::ListType: {
      const auto& element = static_cast<const c10::ListType*>(inner)->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return Kind::TensorList;
      if (element->kind() == c10::TypeKind::OptionalType &&
          element->castRaw<c10::OptionalType>()->getElementType()->kind() ==
              c10::TypeKind::TensorType) {
        return Kind::OptionalTensorList;
      }
      return std::nullopt;
    }
    default: return std::nullopt;
  }
}

bool looks_up(const std::string& name) {
  for (const char* known : {"aten::embedding", "aten::gather", "aten::index", "aten::index_select"}) {
    if (name == known) return true;
  }
  return false;
}

Plan plan_of(const c10::FunctionSchema& schema) {
  Plan plan;
  const bool lookup = looks_up(schema.name());
  plan.argument_count = static_cast<uint32_t>(schema.arguments().size());
  plan.result_count = static_cast<uint32_t>(schema.returns().size());
  for (uint32_t i = 0; i < plan.argument_count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const auto kind = kind_of(argument.type());
    if (!kind.has_value()) continue;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    plan.arguments.push_back({i, *kind, written, argument.name() == "scalars", lookup && i == 0});
  }
  plan.plain_results = true;
  for (const c10::Argument& result : schema.returns()) {
    const auto kind = kind_of(result.type());
    int32_t source = -1;
    if (result.alias_info() != nullptr) {
      for (uint32_t i = 0; i < plan.argument_count; ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info != nullptr && info->isWrite() &&
            info->beforeSets() == result.alias_info()->beforeSets()) {
          source = static_cast<int32_t>(i);
        }
      }
      TORCH_CHECK(source >= 0, "[ruda] ", schema, " returns a view: views have their own kernels");
    }
    plan.results.push_back({kind.value_or(Kind::Device), source});
    plan.plain_results = plan.plain_results && kind == Kind::Tensor && source < 0;
  }
  return plan;
}

// A tensor among the arguments, which says what the call was about; undefined when there is none.
at::Tensor some_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
    if (value.isTensorList() && value.toTensorList().size() != 0) {
      return value.toTensorList().get(0);
    }
  }
  return {};
}

// ATen composes many operators of others, for any device. Such a kernel lies in the slot of every
// backend that has none of its own: this one has none at all.
constexpr auto kBareBackend = c10::DispatchKey::HPU;

void run_on_cuda(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const auto* kernel = find_cuda_operator(c10::toString(op.operator_name()));
  const bool composed = op.hasComputedKernelForDispatchKey(kBareBackend);
  if (kernel == nullptr && !composed) {
    refuse_on_cuda(c10::toString(op.operator_name()), some_tensor(op, *stack));
  }
  refuse_capture();
  if (kernel != nullptr) {
    kernel->callBoxed(op, keys, stack);
  } else {
    op.redispatchBoxed(c10::DispatchKeySet(kBareBackend), stack);
  }
}

class Boxed final : public c10::OperatorKernel {
 public:
  Boxed(const c10::FunctionSchema& schema, bool cpu_scalars)
      : plan_(plan_of(schema)), cpu_scalars_(cpu_scalars) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    if (on_cuda()) {
      run_on_cuda(op, keys, stack);
      return;
    }
    HostCall call(op.operator_name().name.c_str());
    OneThread threads;
    // The stack gets aliases; the originals stay alive here.
    c10::SmallVector<c10::IValue, 6> originals;
    const size_t first = stack->size() - plan_.argument_count;
    for (const Argument& argument : plan_.arguments) {
      c10::IValue& slot = (*stack)[first + argument.index];
      originals.push_back(std::move(slot));
      const c10::IValue& original = originals.back();
      if (original.isNone()) continue;  // and so is the slot now
      switch (argument.kind) {
        case Kind::Tensor:
          slot = alias(op, call, threads, argument, original.toTensor());
          break;
        case Kind::TensorList: {
          const auto list = original.toTensorList();
          c10::List<at::Tensor> aliases;
          aliases.reserve(list.size());
          for (const at::Tensor& tensor : list) {
            aliases.push_back(alias(op, call, threads, argument, tensor));
          }
          slot = std::move(aliases);
          break;
        }
        case Kind::OptionalTensorList: {
          const auto list = original.toOptionalTensorList();
          c10::List<std::optional<at::Tensor>> aliases;
          aliases.reserve(list.size());
          for (const std::optional<at::Tensor>& tensor : list) {
            if (tensor.has_value()) {
              aliases.push_back(alias(op, call, threads, argument, *tensor));
            } else {
              aliases.push_back(std::nullopt);
            }
          }
          slot = std::move(aliases);
          break;
        }
        case Kind::Device:
          slot = c10::Device(c10::kCPU);
          break;
        case Kind::Generator:
          TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op.operator_name(), "] takes a generator: random "
                                      "operators need a kernel of their own");
      }
    }
    op.redispatchBoxed(kCpu, stack);
    call.give_back();
    take_results(call, originals, stack);
  }

 private:
  at::Tensor alias(const c10::OperatorHandle& op, HostCall& call, OneThread& threads,
                   const Argument& argument, const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    if (tensor.numel() > kFewElements && !argument.table) threads.end();
    if (tensor.is_privateuseone()) {
      return argument.written ? call.alias_written(tensor) : call.alias(tensor);
    }
    const bool number = tensor.is_cpu() && !argument.written &&
                        ((cpu_scalars_ && tensor.dim() == 0) || argument.host_values);
    if (!number) {
      refuse_device(c10::toString(op.operator_name()),
                    op.schema().arguments()[argument.index].name(), tensor);
    }
    return tensor;
  }

  void take_results(HostCall& call, c10::SmallVectorImpl<c10::IValue>& originals,
                    torch::jit::Stack* stack) const {
    const size_t first = stack->size() - plan_.result_count;
    for (uint32_t i = 0; i < plan_.result_count; ++i) {
      c10::IValue& slot = (*stack)[first + i];
      const Result& result = plan_.results[i];
      if (result.argument >= 0) {
        for (size_t k = 0; k < plan_.arguments.size(); ++k) {
          if (plan_.arguments[k].index == static_cast<uint32_t>(result.argument)) {
            slot = std::move(originals[k]);
          }
        }
      } else if (slot.isTensor()) {
        slot = call.adopt(std::move(slot).toTensor());
      } else if (slot.isTensorList()) {
        c10::List<at::Tensor> list = slot.toTensorList();
        for (size_t k = 0; k < list.size(); ++k) list.set(k, call.adopt(list.extract(k)));
      }
    }
  }

  const Plan plan_;
  const bool cpu_scalars_;
};

struct Listed {
  const char* name;
  bool cpu_scalars;
};

constexpr Listed kListed[] = {
#define RUDA_HOST_OPERATOR(name, cpu_scalars) {name, cpu_scalars != 0},
#include "../../src/ruda_torch/data/host_operators.inc"
#undef RUDA_HOST_OPERATOR
};

// The list is that of torch 2.13, which has operators that older ones do not know.
bool is_there(const Listed& listed) {
  if (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13) return true;
  const std::string name = std::string("aten::") + listed.name;
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload}).has_value();
}

// What an operator without a kernel gets.
void not_listed(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                torch::jit::Stack* stack) {
  if (on_cuda()) {
    run_on_cuda(op, keys, stack);
    return;
  }
  const at::Tensor tensor = some_tensor(op, *stack);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[", op.operator_name(), "] has no kernel on ruda (target host, dtype ",
      tensor.defined() ? c10::getDtypeNames(tensor.scalar_type()).first : "not given",
      "); nothing falls back to the CPU by itself: move the tensors with .cpu() to compute it "
      "there");
}

}  // namespace

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        overload.c_str());
}

BoxedOperator::BoxedOperator(const char* name, bool cpu_scalars)
    : handle_(find_operator(name)),
      kernel_(c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<Boxed>(handle_.schema(), cpu_scalars))),
      on_cuda_(find_cuda_operator(name)) {}

std::vector<std::string> host_operators() {
  std::vector<std::string> names;
  for (const Listed& listed : kListed) {
    if (is_there(listed)) names.emplace_back(listed.name);
  }
  return names;
}

void serve_boxed(const std::string& name, bool cpu_scalars) {
  static auto* libraries = new std::vector<torch::Library>();
  const size_t colons = name.find("::");
  TORCH_CHECK_VALUE(colons != std::string::npos, "operator: got ", name, ", wanted library::name");
  const auto op = find_operator(name);
  libraries->emplace_back(torch::Library::IMPL, name.substr(0, colons),
                          c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  libraries->back().impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                           std::make_unique<Boxed>(op.schema(), cpu_scalars)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const Listed& listed : kListed) {
    if (!is_there(listed)) continue;
    const auto op = find_operator(std::string("aten::") + listed.name);
    library.impl(listed.name, torch::CppFunction::makeFromBoxedFunctor(
                                  std::make_unique<Boxed>(op.schema(), listed.cpu_scalars)));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&not_listed>());
}

}  // namespace ruda_torch
