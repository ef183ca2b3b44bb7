// Prefill attention: requests that compute several tokens, of any lengths, in one launch.
//
// The GROUP query heads that share a KV head are rows beside each other: row r of a request and KV
// head is token r / GROUP, head r % GROUP, so that keys are read once for all of them. A thread
// block takes one work item: kTileRows rows, and a range of positions that they see. What a prefix
// hit or an earlier chunk left in the cache is read like the chunk itself. Items that are not the
// whole of what their rows see leave partial results for merge_tiles.
// Compile-time: GROUP, WGMMA, and those of the tile.
#include "merge.cuh"
#if WGMMA
#include "tile_wgmma.cuh"
#else
#include "tile.cuh"
#endif

using namespace by;

struct PrefillArguments {
  const Number* queries;    // [tokens][heads][dim]
  const uint8_t* keys;      // this layer's, in block 0
  const uint8_t* values;
  const int* block_tables;  // [requests][table_stride]
  const int4* work;         // {request, KV head, first row, partial or below 0}
  const int2* ranges;       // [work] {first position, position past the last}
  const int* first_tokens;  // [requests] index of the first token in the step
  const int* counts;        // [requests] tokens in the step
  const int* starts;        // [requests] position of the first token
  const float* key_scales;  // [KV heads], or null
  const float* value_scales;
  const float* sinks;       // [heads], or null
  Number* output;           // [tokens][heads][dim]
  float* partial_output;    // [partials][kTileRows][dim]
  float* partial_lse;       // [partials][kTileRows], base 2
  int64_t block_stride;     // bytes
  int64_t head_stride;      // bytes
  int64_t query_stride;     // numbers, between tokens
  int64_t output_stride;    // numbers, between tokens
  int table_stride;
  int window;               // positions that a token sees; a large number for all
  float scale;
  float soft_cap;
};

struct MergeTilesArguments {
  const int4* tiles;           // {request, KV head, first row, first partial}
  const int* num_partials;     // [tiles]
  const int* first_tokens;     // [requests]
  const int* counts;           // [requests]
  const float* partial_output;
  const float* partial_lse;
  const float* sinks;          // [heads], or null
  Number* output;
  int64_t output_stride;
};

namespace {
constexpr int kGroup = GROUP;

struct Item {
  int request, kv_head, first_row, partial, rows;
  int64_t first_token;

  __device__ __forceinline__ explicit Item(const PrefillArguments& a) {
    const int4 work = a.work[blockIdx.x];
    request = work.x, kv_head = work.y, first_row = work.z, partial = work.w;
    rows = a.counts[request] * kGroup;
    first_token = a.first_tokens[request];
  }
  __device__ __forceinline__ void store_queries(const PrefillArguments& a,
                                                unsigned char* shared) const {
    for (int k = threadIdx.x; k < kTileRows * kQueryChunks; k += kTileThreads) {
      const int row = first_row + k / kQueryChunks, chunk = k % kQueryChunks;
      const Number* from = a.queries + (first_token + row / kGroup) * a.query_stride +
                           (kv_head * kGroup + row % kGroup) * kDim + chunk * 8;
      store_query_chunk(shared, row - first_row, chunk, row < rows ? from : nullptr);
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(kTileThreads, MIN_BLOCKS)
prefill_attention(const __grid_constant__ PrefillArguments a) {
  BY_SHARED(shared);
  const int warp = threadIdx.x >> 5, g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
  TileResult result;
  {
    const Item item(a);
    item.store_queries(a, shared);
    RowLimits limits;
    limits.reach = a.window;
    const int start = a.starts[item.request];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = item.first_row + warp * kWarpRows + r * 16 + h * 8 + g;
        // A piece ends at its last row's limit or at a multiple of 64, so limits need no cut.
        limits.to[r][h] = row < item.rows ? start + row / kGroup + (PLANT != 14) : 0;
      }
    const KeyValues kv{
        a.keys + item.kv_head * a.head_stride, a.values + item.kv_head * a.head_stride,
        a.block_tables + static_cast<int64_t>(item.request) * a.table_stride, a.block_stride};
    const int2 range = a.ranges[blockIdx.x];
    attend_tile(result, shared, kv, limits, range.x, range.y,
                (a.key_scales ? a.key_scales[item.kv_head] : 1.f) * a.scale, a.soft_cap);
  }

  const Item item(a);  // read anew: registers are short while the tile is computed
  const float value_scale = a.value_scales ? a.value_scales[item.kv_head] : 1.f;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int in_tile = warp * kWarpRows + r * 16 + h * 8 + g, row = item.first_row + in_tile;
      if (row >= item.rows) continue;
      RowSum sum = result.rows[r][h];
      const int head = item.kv_head * kGroup + row % kGroup;
      float fade = 1.f;
      if (item.partial < 0 && a.sinks) {
        const float sink = a.sinks[head] * kLog2e, most = fmaxf(sum.most, sink);
        fade = exp2_fast(sum.most - most);
        sum.sum = sum.sum * fade + exp2_fast(sink - most);
      }
      const float factor = sum.sum > 0.f ? fade * value_scale / sum.sum : 0.f;
      if (item.partial < 0) {
        store_row(a.output + (item.first_token + row / kGroup) * a.output_stride + head * kDim,
                  result.output[r], h, t, factor);
        continue;
      }
      const int64_t at = static_cast<int64_t>(item.partial) * kTileRows + in_tile;
      store_partial(a.partial_output + at * kDim, result.output[r], h, t, factor);
      if (t == 0) a.partial_lse[at] = sum.lse();
    }
}

// One thread block of kDim threads a row of a tile that was cut.
extern "C" __global__ void __launch_bounds__(HEAD_DIM)
merge_tiles(const __grid_constant__ MergeTilesArguments a) {
  const int index = blockIdx.x / kTileRows, in_tile = blockIdx.x % kTileRows, dim = threadIdx.x;
  const int4 tile = a.tiles[index];
  const int row = tile.z + in_tile, request = tile.x;
  if (row >= a.counts[request] * kGroup) return;
  const int count = a.num_partials[index], head = tile.y * kGroup + row % kGroup;
  const int64_t first = static_cast<int64_t>(tile.w) * kTileRows + in_tile;
  Merged all;
  for (int i = 0; i < count; ++i) all.see(a.partial_lse[first + i * kTileRows]);
  if (a.sinks) all.see(a.sinks[head] * kLog2e);
  float value = 0.f;
  for (int i = 0; i < count; ++i) {
    const float weight = all.weight(a.partial_lse[first + i * kTileRows]);
    value += weight * a.partial_output[(first + static_cast<int64_t>(i) * kTileRows) * kDim + dim];
    all.sum += weight;
  }
  if (a.sinks) all.sum += all.weight(a.sinks[head] * kLog2e);
  value = all.sum > 0.f ? value / all.sum : 0.f;
  const int64_t token = a.first_tokens[request] + row / kGroup;
  a.output[token * a.output_stride + head * kDim + dim] = to_number(value);
}
