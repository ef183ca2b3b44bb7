// Attention over several ranges of positions, put together from partial results.
//
// A partial result is the normalised output of one range, and the base-2 logarithm of the sum of
// its weights; `kNothing` stands for a range in which nothing was seen.
#pragma once
#include "numbers.cuh"

struct MergeArguments {
  const float* partial_output;  // [partials][group][dim]
  const float* partial_lse;     // [partials][group], base 2
  const int* first;             // [requests][KV heads] the first of its partials
  const int* count;             // [requests][KV heads]; 0: the output is already written
  const int* tokens;            // [requests] index of the request's query
  const float* sinks;           // [heads], or null
  by::Number* output;           // [tokens][heads][dim]
  int64_t output_stride;        // numbers, between tokens
  int heads;
};

namespace by {
// Weights of several ranges, relative to the greatest: `see` all of them first.
struct Merged {
  float most = kNothing, sum = 0.f;
  __device__ __forceinline__ void see(float lse) { most = fmaxf(most, lse); }
  __device__ __forceinline__ float weight(float lse) const {
    return lse == kNothing ? 0.f : exp2_fast(lse - most);
  }
  __device__ __forceinline__ float lse() const { return sum > 0.f ? most + log2_fast(sum) : kNothing; }
};

// One thread block of kDim threads a (request, query head).
template <int Group>
__device__ __forceinline__ void merge_rows(const MergeArguments& a) {
  const int request = blockIdx.x / a.heads, head = blockIdx.x % a.heads, dim = threadIdx.x;
  const int at = request * (a.heads / Group) + head / Group, row = head % Group;
  const int count = a.count[at];
  if (count == 0) return;
  const float* lse = a.partial_lse + static_cast<int64_t>(a.first[at]) * Group + row;
  const float* part = a.partial_output + (static_cast<int64_t>(a.first[at]) * Group + row) * HEAD_DIM;
  Merged all;
  for (int i = 0; i < count; ++i) all.see(lse[i * Group]);
  if (a.sinks) all.see(a.sinks[head] * kLog2e);
  float value = 0.f;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float weight = all.weight(lse[i * Group]);
    value += weight * part[static_cast<int64_t>(i) * Group * HEAD_DIM + dim];
    all.sum += weight;
  }
  if (a.sinks) all.sum += all.weight(a.sinks[head] * kLog2e);
  value = all.sum > 0.f ? value / all.sum : 0.f;
  a.output[a.tokens[request] * a.output_stride + head * HEAD_DIM + dim] = to_number(value);
}
}  // namespace by
