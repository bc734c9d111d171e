#include "cuda/operators.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace ruda_torch {

std::atomic<bool> detail::g_on_cuda{false};

namespace {

std::map<std::string, c10::KernelFunction>& table() {
  static auto* instance = new std::map<std::string, c10::KernelFunction>();
  return *instance;
}

}  // namespace

void CudaOperators::add(const char* name, c10::KernelFunction kernel) {
  const bool added = table().emplace(name, std::move(kernel)).second;
  TORCH_INTERNAL_ASSERT(added, name, " is registered twice for the cuda target");
}

const c10::KernelFunction* find_cuda_operator(const std::string& name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

void refuse_on_cuda(const std::string& operation, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[", operation, "] has no kernel on ruda (target cuda, dtype ",
      tensor.defined() ? c10::getDtypeNames(tensor.scalar_type()).first : "not given",
      "); nothing falls back to the CPU by itself: move the tensors with .cpu() to compute it there");
}

void refuse_table_on_cuda(const char* type_name, const at::Tensor& tensor) {
  // "N2at6native30add_stub_DECLARE_DISPATCH_typeE"
  std::string_view name(type_name);
  name = name.substr(0, name.find("_DECLARE_DISPATCH"));
  constexpr std::string_view scope = "6native";
  if (const size_t at = name.find(scope); at != std::string_view::npos) {
    name = name.substr(at + scope.size());
    name = name.substr(std::min(name.find_first_not_of("0123456789"), name.size()));
  }
  refuse_on_cuda(std::string(name), tensor);
}

std::vector<std::string> cuda_operators() {
  std::vector<std::string> names;
  for (const auto& entry : table()) names.push_back(entry.first);
  return names;
}

}  // namespace ruda_torch
