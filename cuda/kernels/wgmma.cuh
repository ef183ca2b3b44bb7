// Hopper's warpgroup multiplication behind thin functions, for sm_90a. Descriptors and fragments are
// as the PTX manual gives them (asynchronous warpgroup level matrix instructions); no GPU has
// confirmed them yet.
//
// Operands in shared memory are panels: rows of 64 16-bit numbers, 128 bytes, whose 16-byte chunks
// are swizzled by the row's last three bits; a panel begins at a multiple of 1024 bytes. A thread
// holds of the product, 64 rows x N columns, what it would of mma.m16n8k16: warp w of the group has
// rows 16 w and on.
#pragma once
#include "prims.cuh"

namespace by {
constexpr int kPanelRow = 128, kPanelNumbers = 64;

__device__ __forceinline__ int panel_at(int row, int chunk) {
  return row * kPanelRow + ((chunk ^ (row & 7)) << 4);
}

// `leading`: bytes between panels, for operands that lie across (rows along k).
__device__ __forceinline__ uint64_t panel_descriptor(const void* at, int leading) {
#ifdef BY_EMULATED
  const uint32_t address = emu::shared_offset(at);
#else
  const uint32_t address = shared_address(at);
#endif
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | (static_cast<uint64_t>(leading >> 4 & 0x3fff) << 16) |
         (address >> 4 & 0x3fff);
}

// What ordinary stores and cp.async have put into shared memory, before wgmma reads it.
__device__ __forceinline__ void wgmma_sees_shared() {
#ifndef BY_EMULATED
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Registers written before, accumulators among them, are there for the next wgmma.
__device__ __forceinline__ void wgmma_fence() {
#ifndef BY_EMULATED
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit(BY_WHERE) {
#ifdef BY_EMULATED
  emu::wgmma_commit(where);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int Keep>
__device__ __forceinline__ void wgmma_wait(BY_WHERE) {
#ifdef BY_EMULATED
  emu::wgmma_wait(Keep, where);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Keep) : "memory");
#endif
}

#define BY_WGMMA_FROM_SHARED(N, TYPE, REGISTERS, A, B, OUTPUTS)                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" REGISTERS  \
               "}, %" A ", %" B ", 1, 1, 1, 0, 0;"                                               \
               : OUTPUTS                                                                         \
               : "l"(a), "l"(b))
#define BY_WGMMA_FROM_REGISTERS(N, TYPE, REGISTERS, A, B, OUTPUTS)                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" REGISTERS  \
               "}, {" A "}, %" B ", 1, 1, 1, 1;"                                                 \
               : OUTPUTS                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format off
#define BY_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BY_REGISTERS_64 BY_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BY_OUTPUTS_32 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define BY_OUTPUTS_64 BY_OUTPUTS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
// clang-format on

// d (64 x 64) += a (64 rows x 16) . b (64 rows x 16), both along their rows.
template <bool Bf16>
__device__ __forceinline__ void wgmma_64(float* d, uint64_t a, uint64_t b BY_AND_WHERE) {
#ifdef BY_EMULATED
  emu::wgmma(d, 64, a, b, false, Bf16, where);
#else
  if constexpr (Bf16)
    BY_WGMMA_FROM_SHARED(64, bf16, BY_REGISTERS_32, "32", "33", BY_OUTPUTS_32);
  else
    BY_WGMMA_FROM_SHARED(64, f16, BY_REGISTERS_32, "32", "33", BY_OUTPUTS_32);
#endif
}

// d (64 x N) += a (64 x 16, as mma.m16n8k16 has it) . b (16 rows x N, across).
template <bool Bf16, int N>
__device__ __forceinline__ void wgmma_across(float* d, const uint32_t (&a)[4],
                                             uint64_t b BY_AND_WHERE) {
#ifdef BY_EMULATED
  emu::wgmma(d, N, a, b, true, Bf16, where);
#else
  static_assert(N == 64 || N == 128);
  if constexpr (N == 64 && Bf16)
    BY_WGMMA_FROM_REGISTERS(64, bf16, BY_REGISTERS_32, "%32, %33, %34, %35", "36", BY_OUTPUTS_32);
  else if constexpr (N == 64)
    BY_WGMMA_FROM_REGISTERS(64, f16, BY_REGISTERS_32, "%32, %33, %34, %35", "36", BY_OUTPUTS_32);
  else if constexpr (Bf16)
    BY_WGMMA_FROM_REGISTERS(128, bf16, BY_REGISTERS_64, "%64, %65, %66, %67", "68", BY_OUTPUTS_64);
  else
    BY_WGMMA_FROM_REGISTERS(128, f16, BY_REGISTERS_64, "%64, %65, %66, %67", "68", BY_OUTPUTS_64);
#endif
}
}  // namespace by
