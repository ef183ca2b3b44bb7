// Chooses one token of each row of logits: the likeliest, or by Gumbel-max among those that min-p,
// top-k and top-p leave, in this order. Nothing is sorted: see rows.cuh.
//
// Probabilities are summed as whole numbers of 2^-40 of the likeliest one, so that sums do not
// depend on their order and a row's token depends on nothing but the row. Among equals the lower
// id counts as likelier. One thread block a row. Compile-time: LOGITS (0 half, 1 bfloat16, 2
// float32).
#include "philox.cuh"
#include "rows.cuh"

using namespace by;

struct SampleArguments {
  const Logit* logits;     // [rows][vocabulary]
  const int* parameters;   // [rows][8]: temperature, top_p, min_p as float bits (temperature 0: the
                           // likeliest), top_k (0: all), seed low, seed high, choice, position
  int* tokens;             // [rows] what is chosen, an id of the whole vocabulary
  float* scores;           // [rows] its score, noise included
  int* failed;             // [rows] 1 where a logit is NaN or +inf, 2 where all are -inf
  int64_t row_stride;      // numbers
  int vocabulary;          // logits in a row
  int offset;              // id of the first one, a multiple of 4
};

namespace {
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
  if (!bad && best.score == -infinity) bad = 2;
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
