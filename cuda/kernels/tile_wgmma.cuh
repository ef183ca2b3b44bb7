// Attention of a tile of query rows over a range of positions by Hopper's warpgroup instructions; the
// same functions as tile.cuh, for heads of 64 and 128 16-bit numbers.
//
// Two warpgroups hold 64 rows each. Queries lie in shared memory for both products' left side
// (weights stay in registers); keys and values come in tiles of 64 positions, two tiles deep. All
// operands are panels of 64 numbers: see wgmma.cuh. Compile-time: those of tile_rows.cuh.
#pragma once
#include "tile_rows.cuh"
#include "wgmma.cuh"

namespace by {
static_assert(!kFp8 && kDim % kPanelNumbers == 0 && kDim <= 128);
constexpr int kPanels = kDim / kPanelNumbers;
constexpr int kQueryPanelBytes = kTileRows * kPanelRow, kQueriesBytes = kPanels * kQueryPanelBytes;
constexpr int kTokenPanelBytes = kTokens * kPanelRow;
constexpr int kTokensBytes = kPanels * kTokenPanelBytes;  // keys or values of one tile

__device__ __forceinline__ void store_query_chunk(unsigned char* queries, int row, int chunk,
                                                  const Number* from) {
  *reinterpret_cast<Bytes16*>(queries + chunk / 8 * kQueryPanelBytes + panel_at(row, chunk % 8)) =
      from ? *reinterpret_cast<const Bytes16*>(from) : Bytes16{0, 0, 0, 0};
}

// Start copying positions [first, first + 64), as far as they are in [begin, end).
__device__ __forceinline__ void load_tokens(unsigned char* to, const KeyValues& kv, int first,
                                            int begin, int end) {
#pragma unroll 2
  for (int k = threadIdx.x; k < (kTokens + (PLANT == 43)) * kChunks; k += kTileThreads) {
    const int row = k / kChunks, chunk = k % kChunks, position = first + row;
    const bool seen = position >= begin && position < end;
    int64_t from = chunk * 16;
    if (seen)
      from += __ldg(kv.table + position / BLOCK_SIZE) * kv.block_stride +
              position % BLOCK_SIZE * kRowBytes;
    unsigned char* at = to + chunk / 8 * kTokenPanelBytes + panel_at(row, chunk % 8);
    copy_async16(at, kv.keys + from, seen);
    copy_async16(at + kTokensBytes, kv.values + from, seen);
  }
  copy_commit();
}

// The whole tile; see tile.cuh.
__device__ __forceinline__ void attend_tile(TileResult& result, unsigned char* shared,
                                            const KeyValues& kv, const RowLimits& limits, int begin,
                                            int end, float scale, float soft_cap) {
  const unsigned char* queries = shared + (threadIdx.x >> 7) * 64 * kPanelRow;  // the group's rows
  unsigned char* ring = shared + kQueriesBytes;
  const int aligned = begin & ~(kTokens - 1);
  const int count = begin < end ? (end - aligned + kTokens - 1) / kTokens : 0;
  clear(result);
  int least_to, most_to;
  limits_of(limits, least_to, most_to);
  if (count > 0) load_tokens(ring, kv, aligned, begin, end);

  for (int i = 0; i < count; ++i) {
    const int first = aligned + i * kTokens;
#if PLANT != 42
    copy_wait<0>();
#endif
    wgmma_sees_shared();
    __syncthreads();  // this tile has landed for all; both groups are done with the other stage
    const unsigned char* keys = ring + (i & 1) * 2 * kTokensBytes;
    if (i + 1 < count)
      load_tokens(ring + ((i + 1) & 1) * 2 * kTokensBytes, kv, first + kTokens, begin, end);

    float scores[kRowTiles][2 * kSlices][4] = {};
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int step = 0; step < kPanelNumbers / 16; ++step)
        wgmma_64<kMmaBf16>(&scores[0][0][0],
                           panel_descriptor(queries + panel * kQueryPanelBytes + step * 32, 16),
                           panel_descriptor(keys + panel * kTokenPanelBytes + step * 32, 16));
    wgmma_commit();
#if PLANT != 41
    wgmma_wait<0>();
#endif
    soften(result, scores, limits, first, least_to, most_to, scale, soft_cap);

    // A score tile is, as it lies in registers, the left operand of the next product.
    uint32_t weights[kSlices][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&two)[4] = scores[0][2 * s + (j >> 1)];
        weights[s][j] = pack2<kMmaBf16>(two[2 * (j & 1)], two[2 * (j & 1) + 1]);
      }
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSlices; ++s)
      wgmma_across<kMmaBf16, kDim>(
          &result.output[0][0][0], weights[s],
          panel_descriptor(keys + kTokensBytes + s * 16 * kPanelRow, kTokenPanelBytes));
    wgmma_commit();
    wgmma_wait<0>();  // before the stage is filled again, and before the output fades
  }
  sum_quads(result);
}
}  // namespace by
