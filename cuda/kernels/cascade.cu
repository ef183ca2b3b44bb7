// Attention of many requests over the blocks that all of them begin with, read once for the group.
//
// Rows are the query heads of the group's members: row r is member r / GROUP, head r % GROUP of the
// KV head. Each sees the whole prefix, so nothing is masked but its end. Results are partial ones;
// the decode kernel adds those of each member's own positions, and merge_partials puts them
// together. Safe in a captured graph: how much work there is is read from device memory.
// Compile-time: GROUP, and those of tile.cuh.
#include "tile.cuh"

using namespace by;

struct CascadeArguments {
  const Number* queries;      // [tokens][heads][dim]
  const uint8_t* keys;        // this layer's, in block 0
  const uint8_t* values;
  const int* block_tables;    // [requests][table_stride]
  const int4* prefix_work;    // {group, KV head, first row, piece}
  const int* num_prefix_work; // [1]
  const int2* ranges;         // [work] {first position, position past the last}
  const int* first_members;   // [groups + 1] where a group's members begin
  const int* members;         // requests, group after group
  const int* tokens;          // [requests] index of the request's query
  const int* first;           // [requests][KV heads] the first of its partial results
  const float* key_scales;    // [KV heads], or null
  const float* value_scales;
  float* partial_output;      // [partials][GROUP][dim]
  float* partial_lse;         // [partials][GROUP], base 2
  int64_t block_stride;       // bytes
  int64_t head_stride;        // bytes
  int64_t query_stride;       // numbers, between tokens
  int table_stride;
  int kv_heads;
  float scale;
  float soft_cap;
};

namespace {
constexpr int kGroup = GROUP;
}

extern "C" __global__ void __launch_bounds__(128, MIN_BLOCKS)
attend_shared_prefix(const __grid_constant__ CascadeArguments a) {
  BY_SHARED(shared);
  if (static_cast<int>(blockIdx.x) >= *a.num_prefix_work) return;
  const int warp = threadIdx.x >> 5, g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
  TileResult result;
  {
    const int4 work = a.prefix_work[blockIdx.x];
    const int kv_head = work.y, first_row = work.z;
    const int* members = a.members + a.first_members[work.x];
    const int rows = (a.first_members[work.x + 1] - a.first_members[work.x]) * kGroup;
    for (int k = threadIdx.x; k < kTileRows * kQueryChunks; k += kTileThreads) {
      const int in_tile = k / kQueryChunks, chunk = k % kQueryChunks, row = first_row + in_tile;
      const Number* from = nullptr;
      if (row < rows)
        from = a.queries + a.tokens[members[row / kGroup]] * a.query_stride +
               (kv_head * kGroup + row % kGroup) * kDim + chunk * 8;
      store_query_chunk(shared, in_tile, chunk, from);
    }
    const int2 range = a.ranges[blockIdx.x];
    RowLimits limits;
    limits.reach = 0x3fffffff;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + warp * kWarpRows + r * 16 + h * 8 + g;
        limits.to[r][h] = row < rows ? range.y : 0;
      }
    const KeyValues kv{a.keys + kv_head * a.head_stride, a.values + kv_head * a.head_stride,
                       a.block_tables + static_cast<int64_t>(members[0]) * a.table_stride,
                       a.block_stride};
    attend_tile(result, shared, kv, limits, range.x, range.y,
                (a.key_scales ? a.key_scales[kv_head] : 1.f) * a.scale, a.soft_cap);
  }

  const int4 work = a.prefix_work[blockIdx.x];  // read anew: registers are short while it is computed
  const int kv_head = work.y;
  const int* members = a.members + a.first_members[work.x];
  const int rows = (a.first_members[work.x + 1] - a.first_members[work.x]) * kGroup;
  const float value_scale = a.value_scales ? a.value_scales[kv_head] : 1.f;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = work.z + warp * kWarpRows + r * 16 + h * 8 + g;
      if (row >= rows) continue;
      const RowSum& sum = result.rows[r][h];
      const int partial = a.first[members[row / kGroup] * a.kv_heads + kv_head] + work.w;
      const int64_t at = static_cast<int64_t>(partial) * kGroup + row % kGroup;
      store_partial(a.partial_output + at * kDim, result.output[r], h, t,
                    sum.sum > 0.f ? value_scale / sum.sum : 0.f);
      if (t == 0) a.partial_lse[at] = sum.lse();
    }
}
