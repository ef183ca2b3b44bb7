// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), and standard
// Gumbel noise from its words. The same integers as workers/philox.py.
#pragma once
#include "prims.cuh"

namespace by {
struct Words {
  uint32_t at[4];
};

__device__ __forceinline__ Words philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                            uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t right = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(right >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(left >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(right);
    c3 = static_cast<uint32_t>(left);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// -log(-log(u)) for the middle u of the interval that the word names. Near 1, log(u) is taken from
// 1 - u, which float32 holds and u itself it does not.
__device__ __forceinline__ float gumbel(uint32_t word) {
  constexpr float kStep = 2.3283064365386963e-10f;  // 2^-32
  const float below = (static_cast<float>(word) + 0.5f) * kStep;
  const float above = (static_cast<float>(~word) + 0.5f) * kStep;
  const float surprise = word < 0x80000000u ? -logf(below) : -log1pf(-above);
  return -logf(surprise);
}
}  // namespace by
