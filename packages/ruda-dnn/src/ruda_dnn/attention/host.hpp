/* What the attention entry asks of the host arithmetic. */
#ifndef RUDA_DNN_ATTENTION_HOST_HPP
#define RUDA_DNN_ATTENTION_HOST_HPP

#include <algorithm>
#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

constexpr int64_t attention_lanes = 16;    // queries of a forward panel, keys of a backward panel
constexpr int64_t attention_key_block = 96;   // keys that a forward step packs at a time
constexpr int64_t attention_query_block = 96; // queries that a backward step packs at a time
constexpr int64_t attention_decode_queries = 4;  // up to here, keys are read in place
constexpr int64_t attention_decode_block = 64;

/* Memory and strides in elements; the last axis is contiguous. `batch` is 0 for packed sequences. */
struct attention_tensor {
  void* data;
  int64_t batch, row, head;
};

struct attention_mask {
  const void* data;  // null: no mask
  int64_t batch, head, query, key;
  int32_t dtype;
};

struct attention_problem {
  attention_tensor q, k, v, out, grad, dq, dk, dv;  // absent gradients have null data
  attention_tensor lse;                             // row: along the queries
  attention_mask mask;
  int64_t heads, groups, width, value_width;
  int64_t left, right;  // the window around a query's position, both ends included
  double scale;
  int32_t dtype;
  bool bottom_right;
  /* Backward with several chunks of keys: float32 [chunks, queries, heads, width], added up at the
   * end. Decoding in several splits: [splits, queries, heads, value_width + 2]. Else null. */
  float* partial;
  int64_t queries;  // of all sequences together

  int64_t heads_per_group() const { return heads / groups; }
};

/* One sequence: where it starts in the tensors, and its lengths. */
struct attention_sequence {
  int64_t batch, q_start, k_start, q_length, k_length;
  int64_t first_query;  // its first query among all sequences' queries
  int64_t chunk;        // keys of one backward chunk or decoding split
};

/* Forward: queries begin..end. Backward: the chunk's keys begin..end. Decoding: the split's. */
struct attention_item {
  int64_t sequence, group, part, begin, end, cost;
};

/* Which keys a query of a sequence may see, and which queries see a key. */
struct attention_band {
  int64_t shift, left, right, q_length, k_length;

  attention_band(const attention_problem& problem, const attention_sequence& sequence)
      : shift(problem.bottom_right ? sequence.k_length - sequence.q_length : 0),
        left(problem.left),
        right(problem.right),
        q_length(sequence.q_length),
        k_length(sequence.k_length) {}

  int64_t first_key(int64_t query) const {
    return std::clamp<int64_t>(query + shift - left, 0, k_length);
  }
  int64_t end_key(int64_t query) const {
    return std::clamp<int64_t>(query + shift + right + 1, 0, k_length);
  }
  /* Queries that see any of the keys begin..end. */
  int64_t first_query(int64_t begin) const {
    return std::clamp<int64_t>(begin - shift - right, 0, q_length);
  }
  int64_t end_query(int64_t end) const {
    return std::clamp<int64_t>(end - shift + left, 0, q_length);
  }
};

/* Each worker of a loop has `..._scratch` floats of its own. */
RUDA_HOST_VARIANTS(
    int64_t attention_forward_scratch(const attention_problem& problem, int64_t queries);
    void attention_forward_item(const attention_problem& problem,
                                const attention_sequence& sequence, const attention_item& item,
                                float* scratch);
    int64_t attention_decode_scratch(const attention_problem& problem, int64_t queries);
    void attention_decode_item(const attention_problem& problem,
                               const attention_sequence& sequence, const attention_item& item,
                               float* scratch);
    /* Adds the splits of one query row up, in their order, for all heads. */
    void attention_decode_merge(const attention_problem& problem,
                                const attention_sequence& sequence, int64_t query);
    int64_t attention_backward_scratch(const attention_problem& problem, int64_t keys);
    void attention_backward_item(const attention_problem& problem,
                                 const attention_sequence& sequence, const attention_item& item,
                                 float* scratch);
    /* dq of one query row from the chunks' partial sums, in their order, for all heads. */
    void attention_backward_sum(const attention_problem& problem,
                                const attention_sequence& sequence, int64_t query);)

}  // namespace ruda

#endif
