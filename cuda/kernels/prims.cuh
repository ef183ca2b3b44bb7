// Every hardware operation that our kernels use, behind one thin function each: PTX on the device,
// the emulation on the host (BY_EMULATED). Kernels include this and no other CUDA header.
#pragma once
#ifdef BY_EMULATED
#include "emulation.hpp"
#define BY_SHARED(name) unsigned char* name = emu::shared_memory()
#define BY_WHERE emu::Where where = emu::Where::current()
#define BY_AND_WHERE , BY_WHERE
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define BY_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#define BY_WHERE
#define BY_AND_WHERE
#ifdef __CUDACC_RTC__  // NVRTC has no <stdint.h>, and nvcc does not want these twice
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <stdint.h>
#endif
#endif

// A fault that a test plants, by number; 0 in every real build. See tests/cuda.
#ifndef PLANT
#define PLANT 0
#endif

namespace by {
constexpr float kLog2e = 1.4426950408889634f;
// Stands for minus infinity, and is finite: differences of two of them are no NaN.
constexpr float kNothing = -1e30f;

struct alignas(16) Bytes16 {
  uint32_t x, y, z, w;
};

#ifndef BY_EMULATED
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// 16 bytes from global to shared memory, later; !wanted fills with zeros and reads nothing.
__device__ __forceinline__ void copy_async16(void* to, const void* from, bool wanted) {
#ifdef BY_EMULATED
  emu::copy_async(to, from, 16, wanted ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
#endif
}
__device__ __forceinline__ void copy_commit() {
#ifdef BY_EMULATED
  emu::copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all but the newest `Keep` groups of the calling thread.
template <int Keep>
__device__ __forceinline__ void copy_wait() {
#ifdef BY_EMULATED
  emu::copy_wait(Keep);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(Keep) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit numbers; lane l names row l % 8 of matrix l / 8.
template <bool Transposed>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row BY_AND_WHERE) {
#ifdef BY_EMULATED
  emu::ldmatrix_x4<Transposed>(r, row, where);
#else
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// C(16x8, float) += A(16x16, rows) * B(16x8, columns), both bfloat16 or both half.
template <bool Bf16>
__device__ __forceinline__ void mma_16816(float (&c)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2] BY_AND_WHERE) {
#ifdef BY_EMULATED
  emu::mma_m16n8k16(c, a, b, Bf16, where);
#else
  if constexpr (Bf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ __forceinline__ float exp2_fast(float x) {
#ifdef BY_EMULATED
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
__device__ __forceinline__ float log2_fast(float x) {
#ifdef BY_EMULATED
  return std::log2(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
__device__ __forceinline__ float tanh_fast(float x) {
#ifdef BY_EMULATED
  return std::tanh(x);
#else
  // By exp(2x): tanh.approx is off by 2^-11, too much for a score. Infinite exp gives 1.
  return 1.f - 2.f / (exp2_fast(2.f * kLog2e * x) + 1.f);
#endif
}

__device__ __forceinline__ float inverse_root(float x) {
#ifdef BY_EMULATED
  return 1.f / std::sqrt(x);
#else
  return rsqrtf(x);
#endif
}

// Two floats rounded to bfloat16 or half, the first in the low bits.
template <bool Bf16>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t r;
  if constexpr (Bf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    memcpy(&r, &v, 4);
  } else {
    const __half2 v = __floats2half2_rn(low, high);
    memcpy(&r, &v, 4);
  }
  return r;
}
// Two e4m3 bytes, in the low 16 bits, to two halves: exact.
__device__ __forceinline__ uint32_t e4m3x2_to_half2(uint32_t two) {
  const __half2_raw h =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
  return static_cast<uint32_t>(h.x) | static_cast<uint32_t>(h.y) << 16;
}
}  // namespace by
