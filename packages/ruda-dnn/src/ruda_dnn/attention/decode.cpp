/* Attention forward for a few queries against many keys: keys and values are read where they lie,
 * once for all heads of a group. */
#include "block.hpp"

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t block_keys = attention_decode_block;

struct decode_scratch {
  float *queries;            // [row][width], scaled; a row is a query of a head
  float *sums;               // [row][value_width]
  float *peaks, *totals;     // [row]
  float *keys, *values;      // a block as float32
  float *scores;             // [block]
  int64_t length;

  decode_scratch(const attention_problem& problem, int64_t queries_count, float* base) {
    carver part{base};
    const int64_t rows = problem.heads_per_group() * queries_count;
    queries = part.take(rows * problem.width);
    sums = part.take(rows * problem.value_width);
    peaks = part.take(rows);
    totals = part.take(rows);
    keys = part.take(block_keys * problem.width);
    values = part.take(block_keys * problem.value_width);
    scores = part.take(block_keys);
    length = part.used;
  }
};

/* A block of rows as float32: in place, or converted into `copy`. */
template <class T>
struct float_rows {
  const float* data;
  int64_t stride;

  float_rows(const T* source, int64_t source_stride, int64_t rows, int64_t width, float* copy) {
    if constexpr (std::is_same_v<T, float>) {
      data = source;
      stride = source_stride;
    } else {
      for (int64_t row = 0; row < rows; ++row) {
        load_row(source + row * source_stride, copy + row * width, width);
      }
      data = copy;
      stride = width;
    }
  }
};

/* scores[i] = q . keys[i]; rows in eights, so that the sums of lanes come from one transposition. */
void dot_rows(const float* q, const float* keys, int64_t stride, int64_t count, int64_t width,
              float* scores) {
  for (int64_t key = 0; key < count; key += lanes) {
    const float* row[8];
    for (int64_t i = 0; i < lanes; ++i) row[i] = keys + std::min(key + i, count - 1) * stride;
    vec sums[8] = {};
    int64_t d = 0;
    for (; d + lanes <= width; d += lanes) {
      const vec value = load(q + d);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) sums[i] += value * load(row[i] + d);
    }
    if (d < width) {
      const vec value = load_tail(q + d, width - d);
      for (int i = 0; i < 8; ++i) sums[i] += value * load_tail(row[i] + d, width - d);
    }
    transpose(sums);
    const vec total = ((sums[0] + sums[4]) + (sums[1] + sums[5])) +
                      ((sums[2] + sums[6]) + (sums[3] + sums[7]));
    store(scores + key, total);
  }
}

/* sums = sums * factor + sum over the keys of weights[key] * values[key]; a weight of 0 hides. */
void add_values(const float* weights, const float* values, int64_t stride, int64_t count,
                int64_t width, float factor, float* sums) {
  int64_t d = 0;
  for (; d + 4 * lanes <= width; d += 4 * lanes) {
    vec part[4];
    for (int i = 0; i < 4; ++i) part[i] = load(sums + d + i * lanes) * factor;
    for (int64_t key = 0; key < count; ++key) {
      if (weights[key] == 0.0f) continue;
      const float* row = values + key * stride + d;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) part[i] += weights[key] * load(row + i * lanes);
    }
    for (int i = 0; i < 4; ++i) store(sums + d + i * lanes, part[i]);
  }
  for (; d < width; d += lanes) {
    const int64_t rest = std::min(lanes, width - d);
    const auto get = [&](const float* from) { return rest < lanes ? load_tail(from, rest) : load(from); };
    vec part = get(sums + d) * factor;
    for (int64_t key = 0; key < count; ++key) {
      if (weights[key] != 0.0f) part += weights[key] * get(values + key * stride + d);
    }
    if (rest < lanes) {
      store_tail(sums + d, part, rest);
    } else {
      store(sums + d, part);
    }
  }
}

/* Peak, weights and their sum for one row of `count` scores (the buffer has whole vectors). */
float soften(float* scores, int64_t count, float& peak, float& total) {
  vec tops = splat(minus_infinity);
  for (int64_t i = count; i < round_up(count, lanes); ++i) scores[i] = minus_infinity;
  for (int64_t i = 0; i < count; i += lanes) tops = maximum(load(scores + i), tops);
  float top = peak;
  for (int lane = 0; lane < lanes; ++lane) top = tops[lane] > top ? tops[lane] : top;
  const float base = top == minus_infinity ? 0.0f : top;
  vec sum = {};
  for (int64_t i = 0; i < count; i += lanes) {
    const vec weight = weight_of(load(scores + i), splat(base));
    sum += weight;
    store(scores + i, weight);
  }
  const float factor = weight_of(splat(peak), splat(base))[0];
  total = total * factor + sum_lanes(sum);
  peak = top;
  return factor;
}

template <class T>
void decode(const attention_problem& problem, const attention_sequence& sequence,
            const attention_item& item, float* memory) {
  const decode_scratch work(problem, sequence.q_length, memory);
  const attention_band band(problem, sequence);
  const int64_t heads = problem.heads_per_group(), rows = heads * sequence.q_length;
  const int64_t width = problem.width, value_width = problem.value_width;
  const auto head_of = [&](int64_t row) { return item.group * heads + row % heads; };
  for (int64_t row = 0; row < rows; ++row) {
    float* q = work.queries + row * width;
    load_row(rows_of<T>(problem.q, sequence.batch, sequence.q_start + row / heads, head_of(row)), q,
             width);
    for (int64_t d = 0; d < width; ++d) q[d] *= static_cast<float>(problem.scale);
    work.peaks[row] = minus_infinity;
    work.totals[row] = 0.0f;
  }
  std::fill_n(work.sums, rows * value_width, 0.0f);

  for (int64_t begin = item.begin; begin < item.end; begin += block_keys) {
    const int64_t end = std::min(begin + block_keys, item.end);
    const int64_t start = sequence.k_start + begin;
    const float_rows<T> keys(rows_of<T>(problem.k, sequence.batch, start, item.group),
                             problem.k.row, end - begin, width, work.keys);
    const float_rows<T> values(rows_of<T>(problem.v, sequence.batch, start, item.group),
                               problem.v.row, end - begin, value_width, work.values);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t query = row / heads;
      const int64_t from = std::max(begin, band.first_key(query)) - begin;
      const int64_t count = std::min(end, band.end_key(query)) - begin - from;
      if (count <= 0) continue;
      dot_rows(work.queries + row * width, keys.data + from * keys.stride, keys.stride, count,
               width, work.scores);
      if (problem.mask.data != nullptr) {
        const attention_mask& mask = problem.mask;
        with_mask(mask, [&](const auto* all) {
          const auto* first = all + sequence.batch * mask.batch + head_of(row) * mask.head +
                              query * mask.query + (begin + from) * mask.key;
          for (int64_t i = 0; i < count; i += lanes) {
            const vec addend =
                mask_row(first + i * mask.key, mask.key, std::min(lanes, count - i));
            store(work.scores + i, masked(load(work.scores + i), addend));
          }
        });
      }
      const float factor = soften(work.scores, count, work.peaks[row], work.totals[row]);
      add_values(work.scores, values.data + from * values.stride, values.stride, count, value_width,
                 factor, work.sums + row * value_width);
    }
  }

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query = sequence.first_query + row / heads;
    float* part = problem.partial + ((item.part * problem.queries + query) * problem.heads +
                                     head_of(row)) * (value_width + 2);
    part[0] = work.peaks[row];
    part[1] = work.totals[row];
    std::copy_n(work.sums + row * value_width, value_width, part + 2);
  }
}

template <class T>
void merge(const attention_problem& problem, const attention_sequence& sequence, int64_t query) {
  const int64_t parts = (sequence.k_length + sequence.chunk - 1) / sequence.chunk;
  const int64_t size = problem.value_width + 2;
  for (int64_t head = 0; head < problem.heads; ++head) {
    float* first = problem.partial +
                   ((sequence.first_query + query) * problem.heads + head) * size;
    const int64_t distance = problem.queries * problem.heads * size;
    float peak = minus_infinity;
    for (int64_t part = 0; part < parts; ++part) {
      const float other = first[part * distance];
      peak = other > peak ? other : peak;
    }
    const float base = peak == minus_infinity ? 0.0f : peak;
    float total = 0.0f;
    for (int64_t part = 0; part < parts; ++part) {
      float* from = first + part * distance;
      const float factor = weight_of(splat(from[0]), splat(base))[0];
      if (from[1] == 0.0f) continue;  // it has seen nothing
      total += from[1] * factor;
      from[1] = factor;
    }
    const bool nothing = total == 0.0f;
    T* out = rows_of<T>(problem.out, sequence.batch, sequence.q_start + query, head);
    for (int64_t d = 0; d < problem.value_width; ++d) {
      float sum = 0.0f;
      for (int64_t part = 0; part < parts; ++part) {
        const float* from = first + part * distance;
        if (from[1] != 0.0f) sum += from[2 + d] * from[1];
      }
      out[d] = from_float<T>(nothing ? 0.0f : sum / total);
    }
    if (problem.lse.data != nullptr) {
      *rows_of<float>(problem.lse, sequence.batch, sequence.q_start + query, head) =
          nothing ? minus_infinity : peak + std::log(total);
    }
  }
}

}  // namespace

int64_t attention_decode_scratch(const attention_problem& problem, int64_t queries) {
  return decode_scratch(problem, queries, nullptr).length;
}

void attention_decode_item(const attention_problem& problem, const attention_sequence& sequence,
                           const attention_item& item, float* scratch) {
  with_storage(problem.dtype, [&](auto type) {
    decode<decltype(type)>(problem, sequence, item, scratch);
  });
}

void attention_decode_merge(const attention_problem& problem, const attention_sequence& sequence,
                            int64_t query) {
  with_storage(problem.dtype, [&](auto type) {
    merge<decltype(type)>(problem, sequence, query);
  });
}

}  // namespace ruda::RUDA_VARIANT
