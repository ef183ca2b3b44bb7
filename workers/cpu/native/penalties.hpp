// Penalties on scores of tokens that a request has in its prompt or has produced. The twin of
// `penalise` in `workers/logit_rules.py`, bit by bit: a product is rounded before it is taken off.
#pragma once

#include "score_rows.hpp"
#include "thread_pool.hpp"

namespace blockyard {

extern "C" struct ByRowPenalties {
  const uint8_t* in_prompt;   // [vocabulary] 1 where it is
  const float* produced;      // [vocabulary] how often
  int64_t row;                // of the scores
  float repetition, frequency, presence;
};

// A compiler that sees through this would round once for two operations.
inline float rounded(float value) {
  asm("" : "+x"(value));
  return value;
}

inline void penalise_token(const ByRowPenalties& row, float* scores, int64_t i) {
  const float times = row.produced[i];
  float x = scores[i];
  if (row.in_prompt[i] || times > 0.0f)
    x = x > 0.0f ? x / row.repetition : rounded(x * row.repetition);
  if (times > 0.0f) x = x - rounded(row.frequency * times) - row.presence;
  scores[i] = x;
}

inline void penalise(ThreadPool& pool, float* scores, int64_t stride, int64_t vocabulary,
                     const ByRowPenalties* rows, int64_t count) {
  const auto pieces = static_cast<int>((vocabulary + kPiece - 1) / kPiece);
  pool.run(static_cast<int>(count) * pieces, [&](int chunk, int) {
    const ByRowPenalties& row = rows[chunk / pieces];
    float* of_row = scores + row.row * stride;
    const int64_t first = chunk % pieces * kPiece, until = std::min(vocabulary, first + kPiece);
    int64_t i = first;
    for (; i + 16 <= until; i += 16) {  // mostly none of them was seen
      uint64_t in_prompt[2];
      std::memcpy(in_prompt, row.in_prompt + i, sizeof in_prompt);
      bool seen = (in_prompt[0] | in_prompt[1]) != 0;
      for (int v = 0; v < kParts; ++v)
        seen |= lanes_below(zero(), load(row.produced + i + v * kLanes)) != 0;
      if (!seen) continue;
      for (int64_t token = i; token < i + 16; ++token) penalise_token(row, of_row, token);
    }
    for (; i < until; ++i) penalise_token(row, of_row, i);
  });
}

}  // namespace blockyard
