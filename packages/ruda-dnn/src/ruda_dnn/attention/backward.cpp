/* Attention backward: blocks of 96 queries against panels of 16 keys, in lanes. Weights are computed
 * again from the log-sum-exp. */
#include <vector>

#include "block.hpp"

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t block_rows = attention_query_block;
constexpr int64_t group_panels = 6;  // key panels whose score gradients meet in one product for dq

/* A worker's memory for one chunk of keys. */
struct backward_scratch {
  float *key_columns, *value_columns;  // [panel][feature][16]
  float *key_features;                 // row panels over the features of the keys
  float *dkeys, *dvalues;              // [panel][feature][16]
  float *query_rows, *grad_rows;       // row panels of scale * q and of grad
  float *query_features, *grad_features;
  float *lse, *delta;                  // [query]
  float *weights, *dscores;            // [query][16]
  float *turned;                       // [query panel][key of the group][16]: dscores, transposed
  float *dqueries;                     // [query panel][feature][16]
  int64_t length;

  backward_scratch(const attention_problem& problem, int64_t keys, float* base) {
    carver part{base};
    const int64_t panels = (keys + 15) / 16, width = problem.width, values = problem.value_width;
    const int64_t row_panels = block_rows / tile_rows, query_panels = block_rows / 16;
    key_columns = part.take(panels * 16 * width);
    value_columns = part.take(panels * 16 * values);
    key_features = part.take(panels_of(width) * feature_stride(keys));
    dkeys = part.take(panels * columns_size(width));
    dvalues = part.take(panels * columns_size(values));
    query_rows = part.take(row_panels * tile_rows * width + slack);
    grad_rows = part.take(row_panels * tile_rows * values + slack);
    query_features = part.take(panels_of(width) * feature_stride(block_rows));
    grad_features = part.take(panels_of(values) * feature_stride(block_rows));
    lse = part.take(block_rows);
    delta = part.take(block_rows);
    weights = part.take(block_rows * 16);
    dscores = part.take(block_rows * 16);
    turned = part.take(query_panels * group_panels * 16 * 16);
    dqueries = part.take(query_panels * columns_size(width));
    length = part.used;
  }
};

/* Rows of a block of queries that see any key of a panel. */
struct panel_rows {
  int64_t begin, end;
  bool masked;  // whether the mask hides or changes anything there

  bool empty() const { return begin >= end; }
};

template <class T>
class backward_pass {
 public:
  backward_pass(const attention_problem& problem, const attention_sequence& sequence,
                const attention_item& item, float* scratch)
      : problem_(problem),
        sequence_(sequence),
        item_(item),
        band_(problem, sequence),
        work_(problem, item.end - item.begin, scratch) {}

  void run() {
    pack_keys();
    const int64_t heads = problem_.heads_per_group();
    const int64_t begin = band_.first_query(item_.begin), end = band_.end_query(item_.end);
    const int64_t first = item_.group * heads;
    for (int64_t query = begin; query < end; query += block_rows) {
      const int64_t rows = std::min(block_rows, end - query);
      for (int64_t head = first; head < first + heads; ++head) {
        if (head == first || problem_.mask.head != 0) survey(head, query, rows);
        block(head, query, rows);
      }
    }
    if (problem_.partial == nullptr && problem_.dq.data != nullptr) {
      for (int64_t head = first; head < first + heads; ++head) {
        clear_queries(head, 0, std::min(begin, sequence_.q_length));
        clear_queries(head, std::max(begin, end), sequence_.q_length);
      }
    }
    write_keys();
  }

 private:
  int64_t key_count() const { return item_.end - item_.begin; }
  int64_t key_panels() const { return (key_count() + 15) / 16; }
  bool wants_scores() const { return problem_.dq.data != nullptr || problem_.dk.data != nullptr; }

  void pack_keys() {
    const T* k = rows_of<T>(problem_.k, sequence_.batch, sequence_.k_start + item_.begin,
                            item_.group);
    const T* v = rows_of<T>(problem_.v, sequence_.batch, sequence_.k_start + item_.begin,
                            item_.group);
    for (int64_t panel = 0; panel < key_panels(); ++panel) {
      const int64_t rows = std::min<int64_t>(16, key_count() - panel * 16);
      pack_columns(k + panel * 16 * problem_.k.row, problem_.k.row, rows, problem_.width, 1.0f,
                   work_.key_columns + panel * 16 * problem_.width);
      pack_columns(v + panel * 16 * problem_.v.row, problem_.v.row, rows, problem_.value_width, 1.0f,
                   work_.value_columns + panel * 16 * problem_.value_width);
    }
    finite_keys_ = pack_features(k, problem_.k.row, key_count(), problem_.width, key_count(),
                                 work_.key_features);
    std::fill_n(work_.dkeys, key_panels() * columns_size(problem_.width), 0.0f);
    std::fill_n(work_.dvalues, key_panels() * columns_size(problem_.value_width), 0.0f);
  }

  void write_keys() const {
    float scale[16], one[16];
    std::fill_n(scale, 16, static_cast<float>(problem_.scale));
    std::fill_n(one, 16, 1.0f);
    for (int64_t panel = 0; panel < key_panels(); ++panel) {
      const int64_t key = sequence_.k_start + item_.begin + panel * 16;
      const int64_t rows = std::min<int64_t>(16, key_count() - panel * 16);
      if (problem_.dk.data != nullptr) {
        store_columns(work_.dkeys + panel * columns_size(problem_.width), problem_.width, scale,
                      rows_of<T>(problem_.dk, sequence_.batch, key, item_.group), problem_.dk.row,
                      rows);
      }
      if (problem_.dv.data != nullptr) {
        store_columns(work_.dvalues + panel * columns_size(problem_.value_width),
                      problem_.value_width, one,
                      rows_of<T>(problem_.dv, sequence_.batch, key, item_.group), problem_.dv.row,
                      rows);
      }
    }
  }

  /* dq of queries that see no key. */
  void clear_queries(int64_t head, int64_t begin, int64_t end) const {
    for (int64_t query = begin; query < end; ++query) {
      T* dq = rows_of<T>(problem_.dq, sequence_.batch, sequence_.q_start + query, head);
      std::fill_n(dq, problem_.width, from_float<T>(0.0f));
    }
  }

  /* Queries query..query + rows of one head against all keys of the chunk. */
  void block(int64_t head, int64_t query, int64_t rows) {
    bool packed = false, fresh = true;
    for (int64_t panel = 0; panel < key_panels(); panel += group_panels) {
      const int64_t end = std::min(panel + group_panels, key_panels());
      bool seen = false;
      for (int64_t i = panel; i < end; ++i) seen |= !panels_[i].empty();
      if (!seen) continue;
      if (!packed) pack_queries(head, query, rows);
      packed = true;
      for (int64_t i = panel; i < end; ++i) {
        key_panel(head, query, rows, i, work_.turned + (i - panel) * 16 * 16);
      }
      if (problem_.dq.data != nullptr) {
        add_queries(query, rows, panel, end, fresh);
        fresh = false;
      }
    }
    if (problem_.dq.data != nullptr) write_queries(head, query, rows, fresh);
  }

  void pack_queries(int64_t head, int64_t query, int64_t rows) {
    const int64_t row = sequence_.q_start + query;
    const T* q = rows_of<T>(problem_.q, sequence_.batch, row, head);
    const T* grad = rows_of<T>(problem_.grad, sequence_.batch, row, head);
    const T* out = rows_of<T>(problem_.out, sequence_.batch, row, head);
    const int64_t width = problem_.width, values = problem_.value_width;
    for (int64_t i = 0; i < rows; i += tile_rows) {
      pack_rows(q + i * problem_.q.row, problem_.q.row, rows - i, width,
                static_cast<float>(problem_.scale), work_.query_rows + i * width);
    }
    for (int64_t i = 0; i < rows; i += tile_rows) {
      pack_rows(grad + i * problem_.grad.row, problem_.grad.row, rows - i, values, 1.0f,
                work_.grad_rows + i * values);
    }
    if (problem_.dk.data != nullptr) {
      finite_queries_ = pack_features(q, problem_.q.row, rows, width, block_rows,
                                      work_.query_features);
    }
    if (problem_.dv.data != nullptr) {
      finite_grads_ = pack_features(grad, problem_.grad.row, rows, values, block_rows,
                                    work_.grad_features);
    }
    for (int64_t i = 0; i < rows; ++i) {
      work_.lse[i] = *rows_of<float>(problem_.lse, sequence_.batch, row + i, head);
      work_.delta[i] =
          dot(grad + i * problem_.grad.row, out + i * problem_.out.row, problem_.value_width);
    }
  }

  static float dot(const T* left, const T* right, int64_t width) {
    vec sum = {};
    int64_t d = 0;
    for (; d + lanes <= width; d += lanes) sum += load(left + d) * load(right + d);
    if (d < width) sum += load_tail(left + d, width - d) * load_tail(right + d, width - d);
    return sum_lanes(sum);
  }

  /* Fills panels_ for a block of queries. */
  void survey(int64_t head, int64_t query, int64_t rows) {
    panels_.resize(key_panels());
    for (int64_t panel = 0; panel < key_panels(); ++panel) {
      const int64_t key = item_.begin + panel * 16, keys = std::min<int64_t>(16, item_.end - key);
      panel_rows& range = panels_[panel];
      range = {std::max<int64_t>(0, band_.first_query(key) - query),
               std::min(rows, band_.end_query(key + keys) - query), false};
      if (problem_.mask.data != nullptr && !range.empty()) narrow(head, query, key, keys, range);
    }
  }

  /* Leaves out the rows at both ends to which the mask shows none of a panel's keys. */
  void narrow(int64_t head, int64_t query, int64_t key, int64_t keys, panel_rows& range) const {
    const attention_mask& mask = problem_.mask;
    with_mask(mask, [&](const auto* values) {
      const auto* first = values + sequence_.batch * mask.batch + head * mask.head +
                          query * mask.query + key * mask.key;
      if constexpr (sizeof(*first) == 1) {
        if (mask.key == 1 && keys == 16) return narrow_bytes(first, mask.query, range);
      }
      range.masked = true;
      const auto blind = [&](int64_t row) {
        for (int64_t i = 0; i < keys; ++i) {
          const auto value = first[row * mask.query + i * mask.key];
          if constexpr (sizeof(value) == 1) {
            if (value != 0) return false;
          } else if (to_float(value) != minus_infinity) {
            return false;
          }
        }
        return true;
      };
      while (!range.empty() && blind(range.begin)) ++range.begin;
      while (!range.empty() && blind(range.end - 1)) --range.end;
    });
  }

  static void narrow_bytes(const uint8_t* first, int64_t stride, panel_rows& range) {
    uint64_t words[2], differs = 0;
    int64_t begin = range.end, end = range.begin;
    for (int64_t row = range.begin; row < range.end; ++row) {
      std::memcpy(words, first + row * stride, sizeof(words));
      if ((words[0] | words[1]) == 0) continue;
      if (begin > row) begin = row;
      // A blind row between two that see keeps the panel masked.
      if (end != range.begin && end != row) differs = 1;
      end = row + 1;
      differs |= (words[0] ^ 0x0101010101010101u) | (words[1] ^ 0x0101010101010101u);
    }
    range = {begin, end, differs != 0};
  }

  /* One panel of 16 keys: weights, gradients of the scores, dk and dv. `turned` gets the transposed
   * gradients of the scores for dq. */
  void key_panel(int64_t head, int64_t query, int64_t rows, int64_t panel, float* turned) {
    const int64_t key = item_.begin + panel * 16, keys = std::min<int64_t>(16, item_.end - key);
    const auto [begin, end, is_masked] = panels_[panel];
    if (begin >= end) return turn(rows, 0, 0, turned);
    const int64_t width = problem_.width, values = problem_.value_width;
    for (int64_t i = begin / tile_rows * tile_rows; i < end; i += tile_rows) {
      tile_product(width, work_.query_rows + i * width, work_.key_columns + panel * 16 * width,
                   work_.weights + i * 16, 16, false);
    }
    if (wants_scores()) {
      for (int64_t i = begin / tile_rows * tile_rows; i < end; i += tile_rows) {
        tile_product(values, work_.grad_rows + i * values, work_.value_columns + panel * 16 * values,
                     work_.dscores + i * 16, 16, false);
      }
    }
    if (is_masked) mask_scores(head, query, key, keys, begin, end);
    hide(query, key, keys, begin, end);
    soften(begin, end);
    if (problem_.dv.data != nullptr) {
      weighted_sum(finite_grads_, end - begin, work_.grad_features + begin * tile_rows,
                   feature_stride(block_rows), panels_of(values), work_.weights + begin * 16,
                   work_.dvalues + panel * columns_size(values), true);
    }
    if (problem_.dk.data != nullptr) {
      weighted_sum(finite_queries_, end - begin, work_.query_features + begin * tile_rows,
                   feature_stride(block_rows), panels_of(width), work_.dscores + begin * 16,
                   work_.dkeys + panel * columns_size(width), true);
    }
    if (problem_.dq.data != nullptr) turn(rows, begin, end, turned);
  }

  void mask_scores(int64_t head, int64_t query, int64_t key, int64_t keys, int64_t begin,
                   int64_t end) const {
    const attention_mask& mask = problem_.mask;
    with_mask(mask, [&](const auto* all) {
      const auto* first = all + sequence_.batch * mask.batch + head * mask.head +
                          query * mask.query + key * mask.key;
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t from = 0; from < keys; from += lanes) {
          const vec addend = mask_row(first + row * mask.query + from * mask.key, mask.key,
                                      std::min(lanes, keys - from));
          float* score = work_.weights + row * 16 + from;
          store(score, masked(load(score), addend));
        }
      }
    });
  }

  /* -infinity for the scores of keys outside of a query's window. */
  void hide(int64_t query, int64_t key, int64_t keys, int64_t begin, int64_t end) const {
    const vec numbers[2] = {lane_numbers(0), lane_numbers(lanes)};
    for (int64_t row = begin; row < end; ++row) {
      const int64_t low = band_.first_key(query + row) - key;
      const int64_t high = band_.end_key(query + row) - key;
      if (low <= 0 && high >= keys) continue;
      for (int64_t half = 0; half < 2; ++half) {
        const vec_bits seen = mask_bits(numbers[half] >= lane_bound(low)) &
                              mask_bits(numbers[half] < lane_bound(high));
        float* score = work_.weights + row * 16 + half * lanes;
        store(score, select(seen, load(score), splat(minus_infinity)));
      }
    }
  }

  /* Scores to weights, and the weights' gradients to the scores': w * (dw - delta). */
  void soften(int64_t begin, int64_t end) const {
    const bool scores = wants_scores();
    for (int64_t row = begin; row < end; ++row) {
      const vec lse = splat(work_.lse[row]), delta = splat(work_.delta[row]);
      for (int64_t half = 0; half < 2; ++half) {
        float* weight = work_.weights + row * 16 + half * lanes;
        const vec value = weight_of(load(weight), lse);
        store(weight, value);
        if (!scores) continue;
        float* dscore = work_.dscores + row * 16 + half * lanes;
        const vec_bits seen = mask_bits(value != 0.0f);
        store(dscore, as_float(seen & as_bits(value * (load(dscore) - delta))));
      }
    }
  }

  /* [query][16 keys] to [query panel][key][16 queries]; rows outside begin..end count as 0. */
  void turn(int64_t rows, int64_t begin, int64_t end, float* turned) const {
    if (problem_.dq.data == nullptr) return;
    for (int64_t query = 0; query < rows; query += lanes) {
      float* target = turned + query / 16 * (group_panels * 16 * 16) + query % 16;
      for (int64_t half = 0; half < 2; ++half) {
        vec block[8] = {};
        for (int64_t i = 0; i < lanes; ++i) {
          const int64_t row = query + i;
          if (row >= begin && row < end) block[i] = load(work_.dscores + row * 16 + half * lanes);
        }
        transpose(block);
        for (int64_t i = 0; i < lanes; ++i) store(target + (half * lanes + i) * 16, block[i]);
      }
    }
  }

  /* dq of the block += the score gradients of key panels first..last times their keys. */
  void add_queries(int64_t query, int64_t rows, int64_t first, int64_t last, bool fresh) const {
    for (int64_t i = 0; i * 16 < rows; ++i) {
      const int64_t newest = std::min(query + i * 16 + 15, query + rows - 1);
      const int64_t origin = item_.begin + first * 16;
      const int64_t keys = std::min(item_.end, item_.begin + last * 16) - origin;
      const int64_t begin = std::clamp<int64_t>(band_.first_key(query + i * 16) - origin, 0, keys);
      const int64_t end = std::clamp<int64_t>(band_.end_key(newest) - origin, begin, keys);
      if (begin == end && !fresh) continue;
      weighted_sum(finite_keys_, end - begin,
                   work_.key_features + (first * 16 + begin) * tile_rows,
                   feature_stride(key_count()), panels_of(problem_.width),
                   work_.turned + (i * group_panels * 16 + begin) * 16,
                   work_.dqueries + i * columns_size(problem_.width), !fresh);
    }
  }

  void write_queries(int64_t head, int64_t query, int64_t rows, bool nothing) const {
    const int64_t width = problem_.width;
    float factor[16];
    std::fill_n(factor, 16, static_cast<float>(problem_.scale));
    if (nothing) {
      std::fill_n(work_.dqueries, block_rows / 16 * columns_size(width), 0.0f);
    }
    for (int64_t i = 0; i < rows; i += 16) {
      const float* from = work_.dqueries + i / 16 * columns_size(width);
      const int64_t count = std::min<int64_t>(16, rows - i);
      if (problem_.partial != nullptr) {
        const int64_t row = item_.part * problem_.queries + sequence_.first_query + query + i;
        store_columns(from, width, factor,
                      problem_.partial + (row * problem_.heads + head) * width,
                      problem_.heads * width, count);
      } else {
        T* dq = rows_of<T>(problem_.dq, sequence_.batch, sequence_.q_start + query + i, head);
        store_columns(from, width, factor, dq, problem_.dq.row, count);
      }
    }
  }

  const attention_problem& problem_;
  const attention_sequence& sequence_;
  const attention_item& item_;
  const attention_band band_;
  const backward_scratch work_;
  std::vector<panel_rows> panels_;
  bool finite_keys_ = true, finite_queries_ = true, finite_grads_ = true;
};

template <class T>
void sum_chunks(const attention_problem& problem, const attention_sequence& sequence,
                int64_t query) {
  const attention_band band(problem, sequence);
  const int64_t width = problem.width;
  const int64_t distance = problem.queries * problem.heads * width;
  const int64_t begin = band.first_key(query), end = band.end_key(query);
  // Only these chunks have written the row.
  const int64_t first = begin / sequence.chunk;
  const int64_t last = begin < end ? (end + sequence.chunk - 1) / sequence.chunk : first;
  for (int64_t head = 0; head < problem.heads; ++head) {
    const float* from =
        problem.partial + ((sequence.first_query + query) * problem.heads + head) * width;
    T* dq = rows_of<T>(problem.dq, sequence.batch, sequence.q_start + query, head);
    for (int64_t d = 0; d < width; d += lanes) {
      const int64_t rest = std::min(lanes, width - d);
      vec sum = {};
      for (int64_t part = first; part < last; ++part) {
        const float* row = from + part * distance + d;
        sum += rest < lanes ? load_tail(row, rest) : load(row);
      }
      if (rest < lanes) {
        store_tail(dq + d, sum, rest);
      } else {
        store(dq + d, sum);
      }
    }
  }
}

}  // namespace

int64_t attention_backward_scratch(const attention_problem& problem, int64_t keys) {
  return backward_scratch(problem, keys, nullptr).length;
}

void attention_backward_item(const attention_problem& problem, const attention_sequence& sequence,
                             const attention_item& item, float* scratch) {
  with_storage(problem.dtype, [&](auto type) {
    backward_pass<decltype(type)>(problem, sequence, item, scratch).run();
  });
}

void attention_backward_sum(const attention_problem& problem, const attention_sequence& sequence,
                            int64_t query) {
  with_storage(problem.dtype, [&](auto type) {
    sum_chunks<decltype(type)>(problem, sequence, query);
  });
}

}  // namespace ruda::RUDA_VARIANT
