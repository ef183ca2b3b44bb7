// The CUDA names that kernels may use directly, on top of the machine in emulation.hpp.
// What is missing here does not compile in the emulation: add it with its CUDA meaning.
#pragma once

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_shape())
#define gridDim (emu::grid_shape())
#define EMU_WHERE emu::Where where = emu::Where::current()

inline void __syncthreads(EMU_WHERE) { emu::barrier(0, 0, "__syncthreads", where); }
inline void __syncwarp(unsigned mask = ~0u, EMU_WHERE) { emu::warp_barrier(mask, where); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, EMU_WHERE) {
  const int lane = (emu::lane() & ~(width - 1)) | (from & (width - 1));
  return emu::shuffle_any(mask, value, lane, "__shfl_sync", where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int turn, int width = 32, EMU_WHERE) {
  const int own = emu::lane(), from = own ^ turn;
  const bool inside = (from & ~(width - 1)) <= (own & ~(width - 1));
  return emu::shuffle_any(mask, value, inside ? from : -1, "__shfl_xor_sync", where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int by, int width = 32, EMU_WHERE) {
  const int own = emu::lane();
  const bool inside = (own & (width - 1)) + by < width;
  return emu::shuffle_any(mask, value, inside ? own + by : -1, "__shfl_down_sync", where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by, int width = 32, EMU_WHERE) {
  const int own = emu::lane();
  const bool inside = (own & (width - 1)) - by >= 0;
  return emu::shuffle_any(mask, value, inside ? own - by : -1, "__shfl_up_sync", where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_WHERE) {
  return emu::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, EMU_WHERE) {
  return emu::ballot(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_WHERE) {
  return emu::ballot(mask, predicate != 0, where) == mask;
}

template <class T>
T atomicAdd(T* at, T value) {
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
  } else {  // fibers do not preempt each other; the atomic exchange is what a sanitizer must see
    T old, sum;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do sum = old + value;
    while (!__atomic_compare_exchange(at, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
  }
}
template <class T>
T atomicExch(T* at, T value) {
  T old;
  __atomic_exchange(at, &value, &old, __ATOMIC_RELAXED);
  return old;
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  __atomic_compare_exchange(at, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
T atomicMax(T* at, T value) {
  static_assert(std::is_integral_v<T>);
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t{a} * b >> 32; }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= unsigned(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return result;
}
