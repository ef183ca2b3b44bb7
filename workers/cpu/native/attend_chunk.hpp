// Attention of many tokens of one request: query heads that share a KV head are rows of one matrix.
//
// Positions pass by 128 at a time. Their keys are transposed and their values copied into panels of
// 16, so that both multiplications run on the tiles of `multiply.hpp`; the softmax between them is
// kept as a running maximum and sum. Tokens before a stretch of positions take no part in it, and
// tiles that see only its beginning compute no more than that.
#pragma once

#include "attend_token.hpp"
#include "large_memory.hpp"
#include "multiply.hpp"

namespace blockyard {

// Rows of one piece of work: queries, sums and scores stay in the second-level cache.
constexpr int kChunkRows = 256;
constexpr int kChunkKeys = 128;

// Of one thread; every array begins with a cache line.
class ChunkScratch {
 public:
  float *queries = nullptr, *values = nullptr, *scores = nullptr, *keys = nullptr,
        *stored = nullptr;
  std::vector<Softmax> softmax;

  void fit(int64_t rows, int64_t dim) {
    const int64_t needed = rows * (2 * dim + kChunkKeys) + 2 * dim * kChunkKeys;
    if (needed > size_) {
      memory_ = make_large(needed);
      size_ = needed;
    }
    queries = memory_.get();
    values = queries + rows * dim;
    scores = values + rows * dim;
    keys = scores + rows * kChunkKeys;
    stored = keys + dim * kChunkKeys;
    softmax.assign(static_cast<size_t>(rows), Softmax{});
  }

 private:
  LargeFloats memory_;
  int64_t size_ = 0;
};

// Keys as panels `[8][dim][16]`, values as `[dim / 16][128][16]`; beyond `count` zeros.
template <class T>
inline void pack_keys_values(const HeadReader<T>& reader, int64_t first, int count, int dim,
                             float* keys, float* stored) {
  const T* rows[kChunkKeys];
  float scales[2][kChunkKeys];
  if constexpr (std::is_same_v<T, int8_t>) {
    for (int kind = 0; kind < 2; ++kind) {
      std::fill_n(scales[kind], kChunkKeys, 1.0f);
      reader.apply_scales(first, count, kind, scales[kind]);
    }
  }
  const auto take = [&](int kind, int k, int d) {
    if (k >= count) return zero();
    const Vector numbers = load(rows[k] + d);
    if constexpr (std::is_same_v<T, int8_t>) return numbers * broadcast(scales[kind][k]);
    return numbers;
  };
  reader.locate(first, count, 0, rows);
  for (int k = 0; k < kChunkKeys; k += kLanes) {
    float* panel = keys + k / kPanel * dim * kPanel + k % kPanel;
    for (int d = 0; d < dim; d += kLanes) {
      Vector some[kLanes];
      for (int i = 0; i < kLanes; ++i) some[i] = take(0, k + i, d);
      transpose(some, panel + d * kPanel, kPanel);
    }
  }
  reader.locate(first, count, 1, rows);
  for (int k = 0; k < kChunkKeys; ++k)
    for (int d = 0; d < dim; d += kLanes)
      store(stored + (d / kPanel * kChunkKeys + k) * kPanel + d % kPanel, take(1, k, d));
}

// Rows of the chunk: token `t`'s query head `h` is row `t * heads + h`.
struct Chunk {
  int tokens, heads, dim;
  int64_t start;   // position of the first token
  int64_t window;  // positions a token sees, its own included
  float cap;
};

// Positions, or dimensions, that a tile takes at once.
constexpr int kWidth = kTilePanels * kPanel;
static_assert(kChunkKeys % kWidth == 0);

template <class T>
void attend_chunk(const HeadReader<T>& reader, const Chunk& chunk, ChunkScratch& scratch) {
  const int dim = chunk.dim, rows = chunk.tokens * chunk.heads;
  const int64_t end = chunk.start + chunk.tokens;
  float* scores = scratch.scores;
  const Ahead here{reinterpret_cast<const char*>(scores), 0, 0};  // nothing needs fetching
  std::fill_n(scratch.values, rows * dim, 0.0f);
  // What every token has left behind may have been overwritten: a weight of 0 would not do.
  const int64_t begin = std::max<int64_t>(0, chunk.start - chunk.window + 1);
  for (int64_t first = begin; first < end; first += kChunkKeys) {
    const auto count = static_cast<int>(std::min<int64_t>(kChunkKeys, end - first));
    pack_keys_values(reader, first, count, dim, scratch.keys, scratch.stored);
    // The next positions' keys and values come while these are used.
    const int64_t beyond = first + kChunkKeys;
    const auto fetch_next = [&](int k) {
      const auto next = static_cast<int>(std::min<int64_t>(kWidth, end - beyond - k));
      if (next <= 0) return;
      const T* places[kWidth];
      for (int kind = 0; kind < 2; ++kind) {
        reader.locate(beyond + k, next, kind, places);
        for (int i = 0; i < next; ++i) fetch_head(places[i], dim);
      }
    };
    // Tokens that see any of these positions.
    const int64_t since = std::max<int64_t>(0, first - chunk.start);
    const int64_t until =
        std::min<int64_t>(chunk.tokens, first + count - 1 + chunk.window - chunk.start);
    if (since >= until) continue;
    const auto from = static_cast<int>(since) * chunk.heads;
    const auto taking = static_cast<int>(until - since) * chunk.heads;
    // Positions that the tokens of a tile, whose rows end before `end_row`, see of these.
    const bool all_seen = chunk.start + since + 1 >= first + count;
    const auto seen_by = [&](int end_row) {
      if (all_seen) return count;
      const int64_t position = chunk.start + (from + end_row - 1) / chunk.heads;
      return static_cast<int>(std::min<int64_t>(count, position + 1 - first));
    };
    // A tile's panels stay in the first-level cache while rows pass by.
    for (int k = 0; k < count; k += kWidth) {
      fetch_next(k);
      for_tiles(taking, [&](auto tile_rows, int row) {
        if (k >= seen_by(row + tile_rows)) return;
        multiply_tile<tile_rows, kTilePanels, true>(
            scratch.queries + (from + row) * dim, dim, scratch.keys + k * dim, dim * kPanel, dim,
            scores + row * kChunkKeys + k, kChunkKeys, kPanel, false);
      });
    }
    for_tiles(taking, [&](auto tile_rows, int begin_row) {
      const int width = (seen_by(begin_row + tile_rows) + kWidth - 1) / kWidth * kWidth;
      float* own = scores + begin_row * kChunkKeys;
      for (int r = 0; r < tile_rows; ++r) {
        float* row = own + r * kChunkKeys;
        const int64_t position = chunk.start + (from + begin_row + r) / chunk.heads;
        if (chunk.cap > 0) cap_scores(row, std::min(count, width), chunk.cap);
        const int64_t seen = std::min<int64_t>(count, position + 1 - first);
        const int64_t unseen = std::max<int64_t>(0, position - chunk.window + 1 - first);
        if (seen < width) std::fill(row + seen, row + width, kNever);
        if (unseen > 0) std::fill(row, row + std::min(unseen, seen), kNever);
      }
      float kept[tile_rows];
      take_rows<tile_rows>(scratch.softmax.data() + from + begin_row, own, kChunkKeys, width, kept);
      for (int r = 0; r < tile_rows; ++r) {
        if (kept[r] == 1.0f) continue;
        float* values = scratch.values + (from + begin_row + r) * dim;
        for (int d = 0; d < dim; d += kLanes)
          store(values + d, load(values + d) * broadcast(kept[r]));
      }
    });
    for (int d = 0; d < dim; d += kWidth)
      with_count<kTilePanels>(std::min(kWidth, dim - d) / kPanel, [&](auto panels) {
        for_tiles(taking, [&](auto tile_rows, int row) {
          multiply_tile<tile_rows, panels>(
              scores + row * kChunkKeys, kChunkKeys, scratch.stored + d * kChunkKeys,
              kChunkKeys * kPanel, seen_by(row + tile_rows),
              scratch.values + (from + row) * dim + d, dim, kPanel, true, here);
        });
      });
  }
}

}  // namespace blockyard
