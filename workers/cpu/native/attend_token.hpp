// Attention of one token: the query heads that share a KV head, over a range of positions.
//
// Keys and values are read where they are, once for all query heads. Sums of scores and of weighted
// values stay in registers; the softmax is kept as a running maximum and sum.
#pragma once

#include "keys_values.hpp"

namespace blockyard {

constexpr int kKeys = 64;  // positions whose scores are held at once
constexpr int kMostSums = kRegisters * 3 / 4;  // registers; the others hold what is added
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Scores are in units of ln(2), so that a weight is a power of 2.
constexpr float kLog2OfE = 1.44269504f;

// With every score s: s = cap * tanh(s / cap), where there is a cap.
inline void cap_scores(float* scores, int count, float cap) {
  for (int i = 0; i < count; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
}

// The running softmax of one query head: weights so far are relative to `most` and add up to `sum`.
struct Softmax {
  float most = kNever;
  float sum = 0;

  // Takes in a score that has weight and brings no value; returns the factor of earlier weights.
  float take_sink(float sink) {
    const float next = std::max(most, sink);
    const float kept = std::exp2(most - next);
    sum = sum * kept + std::exp2(sink - next);
    most = next;
    return kept;
  }
};

// Turns scores of some rows, `count` of each, a multiple of two vectors, into weights; `kept` gets the
// factors of earlier weights. Rows go side by side: each waits for its maximum and for its sum.
template <int Rows>
inline void take_rows(Softmax* softmax, float* scores, int64_t stride, int count, float* kept) {
  Vector highest[Rows];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) highest[r] = load(scores + r * stride);
  for (int i = kLanes; i < count; i += kLanes)
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
      highest[r] = greatest(highest[r], load(scores + r * stride + i));
  float shifts[Rows], sums[Rows];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    const float next = std::max(softmax[r].most, greatest_lane(highest[r]));
    kept[r] = next == softmax[r].most ? 1.0f : std::exp2(softmax[r].most - next);
    softmax[r].most = next;
    shifts[r] = next == kNever ? 0.0f : next;  // of nothing but -inf all weights are 0
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    float* row = scores + r * stride;
    const Vector shift = broadcast(shifts[r]);
    Vector total = zero(), other = zero();
    for (int i = 0; i < count; i += 2 * kLanes) {
      const Vector weight = exp2(load(row + i) - shift);
      const Vector next_weight = exp2(load(row + i + kLanes) - shift);
      store(row + i, weight);
      store(row + i + kLanes, next_weight);
      total += weight;
      other += next_weight;
    }
    sums[r] = sum(total + other);
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) softmax[r].sum = softmax[r].sum * kept[r] + sums[r];
}

// Asks for a head's numbers before they are needed.
template <class T>
inline void fetch_head(const T* from, int dim) {
  for (int d = 0; d < dim; d += 64 / static_cast<int>(sizeof(T)))
    _mm_prefetch(reinterpret_cast<const char*>(from + d), _MM_HINT_T0);
}

// Scores of `count` keys, a multiple of 4. Meanwhile their values are fetched.
template <class T, int Heads>
inline void score_keys(const float* queries, const T* const* keys, const T* const* stored,
                       int count, int dim, float* scores) {
  constexpr int kAtOnce = 4 * Heads <= kMostSums ? 4 : 2;
  for (int first = 0; first < count; first += kAtOnce) {
#pragma GCC unroll 4
    for (int k = 0; k < kAtOnce; ++k) fetch_head(stored[first + k], dim);
    Vector sums[Heads][4];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sums[h][k] = zero();
    for (int d = 0; d < dim; d += kLanes) {
#pragma GCC unroll 4
      for (int k = 0; k < kAtOnce; ++k) {
        const Vector key = load(keys[first + k] + d);
#pragma GCC unroll 4
        for (int h = 0; h < Heads; ++h)
          sums[h][k] = fma(load(queries + h * dim + d), key, sums[h][k]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h) {
      const __m128 four = sum_of_four(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
      if constexpr (kAtOnce == 4)
        _mm_storeu_ps(scores + h * kKeys + first, four);
      else
        _mm_storel_pi(reinterpret_cast<__m64*>(scores + h * kKeys + first), four);
    }
  }
}

// values[h] = kept[h] * values[h] + weights[h] * V, so many vectors of dimensions from `d` on. On the
// first dimensions the keys that come next are fetched.
template <class T, int Heads, int Vectors>
inline void add_values(const float* weights, const T* const* stored, const T* const* ahead,
                       int count, int dim, int d, const float* kept, float* values) {
  Vector sums[Heads][Vectors];
#pragma GCC unroll 4
  for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      sums[h][v] = load(values + h * dim + d + v * kLanes) * broadcast(kept[h]);
  for (int k = 0; k < count; ++k) {
    if (d == 0) fetch_head(ahead[k], dim);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const Vector value = load(stored[k] + d + v * kLanes);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h)
        sums[h][v] = fma(broadcast(weights[h * kKeys + k]), value, sums[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(values + h * dim + d + v * kLanes, sums[h][v]);
}

// Where up to 64 positions are. Keys are scored several at once: what is beyond the end repeats the
// last, and is then left out.
template <class T>
inline void locate(const HeadReader<T>& reader, int64_t first, int64_t end, int kind,
                   const T** to) {
  const auto count = static_cast<int>(std::min<int64_t>(kKeys, end - first));
  reader.locate(first, count, kind, to);
  std::fill(to + count, to + kKeys, to[count - 1]);
}

// `queries` is `[Heads][dim]`, scaled; `values` `[Heads][dim]` gets the weighted sums, relative to
// each head's softmax.
template <class T, int Heads>
void attend_token(const HeadReader<T>& reader, const float* queries, int dim, int64_t begin,
                  int64_t end, float cap, Softmax* softmax, float* values) {
  alignas(64) float scores[Heads * kKeys];
  const T *keys[kKeys], *ahead[kKeys], *stored[kKeys];
  std::fill_n(values, Heads * dim, 0.0f);
  if (begin < end) locate(reader, begin, end, 0, ahead);
  for (int64_t first = begin; first < end; first += kKeys) {
    const auto count = static_cast<int>(std::min<int64_t>(kKeys, end - first));
    std::copy_n(ahead, kKeys, keys);
    locate(reader, first, end, 1, stored);
    if (first + kKeys < end) locate(reader, first + kKeys, end, 0, ahead);
    score_keys<T, Heads>(queries, keys, stored, (count + 3) / 4 * 4, dim, scores);
    float kept[Heads];
    for (int h = 0; h < Heads; ++h) {
      float* own = scores + h * kKeys;
      if constexpr (std::is_same_v<T, int8_t>) reader.apply_scales(first, count, 0, own);
      if (cap > 0) cap_scores(own, count, cap);
      std::fill_n(own + count, kKeys - count, kNever);
    }
    take_rows<Heads>(softmax, scores, kKeys, kKeys, kept);
    if constexpr (std::is_same_v<T, int8_t>)
      for (int h = 0; h < Heads; ++h) reader.apply_scales(first, count, 1, scores + h * kKeys);
    constexpr int kVectors = 4 * Heads <= kMostSums ? 4 : 2;
    int d = 0;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes)
      add_values<T, Heads, kVectors>(scores, stored, ahead, count, dim, d, kept, values);
    for (; d < dim; d += kLanes)
      add_values<T, Heads, 1>(scores, stored, ahead, count, dim, d, kept, values);
  }
}

}  // namespace blockyard
