// The likeliest tokens of a row: all that are candidates are found by a floor under their scores,
// and put in order only where a line is drawn through them.
//
// A token is one number: its score's bits, so that a higher one comes first, above its id. Equals
// are in order of their ids. What tokens weigh are whole numbers, whose sum has no order.
#pragma once

#include <cmath>
#include <vector>

#include "score_rows.hpp"

namespace blockyard {

using Key = uint64_t;

inline Key key_of(float score, int64_t token) {
  score += 0.0f;  // one zero
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
  return Key{bits} << 32 | static_cast<uint32_t>(token);
}

inline float score_of(Key key) {
  auto bits = static_cast<uint32_t>(key >> 32);
  bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
  float score;
  std::memcpy(&score, &bits, sizeof score);
  return score;
}

inline int32_t token_of(Key key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

// Adds the tokens of a piece that score `floor` or more; `mass`, if there is one, sees all.
inline void gather_piece(const ScoreRow& row, int64_t piece, float floor, std::vector<Key>& found,
                         MassSum* mass) {
  const Vector least = broadcast(floor);
  const int64_t first = piece * kPiece;
  row.for_strips(first, std::min(row.count, first + kPiece), [&](const Vector (&x)[4], int64_t i) {
    if (mass != nullptr) mass->add(x);
    for (int v = 0; v < 4; ++v) {
      uint32_t lanes = lanes_from(x[v], least);
      if (lanes == 0) continue;
      float scores[kLanes];
      store(scores, x[v]);
      for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        found.push_back(key_of(scores[lane], i + v * kLanes + lane));
      }
    }
  });
}

// What each of up to a strip's tokens weighs.
inline void masses_of(const Key* keys, size_t count, double most, uint64_t (&masses)[kStrip]) {
  float scores[kStrip];
  for (size_t i = 0; i < kStrip; ++i) scores[i] = i < count ? score_of(keys[i]) : kNothing;
  const Doubles highest = all_of(most);
  for (int i = 0; i < kStrip; i += kLanes) {
    const Vector some = load(scores + i);
    store_integers(masses + i, mass_of(lower_half(some) - highest));
    store_integers(masses + i + kDoubles, mass_of(upper_half(some) - highest));
  }
}

// Calls body(key, mass) for each.
template <class Body>
void for_masses(const Key* keys, size_t count, double most, Body&& body) {
  uint64_t masses[kStrip];
  for (size_t i = 0; i < count; i += kStrip) {
    const size_t here = std::min(count - i, size_t{kStrip});
    masses_of(keys + i, here, most, masses);
    for (size_t n = 0; n < here; ++n) body(keys[i + n], masses[n]);
  }
}

inline uint64_t mass_of(const Key* keys, size_t count, double most) {
  uint64_t all = 0;
  for_masses(keys, count, most, [&](Key, uint64_t mass) { all += mass; });
  return all;
}

inline void keep_likeliest(std::vector<Key>& keys, size_t count) {
  if (keys.size() <= count) return;
  std::nth_element(keys.begin(), keys.begin() + static_cast<int64_t>(count), keys.end());
  keys.resize(count);
}

// Tokens in classes of scores, from the highest: how many each has, and what they weigh together.
class Classes {
 public:
  Classes(const std::vector<Key>& keys, double most) : most_(static_cast<float>(most)) {
    const float lowest = score_of(*std::max_element(keys.begin(), keys.end()));
    scale_ = (kClasses - 1) / std::min(std::max(most_ - lowest, 1e-3f), 40.0f);
    for_masses(keys.data(), keys.size(), most, [&](Key key, uint64_t mass) {
      const int in = class_of(key);
      masses_[in] += mass, ++counts_[in];
    });
  }

  // Higher scores never are in a later class.
  int class_of(Key key) const {
    return static_cast<int>(std::min((most_ - score_of(key)) * scale_, kClasses - 1.0f));
  }
  size_t count(int in) const { return counts_[in]; }

  // The class in which the sum reaches `bound`, if there is one; `before` is that of those before.
  int reaching(double bound, uint64_t& before) const {
    before = 0;
    int in = 0;
    while (in < kClasses - 1 && static_cast<double>(before + masses_[in]) < bound)
      before += masses_[in++];
    return in;
  }

 private:
  static constexpr int kClasses = 256;
  float most_, scale_;
  uint64_t masses_[kClasses] = {};
  size_t counts_[kClasses] = {};
};

// Keeps the likeliest as long as those before weigh less than `bound`, and at least one.
inline void keep_mass(std::vector<Key>& keys, double bound, double most) {
  constexpr size_t kFew = 32;
  size_t low = 0, high = keys.size();  // those before `low` stay, those from `high` on do not
  uint64_t before = 0;
  if (high > 4 * kFew) {
    const Classes classes(keys, most);
    const int last = classes.reaching(bound, before);
    std::vector<Key> of_last;
    of_last.reserve(classes.count(last));
    for (const Key key : keys) {
      const int in = classes.class_of(key);
      if (in < last) keys[low++] = key;
      if (in == last) of_last.push_back(key);
    }
    std::copy(of_last.begin(), of_last.end(), keys.begin() + static_cast<int64_t>(low));
    high = low + of_last.size();
  }
  Key* const all = keys.data();
  while (high - low > kFew) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(all + low, all + middle, all + high);
    const uint64_t part = mass_of(all + low, middle - low, most);
    if (static_cast<double>(before + part) >= bound) {
      high = middle;
    } else {
      before += part, low = middle;
    }
  }
  std::sort(all + low, all + high);
  for (; low < high && (low == 0 || static_cast<double>(before) < bound); ++low)
    before += mass_of(all + low, 1, most);
  keys.resize(low);
}

// A floor under the `count` likeliest: so many blocks have a score that high.
inline float floor_of(float* blocks, int64_t num_blocks, int64_t count) {
  if (count > num_blocks) return kNothing;
  std::nth_element(blocks, blocks + count - 1, blocks + num_blocks, std::greater<float>());
  return blocks[count - 1];
}

}  // namespace blockyard
