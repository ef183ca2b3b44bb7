// The number type of the model, chosen by BF16: bfloat16 (1) or half (0).
#pragma once
#include "prims.cuh"

#ifndef BF16
#error "define BF16"
#endif

namespace by {
#if BF16
using Number = __nv_bfloat16;
#else
using Number = __half;
#endif

__device__ __forceinline__ float to_float(Number x) {
#if BF16
  return __bfloat162float(x);
#else
  return __half2float(x);
#endif
}
__device__ __forceinline__ Number to_number(float x) {
#if BF16
  return __float2bfloat16(x);
#else
  return __float2half(x);
#endif
}

struct Eight {  // eight numbers, as they lie in memory
  Number at[8];
};
static_assert(sizeof(Eight) == 16);

__device__ __forceinline__ Eight load8(const Number* from) {
  const Bytes16 bytes = *reinterpret_cast<const Bytes16*>(from);
  Eight eight;
  memcpy(&eight, &bytes, 16);
  return eight;
}
__device__ __forceinline__ void store8(void* to, const Eight& eight) {
  Bytes16 bytes;
  memcpy(&bytes, &eight, 16);
  *reinterpret_cast<Bytes16*>(to) = bytes;
}
}  // namespace by
