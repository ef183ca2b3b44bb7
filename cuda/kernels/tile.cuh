// Attention of a tile of query rows over a range of positions, for the kernels that compute many
// rows which read the same keys: prefill and shared prefixes.
//
// Four warps hold 16 * kRowTiles rows each. Queries lie in shared memory; keys and values come in
// tiles of 64 positions, two tiles deep, so that one is copied while the other is multiplied. Each
// row sees the positions before a limit that its caller gives it, and as far back as it reaches.
// Compile-time: those of attention.cuh, and SOFT_CAP.
#pragma once
#include "tile_rows.cuh"

namespace by {
constexpr int kTokensBytes = kTokens * kPitch;  // keys or values of one tile
constexpr int kQueriesBytes = kTileRows * pitch_of(kQueryChunks);

// Store one 16-byte chunk of a query row, in the order that float8 keys want.
__device__ __forceinline__ void store_query_chunk(unsigned char* queries, int row, int chunk,
                                                  const Number* from) {
  if constexpr (!kFp8) {
    *reinterpret_cast<Bytes16*>(queries + chunk_at<kQueryChunks>(row, chunk)) =
        from ? *reinterpret_cast<const Bytes16*>(from) : Bytes16{0, 0, 0, 0};
  } else {
    // Dims 4t + 2h + e of 16 go to 8h + 2t + e; this chunk holds h = 0 or 1 of all t.
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int dim = (chunk & 1) * 8 + pair * 2, t = dim >> 2, h = dim >> 1 & 1;
      const uint32_t two =
          from ? pack2<false>(to_float(from[pair * 2]), to_float(from[pair * 2 + 1])) : 0u;
      unsigned char* to = queries + chunk_at<kQueryChunks>(row, (chunk & ~1) + h);
      *reinterpret_cast<uint32_t*>(to + t * 4) = two;
    }
  }
}

// Start copying positions [first, first + 64), as far as they are in [begin, end).
__device__ __forceinline__ void load_tokens(unsigned char* to, const KeyValues& kv, int first,
                                            int begin, int end) {
#pragma unroll 2  // more at once would take the registers of the products that run meanwhile
  for (int k = threadIdx.x; k < (kTokens + (PLANT == 12)) * kChunks; k += kTileThreads) {
    const int row = k / kChunks, chunk = k % kChunks, position = first + row;
    const bool seen = position >= begin && position < end;
    int64_t from = chunk * 16;
    if (seen)
      from += __ldg(kv.table + position / BLOCK_SIZE) * kv.block_stride +
              position % BLOCK_SIZE * kRowBytes;
    copy_async16(to + row_at(row, chunk), kv.keys + from, seen);
    copy_async16(to + kTokensBytes + row_at(row, chunk), kv.values + from, seen);
  }
  copy_commit();
}

// scores (rows x kPart tokens) = queries . keys.
__device__ __forceinline__ void tile_scores(float (&scores)[kRowTiles][2 * kSlices][4],
                                            const unsigned char* queries,
                                            const unsigned char* keys, int first_row, int lane) {
  const int matrix = lane >> 3, row = lane & 7;
  constexpr int kAtOnce = kFp8 ? 2 : 1;  // steps that one load of keys serves
  const int query_place = chunk_at<kQueryChunks>(first_row + (lane & 15), lane >> 4);
  const int key_row = row + (kFp8 ? matrix & 1 : matrix >> 1) * 8;
  const int key_place = row_at(key_row, kFp8 ? matrix >> 1 : matrix & 1);
#pragma unroll
  for (int j = 0; j < kSteps; j += kAtOnce) {
    uint32_t q[kAtOnce][kRowTiles][4];
#pragma unroll
    for (int jj = 0; jj < kAtOnce && j + jj < kSteps; ++jj)
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        ldmatrix_x4<false>(q[jj][r], queries + r * 16 * pitch_of(kQueryChunks) +
                                         chunks_on<kQueryChunks>(query_place, 2 * (j + jj)));
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      uint32_t k[4];
      if constexpr (!kFp8) {
        ldmatrix_x4<false>(k, keys + s * 16 * kPitch + chunks_on<kChunks>(key_place, 2 * j));
        const uint32_t b0[2] = {k[0], k[1]}, b1[2] = {k[2], k[3]};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          mma_16816<kMmaBf16>(scores[r][2 * s], q[0][r], b0);
          mma_16816<kMmaBf16>(scores[r][2 * s + 1], q[0][r], b1);
        }
      } else {
        // The last of an odd number of chunks is loaded twice.
        const int place = j + 1 < kChunks ? chunks_on<kChunks>(key_place, j) : row_at(key_row, j);
        ldmatrix_x4<false>(k, keys + s * 16 * kPitch + place);
#pragma unroll
        for (int jj = 0; jj < 2 && j + jj < kSteps; ++jj)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint32_t v = k[2 * jj + n];
            const uint32_t b[2] = {e4m3x2_to_half2(v & 0xffff), e4m3x2_to_half2(v >> 16)};
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r)
              mma_16816<false>(scores[r][2 * s + n], q[jj < kAtOnce ? jj : 0][r], b);
          }
      }
    }
  }
}

// output += weights . values, for the 16 tokens of slice s.
__device__ __forceinline__ void tile_values(float (&output)[kRowTiles][kTiles][4],
                                            const float (&scores)[kRowTiles][2 * kSlices][4],
                                            const unsigned char* values, int s, int lane) {
  const int matrix = lane >> 3, value_row = (lane & 7) + (matrix & 1) * 8;
  const int value_place = row_at(value_row, matrix >> 1);
  uint32_t weights[kRowTiles][4];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&two)[4] = scores[r][2 * s + (i >> 1)];
      weights[r][i] = pack2<kMmaBf16>(two[2 * (i & 1)], two[2 * (i & 1) + 1]);
    }
#pragma unroll
  for (int c = 0; c < kChunks; c += 2) {
    uint32_t v[4];
    const int place = c + 1 < kChunks ? chunks_on<kChunks>(value_place, c) : row_at(value_row, c);
    ldmatrix_x4<true>(v, values + s * 16 * kPitch + place);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if constexpr (!kFp8) {
        const uint32_t b0[2] = {v[0], v[1]}, b1[2] = {v[2], v[3]};
        mma_16816<kMmaBf16>(output[r][c], weights[r], b0);
        mma_16816<kMmaBf16>(output[r][c + 1], weights[r], b1);
      } else {  // even and odd dims: see attention.cuh
#pragma unroll
        for (int cc = 0; cc < 2 && c + cc < kChunks; ++cc)
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const unsigned pick = odd ? 0x4431u : 0x4420u;
            const uint32_t b[2] = {e4m3x2_to_half2(__byte_perm(v[2 * cc], 0u, pick) & 0xffff),
                                   e4m3x2_to_half2(__byte_perm(v[2 * cc + 1], 0u, pick) & 0xffff)};
            mma_16816<false>(output[r][2 * (c + cc) + odd], weights[r], b);
          }
      }
    }
  }
}

// kPart tokens of a copied tile, from position `first`: scores, running softmax, output.
__device__ __forceinline__ void attend_part(TileResult& result, const unsigned char* queries,
                                            const unsigned char* keys, const RowLimits& limits,
                                            int first, int least_to, int most_to, float scale,
                                            float soft_cap) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float scores[kRowTiles][2 * kSlices][4] = {};
  tile_scores(scores, queries, keys, warp * kWarpRows, lane);
  soften(result, scores, limits, first, least_to, most_to, scale, soft_cap);
#pragma unroll
  for (int s = 0; s < kSlices; ++s)
    tile_values(result.output, scores, keys + kTokensBytes, s, lane);
}

// The whole tile. `shared`: queries, then two tiles of keys and values. All threads take part; the
// queries were stored before, and are visible after the first barrier here.
__device__ __forceinline__ void attend_tile(TileResult& result, unsigned char* shared,
                                            const KeyValues& kv, const RowLimits& limits, int begin,
                                            int end, float scale, float soft_cap) {
  unsigned char* ring = shared + kQueriesBytes;
  const int aligned = begin & ~(kTokens - 1);
  const int count = begin < end ? (end - aligned + kTokens - 1) / kTokens : 0;
  clear(result);
  int least_to, most_to;
  limits_of(limits, least_to, most_to);
  if (count > 0) load_tokens(ring, kv, aligned, begin, end);

  for (int i = 0; i < count; ++i) {
    const int first = aligned + i * kTokens;
#if PLANT != 13
    copy_wait<0>();
#endif
#if PLANT != 11
    __syncthreads();  // this tile has landed for all; the other stage is free
#endif
    unsigned char* stage = ring + (i & 1) * 2 * kTokensBytes;
    if (i + 1 < count)
      load_tokens(ring + ((i + 1) & 1) * 2 * kTokensBytes, kv, first + kTokens, begin, end);

#pragma unroll 1
    for (int part = 0; part < kTokens; part += kPart)
      attend_part(result, shared, stage + part * kPitch, limits, first + part, least_to, most_to,
                  scale, soft_cap);
  }
  sum_quads(result);
}
}  // namespace by
