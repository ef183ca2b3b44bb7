// What a model thought of tokens: the log probability and the rank of one, and the likeliest of its
// row with theirs, best first. One thread block for each token asked for.
#include "rows.cuh"

using namespace by;

struct LogprobArguments {
  const Logit* logits;   // [all rows][vocabulary]
  const int* rows;       // [tokens] whose row
  const int* chosen;     // [tokens] ids
  const int* tops;       // [tokens] how many likeliest, at most `most` and the vocabulary
  float* logprobs;       // [tokens][1 + most] of the token, then of the likeliest
  int* ids;              // [tokens][1 + most] the token's rank, from 1, then the likeliest
  int64_t row_stride;    // numbers
  int vocabulary;
  int most;
};

namespace {
constexpr int kMostTop = 64;

struct Scored {
  Shared common;
  Best top[kMostTop];
  float sums[kWarps];
  uint32_t found;
};

// The sum over the block, the same in every thread and in every run.
__device__ __forceinline__ float block_total(float x, Scored& s) {
#pragma unroll
  for (int turn = 16; turn > 0; turn >>= 1) x += __shfl_xor_sync(~0u, x, turn);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.sums[threadIdx.x >> 5] = x;
  __syncthreads();
  x = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) x += s.sums[w];
  return x;
}
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 2)
score_tokens(const __grid_constant__ LogprobArguments a) {
  BY_SHARED(bytes);
  Scored& s = *reinterpret_cast<Scored*>(bytes);
  const Row row{a.logits + a.rows[blockIdx.x] * a.row_stride, 1.f, a.vocabulary};
  const float infinity = __int_as_float(0x7f800000);
  const float own = row.score(a.chosen[blockIdx.x]);
  Best best{-infinity, 0x7fffffff};
  unsigned long long above = 0;
  for (int i = threadIdx.x; i < row.vocabulary; i += kThreads) {
    const float x = row.score(i);
    best.see(x, i);
    above += x > own;
  }
  best = block_best(best, s.common);
  above = block_sum(above, s.common);
  // NaN and +inf make every sum NaN, which is what they are worth.
  float sum = 0.f;
  for (int i = threadIdx.x; i < row.vocabulary; i += kThreads)
    sum += exp2_fast((row.score(i) - best.score) * kLog2e);
  const float all = best.score + logf(block_total(sum, s));

  const int64_t to = static_cast<int64_t>(blockIdx.x) * (1 + a.most);
  if (threadIdx.x == 0) {
    a.logprobs[to] = own - all;
    a.ids[to] = static_cast<int>(above) + 1;
    s.found = 0;
  }
  const int top = a.tops[blockIdx.x];
  if (top == 0) return;  // the same in every thread
  select<false>(row, 0.f, 0, top, s.common);
  const uint32_t key = s.common.key;
  const int last = last_of_equals(row, key, s.common.kept, s.common);
  for (int i = threadIdx.x; i < row.vocabulary; i += kThreads) {
    const float x = row.score(i);
    if (key_of(x) > key || (key_of(x) == key && i <= last)) {
      const uint32_t place = atomicAdd(&s.found, 1u);
      if (place < kMostTop) s.top[place] = {x, i};
    }
  }
#if PLANT != 31
  __syncthreads();
#endif
  if (static_cast<int>(threadIdx.x) < top) {
    const Best mine = s.top[threadIdx.x];
    int place = 1;
    for (int other = 0; other < top; ++other) {
      const Best its = s.top[other];
      place += its.score > mine.score || (its.score == mine.score && its.id < mine.id);
    }
#if PLANT == 32
    place = 1 + threadIdx.x;
#endif
    a.logprobs[to + place] = mine.score - all;
    a.ids[to + place] = mine.id;
  }
}
