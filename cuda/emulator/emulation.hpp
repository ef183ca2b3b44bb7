// Host emulation of the part of CUDA that our kernels use: what a kernel's own unit sees.
//
// One fiber a CUDA thread, blocks one after another. The machine behind it (fibers.cpp,
// collectives.cpp) is built once and never instrumented, so that under a sanitizer only the
// kernels' own accesses are watched. C++20, g++ 12 or newer. Checked beyond values:
//   * between barriers, threads and blocks run in a seeded random order;
//   * an asynchronous copy or wgmma lands when issued or when waited for, by coin flip: a missing
//     wait reads poison, a missing barrier before a refill overwrites what is in use;
//   * shared memory starts as NaN bytes in every block, exactly as large as was asked for;
//   * barriers and collectives that not all threads reach: reported with file and line of each;
//   * -fsanitize=address sees one byte outside dynamic shared memory;
//   * -fsanitize=thread sees races: only barriers order memory, as in CUDA.
// Not seen: bank conflicts, coalescing, occupancy, races between blocks, errors of approximate
// instructions. Spin-waits between blocks would never end.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <tuple>
#include <type_traits>

#undef __shared__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
// A static of the host would be neither poisoned nor guarded.
#define __shared__ static_assert(false, "take dynamic shared memory: BY_SHARED(name)");
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace emu {
using Where = std::source_location;

struct Copy {
  void* to;
  const void* from;
  uint32_t bytes, from_bytes;  // the rest is filled with zeros
};

// The machine.
const dim3& thread_index();
const dim3& block_index();
const dim3& block_shape();
const dim3& grid_shape();
int lane();
unsigned char* shared_memory();
uint32_t shared_offset(const void*);  // what an address is in the device's shared window
void barrier(int id, int threads, const char* what, Where);
void barrier_arrive(int id, int threads, Where);
void warp_barrier(uint32_t mask, Where);
uint64_t shuffle(uint32_t mask, uint64_t value, int from, const char* what, Where);  // < 0: own
uint32_t ballot(uint32_t mask, bool predicate, Where);
void load_matrices(uint32_t* out, const uint16_t (&row)[8], bool transposed, Where);
void mma_m16n8k16(float* c, const uint32_t* a, const uint32_t* b, bool bf16, Where);
void wgmma(float* d, int n, uint64_t a, uint64_t b, bool b_transposed, bool bf16, Where);
void wgmma(float* d, int n, const uint32_t* a, uint64_t b, bool b_transposed, bool bf16, Where);
void wgmma_commit(Where);
void wgmma_wait(uint32_t keep, Where);
bool copy_later(const Copy&);  // false: copy now
void copy_commit();
bool copy_due(uint32_t keep, Copy&);  // the next copy that this wait must land
[[noreturn]] void fail(const char*);
int run(const int* shape, size_t shared_bytes, int order, int landing, uint64_t seed,
        void (*entry)(void*), void* argument);

// In the kernel's unit, so that sanitizers see who touches what.
inline void do_copy(const Copy& c) {
  if (c.from_bytes) std::memcpy(c.to, c.from, c.from_bytes);
  if (c.from_bytes < c.bytes)
    std::memset(static_cast<char*>(c.to) + c.from_bytes, 0, c.bytes - c.from_bytes);
}
inline void copy_async(void* to, const void* from, uint32_t bytes, uint32_t from_bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes ||
      (from_bytes && reinterpret_cast<uintptr_t>(from) % bytes))
    fail("misaligned cp.async");
  const Copy c{to, from, bytes, from_bytes};
  if (!copy_later(c)) do_copy(c);
}
inline void copy_wait(uint32_t keep) {
  for (Copy c; copy_due(keep, c);) do_copy(c);
}
template <bool Transposed>
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, Where where) {
  if (reinterpret_cast<uintptr_t>(row) & 15) fail("misaligned ldmatrix row");
  uint16_t in[8];
  std::memcpy(in, row, 16);  // read by the lane that names the row
  load_matrices(r, in, Transposed, where);
}
template <class T>
inline T shuffle_any(uint32_t mask, T value, int from, const char* what, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, from, what, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
// The shape of cuLaunchKernel: one pointer an argument.
template <class... P>
int call(void (*kernel)(P...), const int* shape, size_t shared_bytes, void** arguments, int order,
         int landing, uint64_t seed) {
  struct Bound {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> values;
  } bound{kernel, {}};
  size_t i = 0;
  std::apply([&](auto&... x) { (std::memcpy(&x, arguments[i++], sizeof(x)), ...); }, bound.values);
  return run(
      shape, shared_bytes, order, landing, seed,
      [](void* p) {
        auto* b = static_cast<Bound*>(p);
        std::apply(b->kernel, b->values);
      },
      &bound);
}
}  // namespace emu

#define EMU_EXPORT(name)                                                                      \
  extern "C" int emu_##name(const int* shape, size_t shared_bytes, void** arguments, int order, \
                            int landing, uint64_t seed) {                                     \
    return emu::call(&name, shape, shared_bytes, arguments, order, landing, seed);            \
  }

#include "cuda_names.hpp"
