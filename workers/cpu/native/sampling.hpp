// Chooses tokens: the likeliest of a row, or by Gumbel-max of those that min-p, top-k and top-p
// leave, in this order. The twin of `workers/sampler.py`, whose tokens these are.
//
// Threads share pieces of rows: first for the highest score; then, where any token may be drawn, for
// the draw itself, and where not, for candidates, of which one thread draws a row's token.
#pragma once

#include "gumbel.hpp"
#include "likeliest.hpp"
#include "thread_pool.hpp"

namespace blockyard {

extern "C" struct ByRowSampling {
  double top_p, min_p;    // 1 and 0 leave all
  uint64_t seed;
  float temperature;      // 0 takes the likeliest
  int32_t top_k;          // 0 means all
  uint32_t choice, position;
};

class Sampling {
 public:
  Sampling(const float* logits, int64_t stride, int64_t vocabulary, int64_t offset,
           const ByRowSampling* rows, int64_t count)
      : logits_(logits), stride_(stride), vocabulary_(vocabulary), offset_(offset),
        pieces_((vocabulary + kPiece - 1) / kPiece), rows_(static_cast<size_t>(count)) {
    for (int64_t r = 0; r < count; ++r) {
      Row& row = rows_[static_cast<size_t>(r)];
      row.wanted = rows[r];
      row.greedy = row.wanted.temperature == 0.0f;
      if (row.wanted.top_k >= vocabulary) row.wanted.top_k = 0;
      row.truncated = !row.greedy && (row.wanted.top_p < 1.0 || row.wanted.min_p > 0.0 ||
                                      row.wanted.top_k > 0);
      row.scores = {logits_ + r * stride_, row.greedy ? 1.0f : row.wanted.temperature, vocabulary_};
      row.key = {static_cast<uint32_t>(row.wanted.seed),
                 static_cast<uint32_t>(row.wanted.seed >> 32), row.wanted.choice,
                 row.wanted.position};
      row.parts.resize(static_cast<size_t>(pieces_));
      if (row.truncated && row.wanted.top_k > 0)
        row.blocks.resize(static_cast<size_t>(pieces_ * kBlocks));
    }
  }

  // Writes each row's token, its score, and 1 where a logit is NaN or +inf or 2 where all are -inf.
  void run(ThreadPool& pool, int32_t* tokens, double* scores, int32_t* failed) {
    each_piece(pool, [](const Row&) { return true; }, [](Row& row, int64_t piece, Part& part) {
      float* blocks = row.blocks.empty() ? nullptr : row.blocks.data() + piece * kBlocks;
      part.peak = find_peak(row.scores.logits, row.scores.count, piece, blocks);
    });
    bool drawn = false;
    for (Row& row : rows_) {
      begin(row);
      drawn |= !row.done;
    }
    if (drawn) {
      each_row(pool, [](const Row& row) { return !row.done && row.truncated; }, set_floor);
      each_piece(pool, [](const Row& row) { return !row.done; },
                 [this](Row& row, int64_t piece, Part& part) {
        if (row.truncated) return gather(row, piece, part);
        part.best = row.best;
        draw_piece(row.scores, row.key, offset_, piece, part.best);
      });
      each_row(pool, [](const Row& row) { return !row.done && row.truncated; }, settle);
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      if (!row.done)
        for (const Part& part : row.parts) row.best.see(part.best);
      tokens[r] = row.failed ? 0 : static_cast<int32_t>(row.best.token());
      scores[r] = row.best.score();
      failed[r] = row.failed;
    }
  }

 private:
  struct Part {  // of a row
    Peak peak;
    Best best;
    std::vector<Key> found;
    uint64_t mass = 0;
  };
  struct Row {
    ByRowSampling wanted;
    ScoreRow scores;
    NoiseKey key;
    bool greedy = false, truncated = false, done = false;
    int32_t failed = 0;
    double most = 0.0;  // the highest score
    int64_t at = 0;     // whose it is
    float floor = kLeastFinite;
    Best best;
    std::vector<Part> parts;
    std::vector<float> blocks;
  };

  template <class Of, class Body>
  void each_row(ThreadPool& pool, Of&& of, Body&& body) {
    std::vector<Row*> some;
    for (Row& row : rows_)
      if (of(row)) some.push_back(&row);
    pool.run(static_cast<int>(some.size()),
             [&](int r, int) { body(*some[static_cast<size_t>(r)]); });
  }

  template <class Of, class Body>
  void each_piece(ThreadPool& pool, Of&& of, Body&& body) {
    std::vector<Row*> some;
    for (Row& row : rows_)
      if (of(row)) some.push_back(&row);
    const auto pieces = static_cast<int>(pieces_);
    pool.run(static_cast<int>(some.size()) * pieces, [&](int chunk, int) {
      Row& row = *some[static_cast<size_t>(chunk / pieces)];
      const int piece = chunk % pieces;
      body(row, piece, row.parts[static_cast<size_t>(piece)]);
    });
  }

  // What the highest logit says; its token is the first candidate of a draw from all.
  void begin(Row& row) const {
    Peak peak = row.parts[0].peak;
    for (size_t p = 1; p < row.parts.size(); ++p) peak.see(row.parts[p].peak);
    const float infinity = std::numeric_limits<float>::infinity();
    if (peak.broken || peak.most == infinity) row.failed = 1;
    if (!peak.broken && peak.most == kNothing) row.failed = 2;
    row.at = peak.at;
    // Of a row of NaN alone the place is behind it.
    const float most = row.failed ? kNothing : row.scores.score(peak.at);
    row.most = most;
    // Scores that a low temperature makes infinite differ no more by their noise.
    row.done = row.failed || row.greedy || std::isinf(most);
    if (row.done) {
      if (most == infinity)
        for (row.at = 0; row.scores.score(row.at) < infinity;) ++row.at;
      row.best.see(most, offset_ + row.at);
    } else if (!row.truncated) {
      draw_one(row.scores, row.key, offset_, row.at, row.best);
    }
  }

  static void set_floor(Row& row) {
    const ByRowSampling& wanted = row.wanted;
    float floor = kLeastFinite;
    if (wanted.min_p > 0.0)  // to be compared exactly later
      floor = std::max(floor, below(row.most + std::log(wanted.min_p)));
    if (wanted.top_k > 0) {
      const float of_k = floor_of(row.blocks.data(), static_cast<int64_t>(row.blocks.size()),
                                  wanted.top_k) / row.scores.temperature;
      floor = std::max(floor, of_k);
    }
    constexpr double kUsuallyEnough = 7.0;
    if (sums_all(row)) floor = std::max(floor, below(row.most - kUsuallyEnough));
    row.floor = floor;
  }

  // A float that is below, whatever was rounded on the way.
  static float below(double score) {
    return static_cast<float>(score - 1e-3 - 1e-6 * std::fabs(score));
  }

  // Whether top-p is a share of all tokens' sum.
  static bool sums_all(const Row& row) {
    return row.wanted.top_p < 1.0 && !(row.wanted.min_p > 0.0) && row.wanted.top_k == 0;
  }

  static void gather(Row& row, int64_t piece, Part& part) {
    MassSum mass(row.most);
    const bool sums = sums_all(row);
    gather_piece(row.scores, piece, row.floor, part.found, sums ? &mass : nullptr);
    part.mass = sums ? mass.total() : 0;
  }

  static void settle(Row& row) {
    const ByRowSampling& wanted = row.wanted;
    std::vector<Key> keys;
    uint64_t total = 0;
    for (const Part& part : row.parts) {
      keys.insert(keys.end(), part.found.begin(), part.found.end());
      total += part.mass;
    }
    if (wanted.min_p > 0.0) std::erase_if(keys, [&](Key key) {
      return !(std::exp(static_cast<double>(score_of(key)) - row.most) >= wanted.min_p);
    });
    if (wanted.top_k > 0) keep_likeliest(keys, static_cast<size_t>(wanted.top_k));
    if (wanted.top_p < 1.0) keep_top_p(row, keys, total);
    draw_of(row, keys);
  }

  static void keep_top_p(Row& row, std::vector<Key>& keys, uint64_t total) {
    const uint64_t found = mass_of(keys.data(), keys.size(), row.most);
    if (!sums_all(row)) total = found;
    const double bound = row.wanted.top_p * static_cast<double>(total);
    if (static_cast<double>(found) < bound) {
      // As many tokens as there are weigh no more below this floor than may be left out.
      const double left_out = (1.0 - row.wanted.top_p) * static_cast<double>(total) * 0x1p-42;
      const double each = left_out / static_cast<double>(row.scores.count);
      const float floor = below(row.most + std::log(each));
      gather_all(row, std::max(floor, kLeastFinite), keys);
      if (static_cast<double>(mass_of(keys.data(), keys.size(), row.most)) < bound)
        gather_all(row, kLeastFinite, keys);
    }
    keep_mass(keys, bound, row.most);
  }

  static void gather_all(const Row& row, float floor, std::vector<Key>& keys) {
    keys.clear();
    for (int64_t piece = 0; piece < row.scores.pieces(); ++piece)
      gather_piece(row.scores, piece, floor, keys, nullptr);
  }

  static void draw_of(Row& row, const std::vector<Key>& keys) {
    // The highest logit may be left out: division can make it equal to one with a lower id.
    const int32_t likeliest = token_of(*std::min_element(keys.begin(), keys.end()));
    draw_one(row.scores, row.key, 0, likeliest, row.best);
    const size_t whole = (keys.size() + kLanes - 1) / kLanes * kLanes;
    std::vector<float> scores(whole, kNothing);
    std::vector<int32_t> tokens(whole, 0);
    for (size_t i = 0; i < keys.size(); ++i)
      scores[i] = score_of(keys[i]), tokens[i] = token_of(keys[i]);
    draw_some(scores.data(), tokens.data(), static_cast<int64_t>(keys.size()), row.key, row.best);
  }

  const float* logits_;
  int64_t stride_, vocabulary_, offset_, pieces_;
  std::vector<Row> rows_;
};

}  // namespace blockyard
