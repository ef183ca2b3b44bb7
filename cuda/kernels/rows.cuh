// A row of logits read by one thread block of 512: keys in the order of scores, the best of all, and
// the key of the last of so many likeliest, found digit by digit; nothing is sorted. Among equals
// the lower id counts as likelier. Compile-time: LOGITS (0 half, 1 bfloat16, 2 float32).
#pragma once
#include "prims.cuh"

namespace by {
#if LOGITS == 2
using Logit = float;
#elif LOGITS == 1
using Logit = __nv_bfloat16;
#else
using Logit = __half;
#endif
constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr float kMassUnit = 1099511627776.f;  // 2^40

__device__ __forceinline__ float value(Logit x) {
#if LOGITS == 2
  return x;
#elif LOGITS == 1
  return __bfloat162float(x);
#else
  return __half2float(x);
#endif
}
// Unsigned numbers in the order of the floats; +0 and -0 are one.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Best {  // the highest score, and of equals the lowest id
  float score;
  int id;

  __device__ __forceinline__ void see(float other, int other_id) {
    if (other > score || (other == score && other_id < id)) score = other, id = other_id;
  }
};

struct Shared {
  unsigned long long mass[256];
  uint32_t count[256];
  unsigned long long sums[kWarps];
  Best best[kWarps];
  int bad[kWarps];
  uint32_t key;
  uint32_t kept;
  uint32_t bin;
  unsigned long long above;
  int last;
};

struct Row {
  const Logit* logits;
  float temperature;
  int vocabulary;

  __device__ __forceinline__ float score(int i) const { return value(logits[i]) / temperature; }
};

__device__ __forceinline__ unsigned long long mass_of(float score, float most) {
  return static_cast<unsigned long long>(exp2_fast((score - most) * kLog2e) * kMassUnit);
}

// The sum over the block, the same in every thread.
__device__ __forceinline__ unsigned long long block_sum(unsigned long long x, Shared& s) {
#pragma unroll
  for (int turn = 16; turn > 0; turn >>= 1) x += __shfl_xor_sync(~0u, x, turn);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.sums[threadIdx.x >> 5] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) x += s.sums[w];
  return x;
}

__device__ __forceinline__ Best block_best(Best best, Shared& s) {
#pragma unroll
  for (int turn = 16; turn > 0; turn >>= 1) {
    const float score = __shfl_xor_sync(~0u, best.score, turn);
    const int id = __shfl_xor_sync(~0u, best.id, turn);
    best.see(score, id);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.best[threadIdx.x >> 5] = best;
#if PLANT != 1
  __syncthreads();
#endif
  for (int w = 0; w < kWarps; ++w) best.see(s.best[w].score, s.best[w].id);
  return best;
}

// Finds the key of the last token that stays when tokens of at least `least` are taken in order of
// likelihood until their count (or, by mass, the sum of their probabilities) reaches `bound`; in
// s.kept, how many of that very key stay. What is there must reach the bound.
template <bool ByMass>
__device__ __forceinline__ void select(const Row& row, float most, uint32_t least, unsigned long long bound,
                       Shared& s) {
  uint32_t prefix = 0;
  unsigned long long above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kThreads) s.count[i] = 0, s.mass[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.vocabulary; i += kThreads) {
      const float score = row.score(i);
      const uint32_t key = key_of(score);
      if (key < least || (shift < 24 && key >> (shift + 8) != prefix)) continue;
      atomicAdd(&s.count[key >> shift & 255], 1u);
      if constexpr (ByMass) atomicAdd(&s.mass[key >> shift & 255], mass_of(score, most));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 255;
      for (; bin > 0; --bin) {
        const unsigned long long more = ByMass ? s.mass[bin] : s.count[bin];
        if (s.count[bin] && above + more >= bound) break;
        above += more;
      }
      s.bin = bin;
      s.above = above;
    }
    __syncthreads();
    above = s.above;
    prefix = prefix << 8 | s.bin;
  }
  if (threadIdx.x == 0) {
    const uint32_t equals = s.count[s.bin];
    unsigned long long kept = bound - above;
    if constexpr (ByMass) {
      const unsigned long long each = equals ? s.mass[s.bin] / equals : 0;
      kept = each ? (bound - above + each - 1) / each : equals;
    }
    s.key = prefix;
#if PLANT == 2
    s.kept = equals;
#else
    s.kept = kept < equals ? static_cast<uint32_t>(kept) : equals;
#endif
  }
  __syncthreads();
}

// The id of the `count`-th token of exactly `key`, in order of ids.
__device__ __forceinline__ int last_of_equals(const Row& row, uint32_t key, uint32_t count, Shared& s) {
  uint32_t seen = 0;
  for (int begin = 0; begin < row.vocabulary; begin += kThreads) {
    const int i = begin + threadIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const bool equal = i < row.vocabulary && key_of(row.score(i)) == key;
    const unsigned lanes = __ballot_sync(~0u, equal);
    if (lane == 0) s.count[warp] = __popc(lanes);
    __syncthreads();
    uint32_t before = seen;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += s.count[w];
      seen += s.count[w];
    }
    before += __popc(lanes & ((1u << lane) - 1));
    if (equal && before + 1 == count) s.last = i;
    __syncthreads();
    if (seen >= count) break;  // the same in every thread
  }
  return s.last;
}
}  // namespace by
