// What the attention kernels share: how a head's keys and values lie in a block and in shared
// memory, and how they become operands of the tensor core.
//
// A block holds, for each KV head, BLOCK_SIZE rows of HEAD_DIM numbers without gaps, keys and
// values apart. float8 rows are read as they are and widened to half, which is exact; scales go on
// scores and outputs. Compile-time: HEAD_DIM, BF16, KV_FP8, BLOCK_SIZE.
#pragma once
#include "numbers.cuh"

namespace by {
constexpr int kDim = HEAD_DIM;
constexpr bool kFp8 = KV_FP8;
constexpr bool kMmaBf16 = BF16 && !KV_FP8;
constexpr int kRowBytes = kDim * (kFp8 ? 1 : 2);
constexpr int kChunks = kRowBytes / 16;  // of 16 bytes, in a row
constexpr int kSteps = kDim / 16;        // of Q.K
constexpr int kTiles = kDim / 8;         // of P.V: 8 dims each
static_assert(kDim % 16 == 0 && kDim <= 256);

// Rows in shared memory: 8 rows' same chunk must fall on 8 different sets of banks. Rows of a
// multiple of 128 bytes (and of 64) are swizzled, others are padded to an odd number of chunks.
constexpr int pitch_of(int chunks) {
  return (chunks % 8 == 0 || chunks == 4 ? chunks : chunks | 1) * 16;
}
template <int Chunks>
__device__ __forceinline__ int chunk_at(int row, int chunk) {
  if constexpr (Chunks % 8 == 0) return row * pitch_of(Chunks) + ((chunk ^ (row & 7)) << 4);
  if constexpr (Chunks == 4) return row * pitch_of(Chunks) + ((chunk ^ (row >> 1 & 3)) << 4);
  return row * pitch_of(Chunks) + (chunk << 4);
}
// The place `chunks` further on in the row, for an even number of chunks from an even place: one
// instruction on a constant, where chunk_at would keep a register for each place.
template <int Chunks>
__device__ __forceinline__ int chunks_on(int place, int chunks) {
  if constexpr (Chunks % 8 == 0 || Chunks == 4) return place ^ (chunks << 4);
  return place + (chunks << 4);
}
constexpr int kPitch = pitch_of(kChunks);
__device__ __forceinline__ int row_at(int row, int chunk) { return chunk_at<kChunks>(row, chunk); }

// A lane of a quad: the four lanes that hold one row of a score tile.
__device__ __forceinline__ float quad_max(float x BY_AND_WHERE) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x BY_AND_WHERE) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Where number `e` of output tile `n` goes, for lane `t` of its quad; e is 0 or 1.
__device__ __forceinline__ int output_dim(int n, int t, int e) {
  // float8 tiles hold the even or the odd ones of 16 dims: see multiply_values.
  return kFp8 ? (n >> 1) * 16 + 4 * t + 2 * e + (n & 1) : n * 8 + 2 * t + e;
}
// The first of two adjacent dims in a query operand's register; `high` is its k half.
__device__ __forceinline__ int query_dim(int step, int t, int high) {
  // The bytes a lane gets of float8 keys are dims 4t..4t+3, so queries take the same order: a sum
  // does not care.
  return step * 16 + (kFp8 ? 4 * t + 2 * high : 2 * t + 8 * high);
}

// scores[2][4] (16 rows x 16 tokens) += queries . keys; `keys`: 16 rows in shared memory.
__device__ __forceinline__ void multiply_keys(float (&scores)[2][4],
                                              const uint32_t (&queries)[kSteps][4],
                                              const unsigned char* keys, int lane) {
  const int matrix = lane >> 3, row = (lane & 7) + (kFp8 ? matrix & 1 : matrix >> 1) * 8;
  const int place = row_at(row, kFp8 ? matrix >> 1 : matrix & 1);
  if constexpr (!kFp8) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      uint32_t r[4];
      ldmatrix_x4<false>(r, keys + chunks_on<kChunks>(place, 2 * j));
      const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
      mma_16816<kMmaBf16>(scores[0], queries[j], b0);
      mma_16816<kMmaBf16>(scores[1], queries[j], b1);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSteps; j += 2) {
      uint32_t r[4];  // the last of an odd number of chunks is loaded twice
      ldmatrix_x4<false>(
          r, keys + (j + 1 < kChunks ? chunks_on<kChunks>(place, j) : row_at(row, j)));
#pragma unroll
      for (int jj = 0; jj < 2 && j + jj < kSteps; ++jj)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint32_t v = r[2 * jj + n];
          const uint32_t b[2] = {e4m3x2_to_half2(v & 0xffff), e4m3x2_to_half2(v >> 16)};
          mma_16816<false>(scores[n], queries[j + jj], b);
        }
    }
  }
}

// output (16 rows x kDim) += weights (16 rows x 16 tokens) . values.
__device__ __forceinline__ void multiply_values(float (&output)[kTiles][4],
                                                const uint32_t (&weights)[4],
                                                const unsigned char* values, int lane) {
  const int matrix = lane >> 3, row = (lane & 7) + (matrix & 1) * 8;
  const int place = row_at(row, matrix >> 1);
#pragma unroll
  for (int c = 0; c < kChunks; c += 2) {
    uint32_t r[4];
    ldmatrix_x4<true>(
        r, values + (c + 1 < kChunks ? chunks_on<kChunks>(place, c) : row_at(row, c)));
    if constexpr (!kFp8) {
      const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
      mma_16816<kMmaBf16>(output[c], weights, b0);
      mma_16816<kMmaBf16>(output[c + 1], weights, b1);
    } else {
      // Transposed as 16-bit numbers, bytes come as pairs of dims: split into even and odd dims,
      // with tokens 2t and 2t+1 side by side.
#pragma unroll
      for (int cc = 0; cc < 2 && c + cc < kChunks; ++cc)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const unsigned pick = odd ? 0x4431u : 0x4420u;
          const uint32_t b[2] = {e4m3x2_to_half2(__byte_perm(r[2 * cc], 0u, pick) & 0xffff),
                                 e4m3x2_to_half2(__byte_perm(r[2 * cc + 1], 0u, pick) & 0xffff)};
          mma_16816<false>(output[2 * (c + cc) + odd], weights, b);
        }
    }
  }
}

// One row's running softmax, in powers of two: `most` so far and the sum of 2^(score - most).
struct RowSum {
  float most = kNothing, sum = 0.f;
  __device__ __forceinline__ float lse() const {
    return sum > 0.f ? most + log2_fast(sum) : kNothing;
  }
};
}  // namespace by
