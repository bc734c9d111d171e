/* Attention forward: panels of 16 queries, in lanes, against blocks of 96 keys. */
#include "block.hpp"

namespace ruda::RUDA_VARIANT {
namespace {

/* A worker's memory for one item. */
struct forward_scratch {
  float *queries;  // column panels of scale * q
  float *sums;     // [panel][value feature][16]: weighted values so far
  float *peaks, *totals;  // [panel][16]
  float *keys, *values;   // the packed block
  float *scores;          // [key][16]
  float *bias;            // [key][16]
  int64_t length;

  forward_scratch(const attention_problem& problem, int64_t queries_count, float* base) {
    carver part{base};
    const int64_t panels = problem.heads_per_group() * ((queries_count + 15) / 16);
    queries = part.take(panels * problem.width * 16);
    sums = part.take(panels * columns_size(problem.value_width));
    peaks = part.take(panels * 16);
    totals = part.take(panels * 16);
    keys = part.take(attention_key_block * problem.width + slack);
    values = part.take(panels_of(problem.value_width) * feature_stride(attention_key_block));
    scores = part.take((attention_key_block + tile_rows) * 16);
    bias = part.take((attention_key_block + lanes) * 16);
    length = part.used;
  }
};

/* What the mask says about a panel and a block of keys. */
struct bias_range {
  int64_t begin, end;  // keys that any of the queries sees
  bool needed;         // false: the mask leaves begin..end as it is
};

/* Whether all bytes of the rows are `wanted` (a byte repeated in a word). */
bool all_bytes(const uint8_t* first, int64_t stride, int64_t rows, int64_t count, uint64_t wanted) {
  for (int64_t row = 0; row < (stride == 0 ? 1 : rows); ++row) {
    const uint8_t* bytes = first + row * stride;
    uint64_t differs = 0;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + i, 8);
      differs |= word ^ wanted;
    }
    for (; i < count; ++i) differs |= bytes[i] ^ (wanted & 0xff);
    if (differs != 0) return false;
  }
  return true;
}

/* bias[key][16] for keys begin..end (numbered from `base`) of the queries query..query + rows. */
template <class M>
bias_range fill_bias(const attention_mask& mask, const M* first, int64_t rows, int64_t base,
                     int64_t begin, int64_t end, float* bias) {
  const M* origin = first + begin * mask.key;
  if constexpr (std::is_same_v<M, uint8_t>) {
    if (mask.key == 1) {
      const int64_t count = end - begin;
      if (all_bytes(origin, mask.query, rows, count, 0x0101010101010101u)) {
        return {begin, end, false};
      }
      if (all_bytes(origin, mask.query, rows, count, 0)) return {end, end, false};
    }
  }
  bias_range range{end, begin, false};
  for (int64_t key = begin; key < end; key += lanes) {
    const int64_t count = std::min(lanes, end - key);
    vec_bits changes = {};
    uint32_t seen = 0;  // a bit a key
    for (int64_t half = 0; half < 2; ++half) {
      vec block[8];
      for (int64_t i = 0; i < lanes; ++i) {
        const int64_t row = std::min(half * lanes + i, rows - 1);
        block[i] = mask_row(first + row * mask.query + key * mask.key, mask.key, count);
      }
      transpose(block);
      for (int64_t i = 0; i < count; ++i) {
        if (any(mask_bits(block[i] != minus_infinity))) seen |= 1u << i;
        changes |= mask_bits(block[i] != 0.0f);
        store(bias + (key - base + i) * 16 + half * lanes, block[i]);
      }
    }
    range.needed = range.needed || any(changes);
    if (seen == 0) continue;
    range.begin = std::min(range.begin, key + __builtin_ctz(seen));
    range.end = key + 32 - __builtin_clz(seen);
  }
  if (range.begin >= range.end) return {end, end, false};
  return range;
}

/* -infinity for the lanes that do not see a key: scores[key] for keys begin..end of a panel whose
 * first query is `query`. */
void hide_outside(const attention_band& band, int64_t query, int64_t last_query, int64_t base,
                  int64_t begin, int64_t end, float* scores) {
  const int64_t full_begin = band.first_key(last_query), full_end = band.end_key(query);
  const vec numbers[2] = {lane_numbers(0), lane_numbers(lanes)};
  for (int64_t key = begin; key < end; ++key) {
    if (key >= full_begin && key < full_end) {
      key = full_end - 1;
      continue;
    }
    const int64_t distance = key - query - band.shift;
    const vec low = lane_bound(distance - band.right), high = lane_bound(distance + band.left);
    for (int64_t half = 0; half < 2; ++half) {
      float* score = scores + (key - base) * 16 + half * lanes;
      const vec_bits seen = mask_bits(numbers[half] >= low) & mask_bits(numbers[half] <= high);
      store(score, select(seen, load(score), splat(minus_infinity)));
    }
  }
}

/* Turns the scores into weights under the new peak, and scales what was summed up before. */
void update_softmax(float* scores, int64_t keys, float* peaks, float* totals, float* sums,
                    int64_t features, bool fresh) {
  for (int64_t half = 0; half < 2; ++half) {
    float* column = scores + half * lanes;
    vec tops[4] = {splat(minus_infinity), splat(minus_infinity), splat(minus_infinity),
                   splat(minus_infinity)};
    int64_t key = 0;
    for (; key + 4 <= keys; key += 4) {
      for (int i = 0; i < 4; ++i) tops[i] = maximum(load(column + (key + i) * 16), tops[i]);
    }
    for (; key < keys; ++key) tops[0] = maximum(load(column + key * 16), tops[0]);
    const vec top = maximum(maximum(tops[0], tops[1]), maximum(tops[2], tops[3]));
    const vec before = fresh ? splat(minus_infinity) : load(peaks + half * lanes);
    const vec peak = maximum(top, before);
    // A query that has seen nothing yet: any finite number does.
    const vec base = select(mask_bits(peak == minus_infinity), splat(0.0f), peak);
    vec total[2] = {};
    for (key = 0; key + 2 <= keys; key += 2) {
      for (int i = 0; i < 2; ++i) {
        float* score = column + (key + i) * 16;
        const vec weight = weight_of(load(score), base);
        total[i] += weight;
        store(score, weight);
      }
    }
    if (key < keys) {
      const vec weight = weight_of(load(column + key * 16), base);
      total[0] += weight;
      store(column + key * 16, weight);
    }
    vec sum = total[0] + total[1];
    if (!fresh) {
      const vec factor = weight_of(before, base);
      sum += load(totals + half * lanes) * factor;
      if (any(mask_bits(peak != before))) {
        for (int64_t d = 0; d < features; ++d) {
          float* value = sums + d * 16 + half * lanes;
          store(value, load(value) * factor);
        }
      }
    }
    store(peaks + half * lanes, peak);
    store(totals + half * lanes, sum);
  }
}

template <class T>
class forward_pass {
 public:
  forward_pass(const attention_problem& problem, const attention_sequence& sequence,
               const attention_item& item, float* scratch)
      : problem_(problem),
        sequence_(sequence),
        item_(item),
        band_(problem, sequence),
        work_(problem, item.end - item.begin, scratch) {}

  void run() {
    const int64_t heads = problem_.heads_per_group();
    const int64_t panels = heads * ((item_.end - item_.begin + 15) / 16);
    for (int64_t panel = 0; panel < panels; ++panel) {
      const T* q = rows_of<T>(problem_.q, sequence_.batch, sequence_.q_start + query_of(panel),
                              head_of(panel));
      pack_columns(q, problem_.q.row, rows_of_panel(panel), problem_.width,
                   static_cast<float>(problem_.scale), queries_of(panel));
      for (int64_t lane = 0; lane < 16; ++lane) work_.totals[panel * 16 + lane] = -1.0f;  // fresh
    }
    const int64_t begin = band_.first_key(item_.begin), end = band_.end_key(item_.end - 1);
    for (int64_t key = begin; key < end; key += attention_key_block) {
      block(key, std::min(key + attention_key_block, end), panels);
    }
    for (int64_t panel = 0; panel < panels; ++panel) finish(panel);
  }

 private:
  int64_t query_of(int64_t panel) const {
    return item_.begin + panel / problem_.heads_per_group() * 16;
  }
  int64_t head_of(int64_t panel) const {
    const int64_t heads = problem_.heads_per_group();
    return item_.group * heads + panel % heads;
  }
  int64_t rows_of_panel(int64_t panel) const {
    return std::min<int64_t>(16, item_.end - query_of(panel));
  }
  float* queries_of(int64_t panel) const { return work_.queries + panel * problem_.width * 16; }
  float* sums_of(int64_t panel) const {
    return work_.sums + panel * columns_size(problem_.value_width);
  }
  bool fresh(int64_t panel) const { return work_.totals[panel * 16] == -1.0f; }

  /* Packs the keys and values begin..end; gives whether all values are finite. */
  bool pack(int64_t begin, int64_t end) const {
    const T* k = rows_of<T>(problem_.k, sequence_.batch, sequence_.k_start + begin, item_.group);
    const T* v = rows_of<T>(problem_.v, sequence_.batch, sequence_.k_start + begin, item_.group);
    for (int64_t key = begin; key < end; key += tile_rows) {
      pack_rows(k + (key - begin) * problem_.k.row, problem_.k.row, end - key, problem_.width, 1.0f,
                work_.keys + (key - begin) * problem_.width);
    }
    return pack_features(v, problem_.v.row, end - begin, problem_.value_width, attention_key_block,
                         work_.values);
  }

  void block(int64_t begin, int64_t end, int64_t panels) {
    bool packed = false, finite = true;
    bias_range range{};
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t query = query_of(panel), last = query + rows_of_panel(panel) - 1;
      int64_t from = std::max(begin, band_.first_key(query));
      int64_t to = std::min(end, band_.end_key(last));
      if (from >= to) continue;
      if (problem_.mask.data != nullptr) {
        if (problem_.mask.head != 0 || panel % problem_.heads_per_group() == 0) {
          range = bias(panel, begin, from, to);
        }
        from = range.begin;
        to = range.end;
        if (from >= to) continue;
      }
      if (!packed) finite = pack(begin, end);
      packed = true;
      attend(panel, begin, from, to, range.needed, finite);
    }
  }

  bias_range bias(int64_t panel, int64_t base, int64_t begin, int64_t end) const {
    bias_range range{};
    const attention_mask& mask = problem_.mask;
    with_mask(mask, [&](const auto* values) {
      const auto* first = values + sequence_.batch * mask.batch + head_of(panel) * mask.head +
                          query_of(panel) * mask.query;
      range = fill_bias(mask, first, rows_of_panel(panel), base, begin, end, work_.bias);
    });
    return range;
  }

  /* One panel against the packed keys begin..end of the block that starts at `base`. */
  void attend(int64_t panel, int64_t base, int64_t begin, int64_t end, bool biased, bool finite) {
    const int64_t query = query_of(panel);
    const int64_t first = (begin - base) / tile_rows * tile_rows;
    for (int64_t key = first; key < end - base; key += tile_rows) {
      tile_product(problem_.width, work_.keys + key * problem_.width, queries_of(panel),
                   work_.scores + key * 16, 16, false);
    }
    if (biased) {
      for (int64_t i = (begin - base) * 16; i < (end - base) * 16; i += lanes) {
        store(work_.scores + i, masked(load(work_.scores + i), load(work_.bias + i)));
      }
    }
    hide_outside(band_, query, query + rows_of_panel(panel) - 1, base, begin, end, work_.scores);
    float* scores = work_.scores + (begin - base) * 16;
    const bool is_fresh = fresh(panel);
    update_softmax(scores, end - begin, work_.peaks + panel * 16, work_.totals + panel * 16,
                   sums_of(panel), problem_.value_width, is_fresh);
    weighted_sum(finite, end - begin, work_.values + (begin - base) * tile_rows,
                 feature_stride(attention_key_block), panels_of(problem_.value_width), scores,
                 sums_of(panel), !is_fresh);
  }

  void finish(int64_t panel) const {
    const int64_t head = head_of(panel), query = query_of(panel), rows = rows_of_panel(panel);
    float factors[16];
    for (int64_t lane = 0; lane < 16; ++lane) {
      const float total = work_.totals[panel * 16 + lane];
      const bool nothing = total == -1.0f || total == 0.0f;
      factors[lane] = nothing ? 0.0f : 1.0f / total;
      if (problem_.lse.data != nullptr && lane < rows) {
        float* lse = rows_of<float>(problem_.lse, sequence_.batch, sequence_.q_start + query + lane,
                                    head);
        *lse = nothing ? minus_infinity : work_.peaks[panel * 16 + lane] + std::log(total);
      }
    }
    T* out = rows_of<T>(problem_.out, sequence_.batch, sequence_.q_start + query, head);
    if (fresh(panel)) {
      std::fill_n(sums_of(panel), columns_size(problem_.value_width), 0.0f);
    }
    store_columns(sums_of(panel), problem_.value_width, factors, out, problem_.out.row, rows);
  }

  const attention_problem& problem_;
  const attention_sequence& sequence_;
  const attention_item& item_;
  const attention_band band_;
  const forward_scratch work_;
};

}  // namespace

int64_t attention_forward_scratch(const attention_problem& problem, int64_t queries) {
  return forward_scratch(problem, queries, nullptr).length;
}

void attention_forward_item(const attention_problem& problem, const attention_sequence& sequence,
                            const attention_item& item, float* scratch) {
  with_storage(problem.dtype, [&](auto type) {
    forward_pass<decltype(type)>(problem, sequence, item, scratch).run();
  });
}

}  // namespace ruda::RUDA_VARIANT
