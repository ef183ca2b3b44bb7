// Decode attention: one query token a request, split over the positions it reads.
//
// A thread block of 4 warps takes one work item: a request, a KV head and a range of positions.
// The GROUP query heads that share the KV head are the rows of one 16-row MMA tile. Each warp
// streams its own slices of 16 tokens through a private ring of asynchronous copies, so the main
// loop has no block-wide barrier. Ranges that are the whole of what a request sees are written to
// the output; others leave partial results, which merge_partials puts together.
//
// Safe in a captured graph: how much work there is is read from device memory.
// Compile-time: GROUP (1..16), SOFT_CAP, STAGES, and those of attention.cuh.
#include "attention.cuh"
#include "merge.cuh"

using namespace by;

struct DecodeArguments {
  const Number* queries;         // [tokens][heads][dim]
  const uint8_t* keys;           // this layer's, in block 0
  const uint8_t* values;
  const int* block_tables;       // [requests][table_stride]
  const int4* work;              // {request, KV head, first position, position past the last}
  const int* partials;           // [work] where the partial result goes; below 0: it is whole
  const int* num_work;           // [1]
  const int* tokens;             // [requests] index of the request's query
  const float* key_scales;       // [KV heads], or null
  const float* value_scales;
  const float* sinks;            // [heads], or null
  Number* output;                // [tokens][heads][dim]
  float* partial_output;         // [partials][GROUP][dim]
  float* partial_lse;            // [partials][GROUP], base 2
  int64_t block_stride;          // bytes
  int64_t head_stride;           // bytes
  int64_t query_stride;          // numbers, between tokens
  int64_t output_stride;         // numbers, between tokens
  int table_stride;
  float scale;
  float soft_cap;
};

namespace {
constexpr int kGroup = GROUP, kWarps = 4, kSlice = 16, kTile = kWarps * kSlice;
constexpr int kSliceBytes = kSlice * kPitch, kStageBytes = 2 * kSliceBytes;
constexpr bool kHigh = kGroup > 8;  // rows 8..15 are in use
// Copies issued at once hold their addresses in registers, of which wide heads have none to spare.
constexpr int kUnroll = kDim <= 128 ? 8 : 4;
static_assert(kGroup >= 1 && kGroup <= 16 && STAGES >= 2);

struct Slices {  // one warp's share of a work item's positions
  const DecodeArguments& a;
  unsigned char* ring;
  const int* table;
  int64_t head_offset;
  int begin, end, first, count, lane;

  // Start copying this warp's 16 tokens of tile `i`.
  __device__ __forceinline__ void load(int i) const {
    if (i < count) {
      unsigned char* to = ring + (i % STAGES) * kStageBytes;
      const int slice = first + i * kTile;
      const int mine = slice + (lane & 15);
      int64_t offset = 0;
      if (mine >= begin && mine < end)
        offset = table[mine / BLOCK_SIZE] * a.block_stride + (mine % BLOCK_SIZE) * kRowBytes;
#pragma unroll kUnroll
      for (int k0 = 0; k0 < kSlice * kChunks; k0 += 32) {
        const int k = k0 + lane, row = k / kChunks, chunk = k % kChunks;
        const int64_t from = head_offset + __shfl_sync(~0u, offset, row & 15) + chunk * 16;
        if (kSlice * kChunks % 32 != 0 && k >= kSlice * kChunks) continue;
        const bool seen = slice + row >= begin && slice + row < end;
        copy_async16(to + row_at(row, chunk), a.keys + from, seen);
        copy_async16(to + kSliceBytes + row_at(row, chunk), a.values + from, seen);
#if PLANT == 2
        if (i == count - 1 && row == kSlice - 1)
          copy_async16(ring + STAGES * kStageBytes, a.keys + from, seen);
#endif
      }
    }
    copy_commit();
  }
};

__device__ __forceinline__ void load_queries(uint32_t (&queries)[kSteps][4], const Number* rows,
                                             int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int row = g + 8 * half;
        uint32_t two = 0;  // rows past the group are zero
        if (row < kGroup) {
          const Number* p = rows + row * kDim + query_dim(j, t, high);
          two = pack2<kMmaBf16>(to_float(p[0]), to_float(p[1]));
        }
        queries[j][half + 2 * high] = two;
      }
}

// The warps' results in shared memory become the item's. The item is read anew: registers are short
// while its positions are read.
__device__ __forceinline__ void merge_warps(const DecodeArguments& a, const float* part,
                                            const float* part_most, const float* part_sum) {
  const int4 work = a.work[blockIdx.x];
  const int kv_head = work.y, partial = a.partials[blockIdx.x];
  const int64_t token = a.tokens[work.x];
  const float value_scale = a.value_scales ? a.value_scales[kv_head] : 1.f;
  for (int i = threadIdx.x; i < kGroup * kDim; i += 128) {
    const int row = i / kDim, dim = i % kDim, head = kv_head * kGroup + row;
    Merged all;
    float value = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all.see(part_most[w * kGroup + row]);
    if (partial < 0 && a.sinks) all.see(a.sinks[head] * kLog2e);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = all.weight(part_most[w * kGroup + row]);
      value += weight * part[(w * kGroup + row) * kDim + dim];
      all.sum += weight * part_sum[w * kGroup + row];
    }
    if (partial < 0 && a.sinks) all.sum += all.weight(a.sinks[head] * kLog2e);
    value = all.sum > 0.f ? value / all.sum * value_scale : 0.f;
    if (partial < 0) {
      a.output[token * a.output_stride + head * kDim + dim] = to_number(value);
    } else {
      a.partial_output[(static_cast<int64_t>(partial) * kGroup + row) * kDim + dim] = value;
      if (dim == 0) a.partial_lse[partial * kGroup + row] = all.lse();
    }
  }
}
}  // namespace

extern "C" __global__ void __launch_bounds__(128, MIN_BLOCKS)
decode_attention(const __grid_constant__ DecodeArguments a) {
  BY_SHARED(shared);
  if (static_cast<int>(blockIdx.x) >= *a.num_work) return;
  const int4 work = a.work[blockIdx.x];
  const int request = work.x, kv_head = work.y, begin = work.z, end = work.w;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int aligned = begin & ~(kTile - 1);
  const int count = begin < end ? (end - aligned + kTile - 1) / kTile : 0;
  const Slices slices{a,
                      shared + warp * STAGES * kStageBytes,
                      a.block_tables + static_cast<int64_t>(request) * a.table_stride,
                      kv_head * a.head_stride,
                      begin,
                      end,
                      aligned + warp * kSlice,
                      count,
                      lane};
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) slices.load(i);

  uint32_t queries[kSteps][4];
  const Number* query_rows =
      a.queries + a.tokens[request] * a.query_stride + kv_head * kGroup * kDim;
  if constexpr (kDim <= 128) load_queries(queries, query_rows, lane);

  float output[kTiles][4] = {};
  RowSum rows[2];
  const float scale = (a.key_scales ? a.key_scales[kv_head] : 1.f) * a.scale;

  for (int i = 0; i < count; ++i) {
#if PLANT != 3
    copy_wait<STAGES - 2>();
#endif
#if PLANT != 1
    __syncwarp();  // every lane's copies of this stage are there; the stage refilled next is free
#endif
    slices.load(i + STAGES - 1);
    const unsigned char* keys = slices.ring + (i % STAGES) * kStageBytes;
    const int slice = slices.first + i * kTile;

    // Wide heads leave no registers for queries: they come from the cache again for each slice.
    if constexpr (kDim > 128) load_queries(queries, query_rows, lane);
    float scores[2][4] = {};
    multiply_keys(scores, queries, keys, lane);

    float most[2] = {rows[0].most, rows[1].most};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int position = slice + n * 8 + 2 * t + (e & 1);
        float x = scores[n][e] * scale;
        if constexpr (SOFT_CAP) x = a.soft_cap * tanh_fast(x / a.soft_cap);
        scores[n][e] = position >= begin && position < end ? x * kLog2e : kNothing;
        most[e >> 1] = fmaxf(most[e >> 1], scores[n][e]);
      }
#if PLANT == 4
    if (slice + 2 * t < end) most[0] = quad_max(most[0]);
#else
    most[0] = quad_max(most[0]);
#endif
    if constexpr (kHigh) most[1] = quad_max(most[1]);
    float fade[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (most[h] == kNothing) most[h] = 0.f;  // nothing seen yet: all weights become 0
      fade[h] = h == 0 || kHigh ? exp2_fast(rows[h].most - most[h]) : 1.f;
      rows[h].most = most[h];
      rows[h].sum *= fade[h];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      output[n][0] *= fade[0], output[n][1] *= fade[0];
      if constexpr (kHigh) output[n][2] *= fade[1], output[n][3] *= fade[1];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = e < 2 || kHigh ? exp2_fast(scores[n][e] - most[e >> 1]) : 0.f;
        rows[e >> 1].sum += scores[n][e];
      }
    // A score tile is, as it lies in registers, the left operand of the next product.
    const uint32_t weights[4] = {
        pack2<kMmaBf16>(scores[0][0], scores[0][1]), pack2<kMmaBf16>(scores[0][2], scores[0][3]),
        pack2<kMmaBf16>(scores[1][0], scores[1][1]), pack2<kMmaBf16>(scores[1][2], scores[1][3])};
    multiply_values(output, weights, keys + kSliceBytes, lane);
  }

  // Put the four warps together through shared memory, whose ring is free once all copies landed.
  copy_wait<0>();
  __syncthreads();
  float* part = reinterpret_cast<float*>(shared);  // [warps][group][dim]
  float* part_most = part + kWarps * kGroup * kDim;  // [warps][group]
  float* part_sum = part_most + kWarps * kGroup;
#pragma unroll
  for (int h = 0; h < (kHigh ? 2 : 1); ++h) {
    rows[h].sum = quad_sum(rows[h].sum);
    const int row = g + 8 * h;
    if (row < kGroup) {
      float* to = part + (warp * kGroup + row) * kDim;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) to[output_dim(n, t, e)] = output[n][2 * h + e];
      if (t == 0) {
        part_most[warp * kGroup + row] = rows[h].sum > 0.f ? rows[h].most : kNothing;
        part_sum[warp * kGroup + row] = rows[h].sum;
      }
    }
  }
  __syncthreads();
  merge_warps(a, part, part_most, part_sum);
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
merge_partials(const __grid_constant__ MergeArguments a) {
  merge_rows<kGroup>(a);
}
