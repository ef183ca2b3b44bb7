// Attention of many tokens of one request: query heads that share a KV head are rows of one matrix.
//
// Positions pass by 128 at a time. Their keys are transposed and their values copied into panels of
// 16, so that both multiplications run on the tiles of `multiply.hpp`; the softmax between them is
// kept as a running maximum and sum. A tile's scores go through all three while they are in the
// first-level cache. Tokens before a stretch of positions take no part in it, and tiles that see only
// its beginning compute no more than that.
#pragma once

#include "attend_token.hpp"
#include "large_memory.hpp"
#include "multiply.hpp"

namespace blockyard {

// Rows of one piece of work: queries and sums stay in the second-level cache.
constexpr int kChunkRows = 256;
constexpr int kChunkKeys = 128;

// Of one thread; every array begins with a cache line.
class ChunkScratch {
 public:
  float *queries = nullptr, *values = nullptr, *scores = nullptr, *keys = nullptr,
        *stored = nullptr;
  std::vector<Softmax> softmax;

  void fit(int64_t rows, int64_t dim) {
    const int64_t needed = 2 * (rows + kChunkKeys) * dim + kTileRows * kChunkKeys;
    if (needed > size_) {
      memory_ = make_large(needed);
      size_ = needed;
    }
    queries = memory_.get();
    values = queries + rows * dim;
    scores = values + rows * dim;
    keys = scores + kTileRows * kChunkKeys;
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

// Hides from some rows' scores, `width` of each, the positions from `first` on that they do not see.
inline void hide(const Chunk& chunk, int64_t first, int count, int row, int rows, int width,
                 float* scores) {
  for (int r = 0; r < rows; ++r, scores += kChunkKeys) {
    const int64_t position = chunk.start + (row + r) / chunk.heads;
    const int64_t seen = std::min<int64_t>(count, position + 1 - first);
    const int64_t unseen = std::max<int64_t>(0, position - chunk.window + 1 - first);
    if (seen < width) std::fill(scores + seen, scores + width, kNever);
    if (unseen > 0) std::fill(scores, scores + std::min(unseen, seen), kNever);
  }
}

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
    const auto fetch_next = [&](int from, int to) {
      const auto next = static_cast<int>(std::min<int64_t>(to, end - beyond) - from);
      if (next <= 0) return;
      const T* places[kChunkKeys];
      for (int kind = 0; kind < 2; ++kind) {
        reader.locate(beyond + from, next, kind, places);
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
    // Whether the last token, and so every one, sees them from the first on.
    const bool from_first = chunk.start + until - chunk.window <= first;
    for_tiles(taking, [&](auto tile_rows, int tile_row) {
      fetch_next(tile_row * kChunkKeys / taking, (tile_row + tile_rows) * kChunkKeys / taking);
      const int row = from + tile_row, seen = seen_by(tile_row + tile_rows);
      const int width = (seen + kWidth - 1) / kWidth * kWidth;
      for (int k = 0; k < width; k += kWidth)
        multiply_tile<tile_rows, kTilePanels, true>(scratch.queries + row * dim, dim,
                                                    scratch.keys + k * dim, dim * kPanel, dim,
                                                    scores + k, kChunkKeys, kPanel, false);
      if (chunk.cap > 0)
        for (int r = 0; r < tile_rows; ++r)
          cap_scores(scores + r * kChunkKeys, std::min(count, width), chunk.cap);
      if (!all_seen || width > count || !from_first)
        hide(chunk, first, count, row, tile_rows, width, scores);
      float kept[tile_rows];
      take_rows<tile_rows>(scratch.softmax.data() + row, scores, kChunkKeys, width, kept);
      for (int r = 0; r < tile_rows; ++r) {
        if (kept[r] == 1.0f) continue;
        float* values = scratch.values + (row + r) * dim;
        for (int d = 0; d < dim; d += kLanes)
          store(values + d, load(values + d) * broadcast(kept[r]));
      }
      for (int d = 0; d < dim; d += kWidth)
        with_count<kTilePanels>(std::min(kWidth, dim - d) / kPanel, [&](auto panels) {
          multiply_tile<tile_rows, panels>(scores, kChunkKeys, scratch.stored + d * kChunkKeys,
                                           kChunkKeys * kPanel, seen,
                                           scratch.values + row * dim + d, dim, kPanel, true, here);
        });
    });
  }
}

}  // namespace blockyard
