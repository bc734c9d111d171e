/* The attention kernels on the cuda target; the choices are those of launch.py. */
#include "device.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "device_entries.hpp"

namespace ruda {
namespace {

device_kernel forward_kernel{"attention.forward"};
device_kernel merge_kernel{"attention.merge"};
device_kernel grad_dot_out{"attention.grad_dot_out"};
device_kernel backward_keys{"attention.backward_keys"};
device_kernel backward_queries{"attention.backward_queries"};

constexpr int64_t no_end = int64_t{1} << 29;  // a window without an end
constexpr int64_t largest_width = 256;
constexpr int64_t delta_rows = 16;

struct tile {
  int64_t rows, keys;
  int32_t warps, stages;
};

/* `rows` are those of a sequence and group. */
tile forward_tile(int64_t widest, bool half, int64_t rows) {
  if (!half) {
    const int64_t side = widest <= 128 ? 32 : 16;
    return {rows <= 16 ? 16 : side, side, 4, 1};
  }
  if (widest <= 128) return {rows <= 16 ? 16 : 64, 64, 4, 2};
  return {rows <= 16 ? 16 : 64, 32, 4, 1};
}

tile backward_tile(int64_t widest, bool half) {
  if (!half) return widest <= 64 ? tile{32, 32, 4, 1} : tile{16, 16, 4, 1};
  if (widest <= 64) return {64, 64, 4, 1};
  return widest <= 128 ? tile{32, 32, 4, 1} : tile{16, 16, 4, 1};
}

/* Splits of the keys where a few rows leave a GPU idle: each at least 256 keys. */
int64_t choose_splits(int64_t pairs, int64_t blocks, int64_t keys) {
  if (blocks > 1) return 1;
  return std::max<int64_t>(1, std::min({ceil_div(128, pairs), keys / 256, int64_t{32}}));
}

int64_t padded_width(int64_t width) {
  int64_t power = 16;
  while (power < width) power *= 2;
  return power;
}

/* A launch's arguments, in the order of the kernel's parameters. */
class argument_list {
 public:
  template <class... Arguments>
  void add(const Arguments&... arguments) {
    ((list_[static_cast<size_t>(count_++)] = argument(arguments)), ...);
  }
  int32_t launch(device_kernel& kernel, const grid& programs, const ruda_launch_options& options,
                 ruda_error* error) const {
    return kernel.launch_list(programs, options, error, list_.data(), count_);
  }

 private:
  std::array<ruda_argument, 64> list_{};
  int32_t count_ = 0;
};

/* Sizes of dense [B, T, H, D] or packed [total, H, D] tensors. */
struct problem {
  const ruda_view *q, *k, *v, *mask, *cu_q, *cu_k, *lse;
  double scale;
  int64_t left, right;
  bool bottom_right;
  int64_t width, value_width, widest, heads, groups, sequences, queries, keys;
  int64_t all_rows;       // queries times heads
  int64_t merged_length;  // queries of a batch; of all sequences where they are packed
  int64_t pairs, rows;
  bool half;

  template <class Args>
  problem(const Args& args, const attention_lengths& longest)
      : q(args.q), k(args.k), v(args.v), mask(args.mask), cu_q(args.cu_seqlens_q),
        cu_k(args.cu_seqlens_k), lse(args.lse), scale(args.scale),
        left(args.window_left < 0 ? no_end : std::min(args.window_left, no_end)),
        right(args.window_right < 0 ? no_end : std::min(args.window_right, no_end)),
        bottom_right(args.bottom_right != 0), width(last_size(*q)), value_width(last_size(*v)),
        widest(std::max(width, value_width)), heads(q->sizes[q->ndim - 2]),
        groups(k->sizes[k->ndim - 2]), queries(longest.queries), keys(longest.keys),
        half(q->dtype != RUDA_FLOAT32) {
    const int64_t* sizes = q->sizes;
    if (cu_q == nullptr) {
      sequences = sizes[0];
      all_rows = sizes[0] * sizes[1] * heads;
      merged_length = queries;
    } else {
      sequences = cu_q->sizes[0] - 1;
      all_rows = sizes[0] * heads;
      merged_length = std::max<int64_t>(sizes[0], 1);
    }
    pairs = sequences * groups;
    rows = queries * (heads / groups);
  }

  int32_t check(const char* operation, ruda_error* error) const {
    RUDA_CHECK(widest <= largest_width, error, RUDA_ERROR_UNSUPPORTED,
               "[%s] q, v: got widths %lld and %lld, wanted at most %lld on the cuda target",
               operation, static_cast<long long>(width), static_cast<long long>(value_width),
               static_cast<long long>(largest_width));
    RUDA_TRY(check_device_limit(queries, operation, "queries of a sequence", error, no_end - 1));
    RUDA_TRY(check_device_limit(keys, operation, "keys of a sequence", error, no_end - 1));
    // Numbers of a block's rows are 32 bits wide; the last block may end behind the rows.
    constexpr int64_t most = std::numeric_limits<int32_t>::max() - 128;
    RUDA_TRY(check_device_limit(rows, operation, "queries times heads of a group", error, most));
    return check_device_limit(heads, operation, "heads", error);
  }

  void add_inputs(argument_list& list) const { list.add(q, k, v, mask, cu_q, cu_k); }
  void add_lengths(argument_list& list) const {
    list.add(integer(heads), integer(groups), integer(queries), integer(keys));
  }
  void add_band(argument_list& list, int64_t blocks) const {
    list.add(integer(width), integer(value_width), real(scale), integer(left), integer(right),
             integer(bottom_right ? 1 : 0), integer(blocks));
  }
  void add_lse_strides(argument_list& list) const {
    if (lse == nullptr) return list.add(integer(0), integer(0), integer(0));
    const int64_t* strides = lse->strides + (lse->ndim - 2);
    list.add(integer(lse->ndim == 2 ? 0 : lse->strides[0]), integer(strides[1]),
             integer(strides[0]));
  }
  void add_tile(argument_list& list, const tile& chosen) const {
    if (mask == nullptr) {
      list.add(integer(0), integer(0), integer(0), integer(1), integer(0));
    } else {
      for (int32_t i = 0; i < 3; ++i)
        list.add(integer(mask->sizes[i] == 1 ? 0 : mask->strides[i]));
      list.add(integer(mask->sizes[3] == 1 ? 1 : mask->strides[3]),
               integer(mask->dtype == RUDA_BOOL ? 1 : 2));
    }
    list.add(integer(chosen.rows), integer(chosen.keys), integer(padded_width(width)),
             integer(padded_width(value_width)));
  }
};

/* Along batch, row and head; a packed tensor has no batch, an absent one no strides. */
void add_strides(argument_list& list, std::initializer_list<const ruda_view*> views) {
  for (const ruda_view* view : views) {
    if (view == nullptr) {
      list.add(integer(0), integer(0), integer(0));
      continue;
    }
    const int64_t* strides = view->strides + (view->ndim - 3);
    list.add(integer(view->ndim == 3 ? 0 : view->strides[0]), integer(strides[0]),
             integer(strides[1]));
  }
}

int32_t programs_of(int64_t blocks, int64_t pairs, const char* operation, grid* made,
                    ruda_error* error) {
  RUDA_TRY(check_device_limit(blocks * pairs, operation, "blocks of all sequences and groups",
                              error));
  *made = programs(blocks * pairs);
  return RUDA_OK;
}

/* One query of one head from its splits. */
int32_t merge(const problem& p, const ruda_view* out, const ruda_argument& partial,
              const ruda_argument& stats, int64_t splits, ruda_error* error) {
  argument_list list;
  list.add(partial, stats, out, p.lse, integer(p.heads), integer(p.merged_length),
           integer(p.all_rows), integer(p.value_width), integer(splits));
  add_strides(list, {out});
  p.add_lse_strides(list);
  list.add(integer(padded_width(p.value_width)));
  return list.launch(merge_kernel, programs(p.all_rows), {1, 0}, error);
}

/* delta = the scalar product of a row's gradient and its result. */
int32_t multiply_rows(const problem& p, const attention_backward_args& args,
                      const ruda_argument& delta, ruda_error* error) {
  const int64_t blocks = ceil_div(p.all_rows, delta_rows);
  RUDA_TRY(check_device_limit(blocks, "attention_backward", "blocks of 16 rows", error));
  argument_list list;
  list.add(args.grad, args.out, delta, integer(p.heads), integer(p.merged_length),
           integer(p.all_rows), integer(p.value_width));
  add_strides(list, {args.grad, args.out});
  list.add(integer(delta_rows), integer(padded_width(p.value_width)));
  return list.launch(grad_dot_out, programs(blocks), {}, error);
}

}  // namespace

int32_t attention_forward_cuda(const attention_forward_args& args, const attention_lengths& longest,
                               ruda_error* error) {
  const char* operation = "attention";
  const problem p(args, longest);
  RUDA_TRY(p.check(operation, error));
  if (p.all_rows == 0) return RUDA_OK;
  const tile chosen = forward_tile(p.widest, p.half, p.rows);
  const int64_t blocks = ceil_div(p.rows, chosen.rows);
  const int64_t splits = choose_splits(p.pairs, blocks, p.keys);
  grid all;
  RUDA_TRY(programs_of(blocks, p.pairs, operation, &all, error));
  all.y = static_cast<uint32_t>(splits);
  scratch<float> partial_memory, stats_memory;
  ruda_argument partial = nothing(), stats = nothing();
  if (splits > 1) {
    partial_memory = scratch<float>(splits * p.all_rows * p.value_width);
    stats_memory = scratch<float>(splits * p.all_rows * 2);
    partial = pointer(partial_memory.get(), RUDA_FLOAT32);
    stats = pointer(stats_memory.get(), RUDA_FLOAT32);
  }
  argument_list list;
  p.add_inputs(list);
  list.add(args.out, args.lse, partial, stats);
  p.add_lengths(list);
  list.add(integer(p.all_rows));
  p.add_band(list, blocks);
  add_strides(list, {p.q, p.k, p.v, args.out});
  p.add_lse_strides(list);
  p.add_tile(list, chosen);
  RUDA_TRY(list.launch(forward_kernel, all, {chosen.warps, chosen.stages}, error));
  return splits > 1 ? merge(p, args.out, partial, stats, splits, error) : RUDA_OK;
}

int32_t attention_backward_cuda(const attention_backward_args& args,
                                const attention_lengths& longest, ruda_error* error) {
  const char* operation = "attention_backward";
  const problem p(args, longest);
  RUDA_TRY(p.check(operation, error));
  const tile chosen = backward_tile(p.widest, p.half);
  const ruda_launch_options options{chosen.warps, chosen.stages};
  const bool scores = args.dq != nullptr || args.dk != nullptr;
  const bool keys = p.keys * p.pairs > 0 && (args.dk != nullptr || args.dv != nullptr);
  const bool queries = p.all_rows > 0 && args.dq != nullptr;
  const int64_t key_blocks = ceil_div(p.keys, chosen.keys);
  const int64_t row_blocks = ceil_div(p.rows, chosen.rows);
  grid key_programs, row_programs;
  RUDA_TRY(programs_of(key_blocks, p.pairs, operation, &key_programs, error));
  RUDA_TRY(programs_of(row_blocks, p.pairs, operation, &row_programs, error));
  const scratch<float> memory(std::max<int64_t>(p.all_rows, 1));
  const ruda_argument delta = pointer(memory.get(), RUDA_FLOAT32);
  if (p.all_rows > 0 && scores) RUDA_TRY(multiply_rows(p, args, delta, error));
  if (keys) {
    argument_list list;
    p.add_inputs(list);
    list.add(args.lse, args.grad, delta, args.dk, args.dv);
    p.add_lengths(list);
    p.add_band(list, key_blocks);
    add_strides(list, {p.q, p.k, p.v});
    p.add_lse_strides(list);
    add_strides(list, {args.grad, args.dk, args.dv});
    p.add_tile(list, chosen);
    RUDA_TRY(list.launch(backward_keys, key_programs, options, error));
  }
  if (queries) {
    argument_list list;
    p.add_inputs(list);
    list.add(args.lse, args.grad, delta, args.dq);
    p.add_lengths(list);
    p.add_band(list, row_blocks);
    add_strides(list, {p.q, p.k, p.v});
    p.add_lse_strides(list);
    add_strides(list, {args.grad, args.dq});
    p.add_tile(list, chosen);
    RUDA_TRY(list.launch(backward_queries, row_programs, options, error));
  }
  return RUDA_OK;
}

}  // namespace ruda
