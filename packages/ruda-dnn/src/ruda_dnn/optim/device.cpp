/* The optimiser's kernels on the cuda target; the choices are those of launch.py.
 *
 * Tensors of one kind (dtypes, a master or none, aligned or not) share a launch, which reads their
 * addresses from a table: a row has the tensor's first chunk, its element count and its addresses. */
#include "device.hpp"

#include <array>
#include <cmath>
#include <vector>

#include "device_entries.hpp"
#include "entries.hpp"

namespace ruda {
namespace {

device_kernel adamw_kernel{"adamw.step"};
device_kernel unscale_kernel{"gradient.unscale"};
device_kernel square_sums{"gradient.square_sums"};
device_kernel all_flags{"gradient.all_flags"};
device_kernel norm_of_sums{"gradient.norm_of_sums"};

constexpr int64_t adamw_chunk = 1024;
constexpr int64_t gradient_chunk = 16384;
constexpr int64_t block = 1024;

struct group {
  std::array<int32_t, 3> kind{};
  bool aligned = true;
  int64_t tensors = 0;
  int64_t chunks = 0;
  std::vector<int64_t> table;
  int64_t place = 0;  // of the table in device memory
};

class tables {
 public:
  explicit tables(int64_t chunk) : chunk_(chunk) {}

  void add(const std::array<int32_t, 3>& kind, int64_t count,
           std::initializer_list<const void*> addresses) {
    if (count == 0) return;
    const bool aligned = count % 16 == 0 && aligned_to_16(addresses);
    group& owner = group_of(kind, aligned);
    owner.table.push_back(owner.chunks);
    owner.table.push_back(count);
    for (const void* address : addresses)
      owner.table.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)));
    owner.chunks += ceil_div(count, chunk_);
    ++owner.tensors;
  }

  /* One copy for all; every table begins at an address that is divisible by 16. */
  int32_t upload(const char* operation, ruda_error* error) {
    std::vector<int64_t> all;
    for (group& each : groups_) {
      RUDA_TRY(check_device_limit(each.chunks, operation, "chunks of a launch", error));
      RUDA_TRY(check_device_limit(each.tensors, operation, "tensors", error));
      each.place = static_cast<int64_t>(all.size());
      all.insert(all.end(), each.table.begin(), each.table.end());
      if (all.size() % 2 != 0) all.push_back(0);
    }
    RUDA_TRY(check_device_limit(chunks(), operation, "chunks", error));
    if (all.empty()) return RUDA_OK;
    memory_ = scratch<int64_t>(static_cast<int64_t>(all.size()));
    return api()->copy_to_device(memory_.get(), all.data(), all.size() * sizeof(int64_t),
                                 api()->current_stream(), error);
  }

  int64_t chunks() const noexcept {
    int64_t total = 0;
    for (const group& each : groups_) total += each.chunks;
    return total;
  }
  const std::vector<group>& groups() const noexcept { return groups_; }
  ruda_argument table_of(const group& each) const noexcept {
    return pointer(memory_.get() + each.place, RUDA_INT64);
  }

 private:
  group& group_of(const std::array<int32_t, 3>& kind, bool aligned) {
    for (group& each : groups_)
      if (each.kind == kind && each.aligned == aligned) return each;
    groups_.emplace_back();
    groups_.back().kind = kind;
    groups_.back().aligned = aligned;
    return groups_.back();
  }

  int64_t chunk_;
  std::vector<group> groups_;
  scratch<int64_t> memory_;
};

/* A number that a reduction leaves: on the device where its place is there, else in scratch that is
 * copied to the place. */
template <class T>
class device_result {
 public:
  explicit device_result(T* place) : place_(place) {
    if (api()->usable_size(place) == 0) memory_ = scratch<T>(1);
  }

  T* get() const noexcept { return memory_.get() == nullptr ? place_ : memory_.get(); }
  /* Waits for the work before it where the place is not on the device. */
  int32_t deliver(ruda_error* error) const {
    if (memory_.get() == nullptr) return RUDA_OK;
    const int32_t stream = api()->current_stream();
    RUDA_TRY(api()->copy_to_host(place_, memory_.get(), sizeof(T), stream, error));
    return api()->synchronize(stream, error);  // page-locked memory is written later
  }

 private:
  T* place_;
  scratch<T> memory_;
};

tables gradient_tables(const ruda_view* const* gradients, int64_t tensors) {
  tables made(gradient_chunk);
  for (int64_t i = 0; i < tensors; ++i)
    made.add({gradients[i]->dtype, 0, 0}, element_count(*gradients[i]), {gradients[i]->data});
  return made;
}

}  // namespace

int32_t adamw_step_cuda(const adamw_step_args& args, ruda_error* error) {
  tables made(adamw_chunk);
  for (int64_t i = 0; i < args.tensors; ++i) {
    const ruda_view& parameter = *args.parameters[i];
    const ruda_view* master = args.masters == nullptr ? nullptr : args.masters[i];
    made.add({parameter.dtype, args.gradients[i]->dtype, master != nullptr},
             element_count(parameter),
             {parameter.data, args.gradients[i]->data, address_of(master),
              args.first_moments[i]->data, args.second_moments[i]->data});
  }
  RUDA_TRY(made.upload("adamw.step", error));
  const double step = static_cast<double>(args.step);
  for (const group& each : made.groups()) {
    RUDA_TRY(adamw_kernel.launch(
        programs(each.chunks), {}, error, made.table_of(each), integer(each.tensors),
        real(1.0 - args.learning_rate * args.weight_decay), real(args.beta1),
        real(1.0 - args.beta1), real(args.beta2), real(1.0 - args.beta2),
        real(args.learning_rate / (1.0 - std::pow(args.beta1, step))),
        real(std::sqrt(1.0 - std::pow(args.beta2, step))), real(args.epsilon),
        real(args.gradient_scale), text(dtype_name(each.kind[0])), text(dtype_name(each.kind[1])),
        boolean(each.kind[2] != 0), boolean(each.aligned), integer(adamw_chunk)));
  }
  return RUDA_OK;
}

int32_t gradient_unscale_cuda(const gradient_unscale_args& args, ruda_error* error) {
  tables made = gradient_tables(args.gradients, args.tensors);
  RUDA_TRY(made.upload("gradient.unscale", error));
  const int64_t total = made.chunks();
  const scratch<int32_t> flags(total > 0 ? total : 1);
  int64_t before = 0;
  for (const group& each : made.groups()) {
    RUDA_TRY(unscale_kernel.launch(programs(each.chunks), {}, error, made.table_of(each),
                                   integer(each.tensors), real(args.scale),
                                   pointer(flags.get() + before, RUDA_INT32),
                                   text(dtype_name(each.kind[0])), boolean(args.scale != 1.0),
                                   boolean(each.aligned), integer(gradient_chunk), integer(block)));
    before += each.chunks;
  }
  const device_result<int32_t> finite(args.finite);
  RUDA_TRY(all_flags.launch(programs(1), {}, error, pointer(flags.get(), RUDA_INT32),
                            integer(total), pointer(finite.get(), RUDA_INT32), integer(block)));
  return finite.deliver(error);
}

int32_t gradient_norm_cuda(const gradient_norm_args& args, ruda_error* error) {
  tables made = gradient_tables(args.gradients, args.tensors);
  RUDA_TRY(made.upload("gradient.norm", error));
  const int64_t total = made.chunks();
  const scratch<double> sums(total > 0 ? total : 1);
  int64_t before = 0;
  for (const group& each : made.groups()) {
    RUDA_TRY(square_sums.launch(programs(each.chunks), {}, error, made.table_of(each),
                                integer(each.tensors), real(args.scale),
                                pointer(sums.get() + before, RUDA_FLOAT64),
                                text(dtype_name(each.kind[0])), boolean(each.aligned),
                                integer(gradient_chunk), integer(block)));
    before += each.chunks;
  }
  const device_result<double> norm(args.norm);
  const device_result<int32_t> finite(args.finite);
  RUDA_TRY(norm_of_sums.launch(programs(1), {}, error, pointer(sums.get(), RUDA_FLOAT64),
                               integer(total), pointer(norm.get(), RUDA_FLOAT64),
                               pointer(finite.get(), RUDA_INT32), integer(block)));
  RUDA_TRY(norm.deliver(error));
  return finite.deliver(error);
}

}  // namespace ruda
