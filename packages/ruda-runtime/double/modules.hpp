// Modules, libraries and the functions in them.
#pragma once

#include "contexts.hpp"
#include "descriptions.hpp"
#include "images.hpp"

#include <atomic>
#include <memory>

namespace driver_double {

struct function : handle {
  static constexpr kind kind_of = kind::function;
  function(module& owner, std::string symbol)
      : handle{kind_of}, in(&owner), name(std::move(symbol)) {}

  // Looked up again as long as there is none.
  const description* described();

  module* const in;
  const std::string name;
  int image_parameters = -1;  // the image's own count; -1: not known
  std::atomic<unsigned> dynamic_shared_limit{49152};
  int carveout = -1;

 private:
  std::mutex mutex_;
  description_ref kept_;
  std::atomic<const description*> description_{nullptr};
};

// A library is a module that belongs to no context.
struct module : handle {
  static constexpr kind kind_of = kind::module;
  module(context* owner, image&& loaded) : handle{kind_of}, in(owner), code(std::move(loaded)) {}

  bool alive() const { return is != kind::dead; }

  context* const in;
  const image code;
  library* from = nullptr;
  std::mutex mutex;
  std::map<std::string, function*> functions;
};

struct library : handle {
  static constexpr kind kind_of = kind::library;
  explicit library(module& loaded) : handle{kind_of}, contents(loaded) {}
  module& contents;
};

CUresult get_function(const char* call, module& of, const char* name, function** out);

// The function of a handle that a launch or a query names: a function or a kernel, of a live
// module.
CUresult need_function(const char* call, function* handle);

}  // namespace driver_double
