// Gumbel-max: noise by Philox4x32-10 of (seed, choice, position, token), as `workers/gumbel.py`
// makes it, and the token that is the highest with its noise.
//
// A token's noise is 32 bits, which name u in (0, 1): -log(-log(u)), never more than -log(1 - u). So
// a token passes the highest so far only where 1 - u is below e^(score - highest), which happens as
// often as the token is likely. That is asked of all in float32, with a margin far wider than it
// rounds; of those few for whom it is so, the noise is computed in double.
#pragma once

#include <cmath>

#include "score_rows.hpp"

namespace blockyard {

struct NoiseKey {
  uint32_t seed_low, seed_high, choice, position;
};

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

// Four words for the counter in each lane.
inline void philox(const NoiseKey& key, Integers counter, Integers (&words)[4]) {
  const Integers multiplier_0 = all_of(kMultiplier0), multiplier_1 = all_of(kMultiplier1);
  uint32_t key_0 = key.seed_low, key_1 = key.seed_high;
  words[0] = counter, words[1] = all_of(key.position);
  words[2] = all_of(key.choice), words[3] = all_of(uint32_t{0});
  for (int round = 0; round < kRounds; ++round) {
    Integers upper_0, lower_0, upper_1, lower_1;
    multiply(words[0], multiplier_0, upper_0, lower_0);
    multiply(words[2], multiplier_1, upper_1, lower_1);
    words[0] = exclusive_or(upper_1, words[1], all_of(key_0));
    words[2] = exclusive_or(upper_0, words[3], all_of(key_1));
    words[1] = lower_1, words[3] = lower_0;
    key_0 += kWeyl0, key_1 += kWeyl1;
  }
}

// The middle of the interval that the word names is never 0 or 1, and exact.
inline double gumbel(uint32_t word) { return -std::log(-std::log((word + 0.5) * 0x1p-32)); }

// No noise is higher: that of the last word is 33 * ln(2) = 22.874.
constexpr float kMostNoise = 22.88f;

// The highest token so far, and of equals the one with the lowest id.
class Best {
 public:
  double score() const { return score_; }
  int64_t token() const { return token_; }

  void see(double score, int64_t token) {
    if (!(score > score_ || (score == score_ && token < token_))) return;
    score_ = score, token_ = token;
    // e^margin is 2e-5 above 1, float32 rounds by 6e-8 of what it holds; all else is less.
    bound_ = static_cast<float>(score - 2e-5 - 2.4e-7 * std::fabs(score));
  }
  void see(const Best& other) { see(other.score_, other.token_); }

  // Tokens with these words and scores, whose ids `id_of(lane)` tells.
  template <class Id>
  void draw(Vector scores, Integers words, Id&& id_of) {
    uint32_t lanes = lanes_below(share_above(words), exp(scores - broadcast(bound_)));
    if (lanes == 0) return;
    float score[kLanes];
    uint32_t word[kLanes];
    store(score, scores);
    store_integers(word, words);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      see(static_cast<double>(score[lane]) + gumbel(word[lane]), id_of(lane));
    }
  }

  // Whether one of these scores may become the highest, whatever its noise.
  bool within_reach(Vector scores) const {
    return lanes_below(broadcast(bound_ - kMostNoise), scores) != 0;
  }

 private:
  double score_ = -std::numeric_limits<double>::infinity();
  int64_t token_ = std::numeric_limits<int64_t>::max();
  float bound_ = kNothing;
};

// One token, by its place in a row that begins with token `offset`.
inline void draw_one(const ScoreRow& row, const NoiseKey& key, int64_t offset, int64_t at,
                     Best& best) {
  Integers words[4];
  philox(key, all_of(static_cast<uint32_t>((offset + at) / 4)), words);
  uint32_t word[kLanes];
  store_integers(word, words[(offset + at) % 4]);
  best.see(static_cast<double>(row.score(at)) + gumbel(word[0]), offset + at);
}

// All tokens of a piece; `best` has one of the row already. `offset` is a multiple of 4.
inline void draw_piece(const ScoreRow& row, const NoiseKey& key, int64_t offset, int64_t piece,
                       Best& best) {
  // Of counters in this order transposing makes words in the order of tokens.
  alignas(64) uint32_t order[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) order[lane] = lane % 4 * (kLanes / 4) + lane / 4;
  const Integers in_order = load_integers(order);
  const int64_t first = piece * kPiece;
  row.for_strips(first, std::min(row.count, first + kPiece), [&](const Vector (&x)[4], int64_t i) {
    if (!best.within_reach(greatest(greatest(x[0], x[1]), greatest(x[2], x[3])))) return;
    Integers words[4];
    philox(key, add(in_order, all_of(static_cast<uint32_t>((offset + i) / 4))), words);
    transpose_fours(words);
    for (int v = 0; v < 4; ++v)
      best.draw(x[v], words[v], [&](int lane) { return offset + i + v * kLanes + lane; });
  });
}

// Some tokens of a whole row. Both arrays have whole vectors; lanes past the end score -inf.
inline void draw_some(const float* scores, const int32_t* tokens, int64_t count,
                      const NoiseKey& key, Best& best) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Integers ids = load_integers(tokens + i);
    Integers words[4];
    philox(key, quarters(ids), words);
    best.draw(load(scores + i), one_of_four(ids, words),
              [&](int lane) { return int64_t{tokens[i + lane]}; });
  }
}

}  // namespace blockyard
