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
}  // namespace by
