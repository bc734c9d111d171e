/* "attention.forward" and "attention.backward": checks, the cut into items, launch. */
#include <algorithm>
#include <vector>

#include "checks.hpp"
#include "device.hpp"
#include "entries.hpp"
#include "host.hpp"

namespace ruda {
namespace {

using std::int64_t;

constexpr int64_t no_end = int64_t{1} << 40;  // a window without an end

attention_tensor tensor_of(const ruda_view* view) {
  if (view == nullptr) return {nullptr, 0, 0, 0};
  const int64_t* strides = view->strides;
  if (view->ndim == 3) return {view->data, 0, strides[0], strides[1]};
  return {view->data, strides[0], strides[1], strides[2]};
}

struct plan {
  attention_problem problem{};
  std::vector<attention_sequence> sequences;
  std::vector<attention_item> items;
  int64_t longest_q = 0, longest_k = 0;

  explicit plan(const attention_arguments& args) {
    const int32_t rank = args.rank();
    for (auto [to, from] : {std::pair{&problem.q, args.q}, {&problem.k, args.k},
                            {&problem.v, args.v}, {&problem.out, args.out},
                            {&problem.grad, args.grad}, {&problem.dq, args.dq},
                            {&problem.dk, args.dk}, {&problem.dv, args.dv}}) {
      *to = tensor_of(from);
    }
    if (args.lse != nullptr) {
      const int64_t* strides = args.lse->strides;
      problem.lse = args.packed()
                        ? attention_tensor{args.lse->data, 0, strides[1], strides[0]}
                        : attention_tensor{args.lse->data, strides[0], strides[2], strides[1]};
    }
    if (args.mask != nullptr) {
      const auto stride = [&](int32_t i) {
        return args.mask->sizes[i] == 1 ? 0 : args.mask->strides[i];
      };
      problem.mask = {args.mask->data, stride(0), stride(1), stride(2),
                      args.mask->sizes[3] == 1 ? 1 : args.mask->strides[3], args.mask->dtype};
    }
    problem.heads = args.q->sizes[rank - 2];
    problem.groups = args.k->sizes[rank - 2];
    problem.width = args.q->sizes[rank - 1];
    problem.value_width = args.v->sizes[rank - 1];
    problem.left = args.left < 0 ? no_end : std::min(args.left, no_end);
    problem.right = args.right < 0 ? no_end : std::min(args.right, no_end);
    problem.scale = args.scale;
    problem.dtype = args.q->dtype;
    problem.bottom_right = args.bottom_right;
    add_sequences(args);
  }

  void add_sequences(const attention_arguments& args) {
    const auto add = [&](int64_t batch, int64_t q, int64_t q_end, int64_t k, int64_t k_end) {
      sequences.push_back({batch, q, k, q_end - q, k_end - k, problem.queries, 0});
      problem.queries += q_end - q;
      longest_q = std::max(longest_q, q_end - q);
      longest_k = std::max(longest_k, k_end - k);
    };
    if (args.packed()) {
      const std::vector<int32_t>&q = args.q_ends, &k = args.k_ends;
      for (size_t i = 0; i + 1 < q.size(); ++i) add(0, q[i], q[i + 1], k[i], k[i + 1]);
    } else {
      for (int64_t i = 0; i < args.q->sizes[0]; ++i) {
        add(i, 0, args.q->sizes[1], 0, args.k->sizes[1]);
      }
    }
  }

  int64_t pairs() const {
    return std::max<int64_t>(1, static_cast<int64_t>(sequences.size()) * problem.groups);
  }

  void sort_items() {
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return a.cost > b.cost; });
  }

  /* Runs `run` on every item, the expensive ones first, each worker with its own scratch. */
  template <class Run>
  void run_items(int64_t scratch_length, Run run) {
    sort_items();
    const int64_t length = (scratch_length + 31) / 16 * 16;
    scratch<float> memory(length * api()->num_threads());
    parallel_for(0, static_cast<int64_t>(items.size()), 1,
                 [&](int64_t begin, int64_t end, int32_t worker) {
                   for (int64_t i = begin; i < end; ++i) {
                     run(problem, sequences[items[i].sequence], items[i],
                         memory.get() + worker * length);
                   }
                 });
  }

  /* Runs `run` on every query row. */
  template <class Run>
  void run_rows(Run run) const {
    struct range { int64_t sequence, begin, end; };
    std::vector<range> ranges;
    constexpr int64_t grain = 32;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t row = 0; row < sequences[s].q_length; row += grain) {
        ranges.push_back({static_cast<int64_t>(s), row,
                          std::min(row + grain, sequences[s].q_length)});
      }
    }
    parallel_for(0, static_cast<int64_t>(ranges.size()), 1,
                 [&](int64_t begin, int64_t end, int32_t) {
                   for (int64_t i = begin; i < end; ++i) {
                     for (int64_t row = ranges[i].begin; row < ranges[i].end; ++row) {
                       run(problem, sequences[ranges[i].sequence], row);
                     }
                   }
                 });
  }
};

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/* About 192 rows (queries times heads of a group) an item, fewer where that gives few items. */
int64_t forward_queries(const plan& work) {
  int64_t queries = std::clamp<int64_t>(192 / work.problem.heads_per_group() / 16 * 16, 32, 128);
  while (queries > 16 && work.pairs() * divide_up(work.longest_q, queries) < 8) queries /= 2;
  return queries;
}

void attend_blocks(plan& work) {
  const int64_t queries = forward_queries(work);
  for (size_t s = 0; s < work.sequences.size(); ++s) {
    const attention_sequence& sequence = work.sequences[s];
    const attention_band band(work.problem, sequence);
    for (int64_t group = 0; group < work.problem.groups; ++group) {
      for (int64_t begin = 0; begin < sequence.q_length; begin += queries) {
        const int64_t end = std::min(begin + queries, sequence.q_length);
        const int64_t keys = band.end_key(end - 1) - band.first_key(begin);
        work.items.push_back(
            {static_cast<int64_t>(s), group, 0, begin, end, (end - begin) * std::max<int64_t>(keys, 0)});
      }
    }
  }
  work.run_items(RUDA_HOST(attention_forward_scratch)(work.problem, queries),
                 RUDA_HOST(attention_forward_item));
}

/* Cuts every sequence's keys into at most `parts` chunks of at least `least` keys (a multiple of 16);
 * gives the largest number of chunks. A sequence without keys has one empty chunk. */
int64_t cut_keys(plan& work, int64_t parts, int64_t least) {
  int64_t most = 1;
  for (size_t s = 0; s < work.sequences.size(); ++s) {
    attention_sequence& sequence = work.sequences[s];
    if (sequence.q_length == 0 && sequence.k_length == 0) continue;
    sequence.chunk =
        std::max(least, divide_up(divide_up(sequence.k_length, parts), 16) * 16);
    const int64_t chunks = std::max<int64_t>(1, divide_up(sequence.k_length, sequence.chunk));
    most = std::max(most, chunks);
    const attention_band band(work.problem, sequence);
    for (int64_t group = 0; group < work.problem.groups; ++group) {
      for (int64_t part = 0; part < chunks; ++part) {
        const int64_t begin = part * sequence.chunk;
        const int64_t end = std::min(begin + sequence.chunk, sequence.k_length);
        const int64_t rows = band.end_query(end) - band.first_query(begin);
        // Causal: the last of the rows see all keys, the first few.
        const int64_t cost = std::max<int64_t>(rows, 0) * (end - begin) -
                             (work.problem.right < no_end ? (end - begin) * (end - begin) / 2 : 0);
        work.items.push_back({static_cast<int64_t>(s), group, part, begin, end, cost});
      }
    }
  }
  return most;
}

void attend_rows(plan& work) {
  const int64_t parts = cut_keys(work, std::clamp<int64_t>(16 / work.pairs(), 1, 16), 512);
  const attention_problem& problem = work.problem;
  scratch<float> partial(parts * problem.queries * problem.heads * (problem.value_width + 2));
  work.problem.partial = partial.get();
  work.run_items(RUDA_HOST(attention_decode_scratch)(work.problem, work.longest_q),
                 RUDA_HOST(attention_decode_item));
  work.run_rows(RUDA_HOST(attention_decode_merge));
}

int32_t forward(const void* raw, ruda_error* error) {
  const char* operation = "attention";
  return guard(operation, error, [&]() -> int32_t {
    const auto& given = *static_cast<const attention_forward_args*>(raw);
    attention_arguments args(given);
    RUDA_TRY(check_attention_inputs(args, operation, error));
    RUDA_TRY(check_attention_result(args.out, args, operation, "out", error));
    RUDA_TRY(read_sequence_ends(args, operation, error));
    if (on_device(*args.q)) return attention_forward_cuda(given, longest_lengths(args), error);
    plan work(args);
    if (work.problem.queries == 0 || work.problem.heads == 0) return RUDA_OK;
    if (work.longest_q <= attention_decode_queries) {
      attend_rows(work);
    } else {
      attend_blocks(work);
    }
    return RUDA_OK;
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  const char* operation = "attention_backward";
  return guard(operation, error, [&]() -> int32_t {
    const auto& given = *static_cast<const attention_backward_args*>(raw);
    attention_arguments args(given);
    RUDA_TRY(check_attention_inputs(args, operation, error));
    RUDA_TRY(check_present(args.lse, operation, "lse", error));
    RUDA_TRY(check_attention_result(args.out, args, operation, "out", error));
    RUDA_TRY(check_attention_result(args.grad, args, operation, "grad", error));
    const int32_t dtype = args.q->dtype;
    if (args.dq != nullptr) {
      RUDA_TRY(check_attention_gradient(args.dq, args.q, dtype, operation, "dq", "q", error));
    }
    if (args.dk != nullptr) {
      RUDA_TRY(check_attention_gradient(args.dk, args.k, dtype, operation, "dk", "k", error));
    }
    if (args.dv != nullptr) {
      RUDA_TRY(check_attention_gradient(args.dv, args.v, dtype, operation, "dv", "v", error));
    }
    RUDA_TRY(read_sequence_ends(args, operation, error));
    if (args.dq == nullptr && args.dk == nullptr && args.dv == nullptr) return RUDA_OK;
    if (on_device(*args.q)) return attention_backward_cuda(given, longest_lengths(args), error);
    plan work(args);
    const int64_t parts = cut_keys(work, std::clamp<int64_t>(divide_up(12, work.pairs()), 1, 8), 128);
    const attention_problem& problem = work.problem;
    const bool several = parts > 1 && args.dq != nullptr;
    scratch<float> partial(several ? parts * problem.queries * problem.heads * problem.width : 0);
    work.problem.partial = partial.get();
    int64_t keys = 0;
    for (const attention_item& item : work.items) keys = std::max(keys, item.end - item.begin);
    work.run_items(RUDA_HOST(attention_backward_scratch)(problem, keys),
                   RUDA_HOST(attention_backward_item));
    if (several) work.run_rows(RUDA_HOST(attention_backward_sum));
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_attention(ruda_error* error) {
  RUDA_TRY(register_kernel("attention.forward", "ruda-dnn", attention_forward_args_layout, forward,
                           error));
  return register_kernel("attention.backward", "ruda-dnn", attention_backward_args_layout, backward,
                         error);
}

}  // namespace ruda
