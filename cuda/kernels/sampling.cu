// Chooses one token of each row of logits: the likeliest, or by Gumbel-max among those that min-p,
// top-k and top-p leave, in this order. Nothing is sorted: the least likely token that stays is
// found digit by digit, from counts or from sums of probabilities.
//
// Probabilities are summed as whole numbers of 2^-40 of the likeliest one, so that sums do not
// depend on their order and a row's token depends on nothing but the row. Among equals the lower
// id counts as likelier. One thread block a row. Compile-time: LOGITS (0 half, 1 bfloat16, 2
// float32).
#include "philox.cuh"

using namespace by;

namespace {
#if LOGITS == 2
using Logit = float;
#elif LOGITS == 1
using Logit = __nv_bfloat16;
#else
using Logit = __half;
#endif
}  // namespace

struct SampleArguments {
  const Logit* logits;     // [rows][vocabulary]
  const int* parameters;   // [rows][8]: temperature, top_p, min_p as float bits (temperature 0: the
                           // likeliest), top_k (0: all), seed low, seed high, choice, position
  int* tokens;             // [rows] what is chosen, an id of the whole vocabulary
  float* scores;           // [rows] its score, noise included
  int* failed;             // [rows] 1 where a logit is NaN or +inf, or all are -inf
  int64_t row_stride;      // numbers
  int vocabulary;          // logits in a row
  int offset;              // id of the first one, a multiple of 4
};

namespace {
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

struct Kept {  // tokens that may be drawn: above the key, and those of it up to the last id
  uint32_t key;
  int last;
};

__device__ __forceinline__ Kept truncate(const Row& row, float most, float top_p, float min_p, int top_k,
                         Shared& s) {
  // Never the keys of -inf: those tokens have no probability.
  uint32_t least = key_of(-3.402823466e38f);
  if (min_p > 0.f) {
    const uint32_t floor = key_of(most + logf(min_p));
    least = floor > least ? floor : least;
  }
  Kept kept{least, row.vocabulary};
  uint32_t of_key = ~0u;
  if (top_k > 0) {
    unsigned long long there = 0;
    for (int i = threadIdx.x; i < row.vocabulary; i += kThreads)
      there += key_of(row.score(i)) >= least;
    if (block_sum(there, s) > static_cast<unsigned long long>(top_k)) {
      select<false>(row, most, least, top_k, s);
      kept.key = s.key, of_key = s.kept;
    }
  }
  if (top_p < 1.f) {
    unsigned long long mass = 0, each = 0;
    for (int i = threadIdx.x; i < row.vocabulary; i += kThreads) {
      const float score = row.score(i);
      const uint32_t key = key_of(score);
      if (key > kept.key || (key == kept.key && of_key == ~0u)) mass += mass_of(score, most);
      if (key == kept.key) each = mass_of(score, most);
    }
    mass = block_sum(mass, s);
    if (of_key != ~0u) {  // each of the equals that stay has the same; who holds none says 0
#pragma unroll
      for (int turn = 16; turn > 0; turn >>= 1) {
        const unsigned long long other = __shfl_xor_sync(~0u, each, turn);
        each = other > each ? other : each;
      }
      __syncthreads();
      if ((threadIdx.x & 31) == 0) s.sums[threadIdx.x >> 5] = each;
      __syncthreads();
      for (int w = 0; w < kWarps; ++w) each = s.sums[w] > each ? s.sums[w] : each;
      mass += of_key * each;
    }
    const double bound = static_cast<double>(top_p) * static_cast<double>(mass);
    const unsigned long long whole = static_cast<unsigned long long>(bound);
    __syncthreads();
    select<true>(row, most, kept.key, whole + (static_cast<double>(whole) < bound ? 1 : 0), s);
    kept.key = s.key, of_key = s.kept;
  }
  if (of_key != ~0u) kept.last = last_of_equals(row, kept.key, of_key, s);
  return kept;
}
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 2)
sample_rows(const __grid_constant__ SampleArguments a) {
  BY_SHARED(bytes);
  Shared& s = *reinterpret_cast<Shared*>(bytes);
  const int* parameters = a.parameters + blockIdx.x * 8;
  const float temperature = __int_as_float(parameters[0]);
  const bool greedy = temperature == 0.f;
  const Row row{a.logits + blockIdx.x * a.row_stride, greedy ? 1.f : temperature, a.vocabulary};

  const float infinity = __int_as_float(0x7f800000);
  Best best{-infinity, 0x7fffffff};
  int bad = 0;
  for (int i = threadIdx.x; i < row.vocabulary; i += kThreads) {
    const float x = row.score(i);
    bad |= !(x < infinity);  // NaN is not below
    best.see(x, i);
  }
  best = block_best(best, s);
#pragma unroll
  for (int turn = 16; turn > 0; turn >>= 1) bad |= __shfl_xor_sync(~0u, bad, turn);
  if ((threadIdx.x & 31) == 0) s.bad[threadIdx.x >> 5] = bad;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) bad |= s.bad[w];
  bad |= best.score == -infinity;
  if (!greedy && !bad) {  // the same in every thread
    const float most = best.score;
    const float top_p = __int_as_float(parameters[1]), min_p = __int_as_float(parameters[2]);
    const int top_k = parameters[3];
    Kept kept{0, row.vocabulary};
    if (top_p < 1.f || min_p > 0.f || top_k > 0)
      kept = truncate(row, most, top_p, min_p, top_k, s);
    best = {-infinity, 0x7fffffff};
    for (int i = threadIdx.x * 4; i < row.vocabulary; i += kThreads * 4) {
      const Words words = philox4x32((a.offset + i) / 4, parameters[7], parameters[6], 0,
                                     parameters[4], parameters[5]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (i + e >= row.vocabulary) break;
        const float x = row.score(i + e);
        const uint32_t key = key_of(x);
        if (key > kept.key || (key == kept.key && i + e <= kept.last))
          best.see(x + gumbel(words.at[e]), i + e);
      }
    }
    best = block_best(best, s);
  }
  if (threadIdx.x == 0) {
    a.tokens[blockIdx.x] = bad ? 0 : a.offset + best.id;
    a.scores[blockIdx.x] = best.score;
    a.failed[blockIdx.x] = bad;
  }
}
