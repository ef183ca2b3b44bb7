// A row of scores, read in strips of four vectors: its highest, and how much its tokens weigh.
//
// A row is cut into pieces of a fixed size, whatever the threads, and what is summed are whole
// numbers: so nothing depends on who computed what, nor on the width of vectors.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "vector.hpp"

#ifdef __AVX512F__
#include "integers_avx512.hpp"
#else
#include "integers_avx2.hpp"
#endif

namespace blockyard {

constexpr int kStrip = 4 * kLanes;          // scores of a strip
constexpr int64_t kPiece = 4096;            // scores of a piece
constexpr int kStripsOfBlocks = 16;         // strips whose lanes are a block each, of 64 scores
constexpr int64_t kBlocks = kPiece / 64;    // blocks of a piece
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

// Logits that are divided by a temperature.
struct ScoreRow {
  const float* logits;
  float temperature;
  int64_t count;

  int64_t pieces() const { return (count + kPiece - 1) / kPiece; }
  float score(int64_t i) const { return logits[i] / temperature; }

  // Calls body(scores, i) with four vectors from score i on, and -inf past the end.
  template <class Body>
  void for_strips(int64_t first, int64_t until, Body&& body) const {
    const Vector by = broadcast(temperature);
    float padded[kStrip];
    for (int64_t i = first; i < until; i += kStrip) {
      const float* from = logits + i;
      if (until - i < kStrip) {
        std::fill(padded, padded + kStrip, kNothing);
        std::copy(from, logits + until, padded);
        from = padded;
      }
      Vector scores[4];
      for (int v = 0; v < 4; ++v) scores[v] = load(from + v * kLanes);
      if (temperature != 1.0f)
        for (Vector& each : scores) each = each / by;
      body(scores, i);
    }
  }
};

// The highest of some logits, not divided, and the first that is it; NaN makes all of it broken.
struct Peak {
  float most = kNothing;
  int64_t at = 0;
  bool broken = false;

  void see(const Peak& later) {
    if (later.most > most) most = later.most, at = later.at;
    broken |= later.broken;
  }
};

// Of one piece; its blocks' highest go to `blocks`, if there is such.
inline Peak find_peak(const float* logits, int64_t count, int64_t piece, float* blocks) {
  const ScoreRow row{logits, 1.0f, count};
  const int64_t first = piece * kPiece, until = std::min(count, first + kPiece);
  Vector most = broadcast(kNothing), of_block = most;
  uint32_t nans = 0;
  int strips = 0;
  float* to = blocks;
  if (blocks != nullptr) std::fill(blocks, blocks + kBlocks, kNothing);
  row.for_strips(first, until, [&](const Vector (&x)[4], int64_t) {
    // A NaN as the first operand is left out.
    for (int v = 0; v < 4; ++v) {
      of_block = greatest(x[v], of_block);
      nans |= lanes_of_nan(x[v]);
    }
    if (++strips % kStripsOfBlocks) return;
    if (blocks != nullptr) store(to, of_block), to += kLanes;
    most = greatest(most, of_block);
    of_block = broadcast(kNothing);
  });
  if (blocks != nullptr && strips % kStripsOfBlocks) store(to, of_block);
  Peak peak{greatest_lane(greatest(most, of_block)), first, nans != 0};
  const Vector highest = broadcast(peak.most);
  bool found = false;
  for (int64_t i = first; i < until && !found; i += kStrip)
    row.for_strips(i, std::min(until, i + kStrip), [&](const Vector (&x)[4], int64_t) {
      for (int v = 0; v < 4 && !found; ++v) {
        const uint32_t lanes = lanes_from(x[v], highest);
        if (lanes == 0) continue;
        peak.at = i + v * kLanes + __builtin_ctz(lanes);
        found = true;
      }
    });
  return peak;
}

// What a token weighs, e^(score - highest), in units of 2^-42: a row of 2^20 tokens has a sum.
constexpr double kRounderOfDoubles = 0x1.8p52;

// e^x in such units for x up to 0, off by less than one: 2^n times a polynomial of degree 12 on
// +-ln(2)/2 (Taylor's). Every step is one operation of its own, the same in both instruction sets.
inline Integers mass_of(Doubles x) {
  const Doubles rounder = all_of(kRounderOfDoubles);
  x = greatest(x, all_of(-40.0));  // there it is 0
  const Doubles shifted = fma(x, all_of(0x1.71547652b82fep0), rounder);
  const Doubles n = shifted - rounder;
  x = fnma(n, all_of(0x1.62e42fefa39efp-1), x);
  x = fnma(n, all_of(0x1.abc9e3b39803fp-56), x);
  Doubles y = all_of(1.0 / 479001600);
  for (const double factor : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    y = fma(y, x, all_of(factor));
  // Exponent 42; then the sum's lowest bits are the whole number.
  y = times_power(times_power(y, shifted), all_of(kRounderOfDoubles + 42));
  const Doubles whole = all_of(0x1p52);
  return subtract_long(bits_of(y + whole), bits_of(whole));
}

// What the tokens of a row weigh together, added up strip by strip.
class MassSum {
 public:
  explicit MassSum(double most) : most_(all_of(most)) {}

  void add(const Vector (&scores)[4]) {
    for (const Vector& each : scores) {
      sum_ = add_long(sum_, mass_of(lower_half(each) - most_));
      sum_ = add_long(sum_, mass_of(upper_half(each) - most_));
    }
  }

  uint64_t total() const {
    uint64_t parts[kDoubles], all = 0;
    store_integers(parts, sum_);
    for (const uint64_t part : parts) all += part;
    return all;
  }

 private:
  Doubles most_;
  Integers sum_ = blockyard::all_of(uint32_t{0});
};

}  // namespace blockyard
