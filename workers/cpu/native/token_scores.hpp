// What a model thought of a token: its log probability, its rank, and the likeliest of its row. The
// twin of `workers/logprobs.py`.
#pragma once

#include "likeliest.hpp"

namespace blockyard {

// Writes the token's log probability and those of `top` likeliest, and its rank and their ids. NaN
// where no sum is finite.
inline void score_token(const ScoreRow& row, int64_t token, int64_t top, float* logprobs,
                        int32_t* ids) {
  std::vector<float> blocks(static_cast<size_t>(row.pieces() * kBlocks));
  Peak peak;
  for (int64_t piece = 0; piece < row.pieces(); ++piece)
    peak.see(find_peak(row.logits, row.count, piece, blocks.data() + piece * kBlocks));
  const float own = row.logits[token];
  int32_t above = 0;
  MassSum mass(peak.most);
  row.for_strips(0, row.count, [&](const Vector (&x)[4], int64_t) {
    for (const Vector& each : x) above += __builtin_popcount(lanes_below(broadcast(own), each));
    mass.add(x);
  });
  double log_of_sum = std::numeric_limits<double>::quiet_NaN();
  if (!peak.broken && std::isfinite(peak.most))
    log_of_sum = std::log(static_cast<double>(mass.total()) * 0x1p-42);
  const auto logprob = [&](float score) {
    return static_cast<float>(static_cast<double>(score) - peak.most - log_of_sum);
  };
  logprobs[0] = logprob(own);
  ids[0] = above + 1;
  if (top == 0) return;
  std::vector<Key> keys;
  const float floor = floor_of(blocks.data(), static_cast<int64_t>(blocks.size()), top);
  for (int64_t piece = 0; piece < row.pieces(); ++piece)
    gather_piece(row, piece, floor, keys, nullptr);
  keep_likeliest(keys, static_cast<size_t>(top));
  std::sort(keys.begin(), keys.end());
  for (int64_t n = 0; n < top; ++n) {
    // Of rows with NaN there are fewer, and what fills up the last strip is among them.
    const bool found = n < static_cast<int64_t>(keys.size());
    const int32_t id = found ? token_of(keys[static_cast<size_t>(n)]) : 0;
    ids[1 + n] = id < row.count ? id : 0;
    logprobs[1 + n] = logprob(row.logits[ids[1 + n]]);
  }
}

}  // namespace blockyard
