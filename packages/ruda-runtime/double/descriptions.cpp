#include "descriptions.hpp"

#include "json.hpp"
#include "reports.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>

namespace driver_double {
namespace {

std::mutex table_mutex;
std::map<std::pair<std::string, std::string>, description_ref>& table() {
  static auto& made = *new std::map<std::pair<std::string, std::string>, description_ref>;
  return made;
}

unsigned bytes_of(const std::string& type) {
  if (type.starts_with('*')) return 8;
  static const std::map<std::string, unsigned> sizes{
      {"i1", 1},   {"u1", 1},   {"i8", 1},   {"u8", 1},  {"i16", 2},
      {"u16", 2},  {"i32", 4},  {"u32", 4},  {"i64", 8}, {"u64", 8},
      {"fp16", 2}, {"bf16", 2}, {"fp32", 4}, {"f32", 4}, {"fp64", 8}};
  auto found = sizes.find(type);
  if (found == sizes.end()) {
    throw std::invalid_argument("the double does not know parameter type '" + type + "'");
  }
  return found->second;
}

const json& need(const json& in, const char* name, json::type wanted) {
  const json& found = in[name];
  if (found.is != wanted)
    throw std::invalid_argument(std::string("wanted a member '") + name + "'");
  return found;
}

unsigned number_or(const json& in, const char* name, unsigned otherwise) {
  return in[name].is_number() ? static_cast<unsigned>(in[name].number) : otherwise;
}

description read(const char* text) {
  json source = json::parse(text);
  description made;
  made.text = text;
  made.image = need(source, "image", json::type::text).text;
  made.entry = need(source, "entry", json::type::text).text;
  made.function = need(source, "function", json::type::text).text;
  made.name = source["name"].is == json::type::text ? source["name"].text : made.entry;
  const auto& aligned = source["divisible_by_16"].list;
  for (const json& each : need(source, "parameters", json::type::list).list) {
    std::string name = need(each, "name", json::type::text).text;
    std::string type = need(each, "type", json::type::text).text;
    if (type == "constexpr") continue;
    unsigned bytes = bytes_of(type);
    bool promised = std::any_of(aligned.begin(), aligned.end(),
                                [&](const json& one) { return one.text == name; });
    made.packed.push_back({std::move(name), type, bytes, type.starts_with('*'), promised});
  }
  made.parameters = static_cast<unsigned>(made.packed.size());
  for (unsigned i = 0; i < number_or(source, "scratch_pointers", 0); ++i) {
    made.packed.push_back({"scratch pointer " + std::to_string(i), "*i8", 8, true, false});
  }
  made.built_in = find_builtin(made.function);
  if (made.built_in != nullptr && made.built_in->arguments != made.parameters) {
    throw std::invalid_argument(made.function + " has " +
                                std::to_string(made.built_in->arguments) + " parameters, got " +
                                std::to_string(made.parameters));
  }
  made.shared = number_or(source, "shared", 0);
  made.threads = number_or(source, "num_warps", 4) * number_or(source, "threads_per_warp", 32);
  return made;
}

}  // namespace

description_ref find_description(const std::string& image, const std::string& entry) {
  std::lock_guard lock(table_mutex);
  auto found = table().find({image, entry});
  return found != table().end() ? found->second : nullptr;
}

}  // namespace driver_double

using namespace driver_double;

// 0, or a driver error whose text is the last report. A second description of an entry replaces the
// first for functions that are looked up later.
DRIVER_API int ruda_double_describe(const char* text) {
  try {
    auto made = std::make_shared<description>(read(text));
    static std::atomic<uint64_t> count{0};
    made->number = ++count;
    std::lock_guard lock(table_mutex);
    table()[{made->image, made->entry}] = std::move(made);
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    return report(CUDA_ERROR_INVALID_VALUE, "[ruda_double_describe] %s", error.what());
  }
}
