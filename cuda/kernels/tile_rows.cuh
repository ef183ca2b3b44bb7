// What tiles of query rows have in common, whichever tensor-core instruction multiplies them: how rows
// lie in threads, the running softmax, and where results go.
//
// A thread holds parts of rows g and g + 8 of each row tile of its warp, of a score tile columns 2t
// and 2t + 1 of every 8. Compile-time: those of attention.cuh, SOFT_CAP, and WGMMA (1: warpgroups
// multiply, see tile_wgmma.cuh).
#pragma once
#include "attention.cuh"

#ifndef WGMMA
#define WGMMA 0
#endif

namespace by {
constexpr int kTileWarps = WGMMA ? 8 : 4, kTileThreads = 32 * kTileWarps;
constexpr int kRowTiles = !WGMMA && kDim <= 128 ? 2 : 1;  // 32 rows a warp, while registers last
constexpr int kWarpRows = 16 * kRowTiles, kTileRows = kTileWarps * kWarpRows;
constexpr int kTokens = 64;                               // of one copied tile
constexpr int kPart = WGMMA || kDim <= 64 ? 64 : 32;      // of them, that are scored at once
constexpr int kSlices = kPart / 16;
constexpr int kQueryChunks = kDim / 8;                    // queries are 16-bit numbers

// Rows of a warp that one thread holds parts of: row tile r, half h is row r * 16 + h * 8 + g.
struct RowLimits {
  int to[kRowTiles][2];  // the position past the last that the row sees; 0 for a row of padding
  int reach;             // how many positions it sees, at most
};
struct TileResult {
  float output[kRowTiles][kTiles][4];
  RowSum rows[kRowTiles][2];
};
struct KeyValues {  // of one request and one head
  const unsigned char *keys, *values;
  const int* table;
  int64_t block_stride;
};

// One row of a result, two or four numbers beside each other as one store.
__device__ __forceinline__ void store_row(Number* to, const float (&row)[kTiles][4], int half, int t,
                                          float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; n += kFp8 ? 2 : 1) {
    const float second = kFp8 ? row[n + kFp8][2 * half] : row[n][2 * half + 1];
    uint32_t* at = reinterpret_cast<uint32_t*>(to + output_dim(n, t, 0));
    at[0] = pack2<BF16>(row[n][2 * half] * factor, second * factor);
    if constexpr (kFp8)
      at[1] = pack2<BF16>(row[n][2 * half + 1] * factor, row[n + kFp8][2 * half + 1] * factor);
  }
}
__device__ __forceinline__ void store_partial(float* to, const float (&row)[kTiles][4], int half,
                                              int t, float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) to[output_dim(n, t, e)] = row[n][2 * half + e] * factor;
}

// Scores of kPart tokens, from position `first`, become weights; the output fades where a row has
// found a greater score.
__device__ __forceinline__ void soften(TileResult& result,
                                       float (&scores)[kRowTiles][2 * kSlices][4],
                                       const RowLimits& limits, int first, int least_to,
                                       int most_to, float scale, float soft_cap) {
  const int t = threadIdx.x & 3;
  const bool masked = first < most_to - limits.reach || first + kPart > least_to;
  bool fades = false;
  float fade[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    float most[2] = {result.rows[r][0].most, result.rows[r][1].most};
#pragma unroll
    for (int n = 0; n < 2 * kSlices; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = scores[r][n][e] * scale;
        if constexpr (SOFT_CAP) x = soft_cap * tanh_fast(x / soft_cap);
        x *= kLog2e;
        if (masked) {
          const int position = first + n * 8 + 2 * t + (e & 1);
          const int to = limits.to[r][e >> 1];
          if (position >= to || position < to - limits.reach) x = kNothing;
        }
        scores[r][n][e] = x;
        most[e >> 1] = fmaxf(most[e >> 1], x);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      RowSum& row = result.rows[r][h];
      most[h] = quad_max(most[h]);
      const float stands = most[h] == kNothing ? 0.f : most[h];
      fade[r][h] = exp2_fast(row.most - stands);
      fades |= fade[r][h] != 1.f;
      row.most = most[h];
      most[h] = stands;
      row.sum *= fade[r][h];
    }
#pragma unroll
    for (int n = 0; n < 2 * kSlices; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[r][n][e] = exp2_fast(scores[r][n][e] - most[e >> 1]);
        result.rows[r][e >> 1].sum += scores[r][n][e];
      }
  }
  if (__any_sync(~0u, fades)) {  // late in a long row the greatest score seldom changes
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) result.output[r][n][e] *= fade[r][e >> 1];
  }
}

// The least and the greatest limit of a thread's rows: a tile that all see whole needs no mask.
__device__ __forceinline__ void limits_of(const RowLimits& limits, int& least_to, int& most_to) {
  least_to = 0x7fffffff, most_to = 0;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      least_to = min(least_to, limits.to[r][h]);
      most_to = max(most_to, limits.to[r][h]);
    }
}

__device__ __forceinline__ void clear(TileResult& result) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) result.output[r][n][e] = 0.f;
}

// The sums of a quad's rows, once all positions are seen.
__device__ __forceinline__ void sum_quads(TileResult& result) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) result.rows[r][h].sum = quad_sum(result.rows[r][h].sum);
}
}  // namespace by
