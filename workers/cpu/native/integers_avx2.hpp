// Eight whole numbers of 32 bits, or four doubles. The twin of `integers_avx512.hpp`, name by name.
#pragma once

#include "vector_avx2.hpp"

namespace blockyard {

using Integers = __m256i;
using Doubles = __m256d;
constexpr int kDoubles = 4;

inline Integers all_of(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
inline Integers load_integers(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store_integers(void* to, Integers values) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), values);
}
inline Integers add(Integers a, Integers b) { return _mm256_add_epi32(a, b); }
inline Integers quarters(Integers a) { return _mm256_srli_epi32(a, 2); }
inline Integers exclusive_or(Integers a, Integers b, Integers c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}

// The products of 64 bits with a number that all lanes of `by` hold, in halves.
inline void multiply(Integers a, Integers by, Integers& upper, Integers& lower) {
  const Integers even = _mm256_mul_epu32(a, by);
  const Integers odd = _mm256_mul_epu32(_mm256_shuffle_epi32(a, 0xf5), by);
  lower = _mm256_blend_epi32(even, _mm256_shuffle_epi32(odd, 0xa0), 0xaa);
  upper = _mm256_blend_epi32(odd, _mm256_shuffle_epi32(even, 0xf5), 0x55);
}

// Every four neighbouring lanes of four vectors, transposed: first lanes to the first vector.
inline void transpose_fours(Integers (&in)[4]) {
  const Integers a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpackhi_epi32(in[0], in[1]);
  const Integers c = _mm256_unpacklo_epi32(in[2], in[3]), d = _mm256_unpackhi_epi32(in[2], in[3]);
  in[0] = _mm256_unpacklo_epi64(a, c), in[1] = _mm256_unpackhi_epi64(a, c);
  in[2] = _mm256_unpacklo_epi64(b, d), in[3] = _mm256_unpackhi_epi64(b, d);
}

// Of each lane the vector of `from` that the lowest two bits of `which` name.
inline Integers one_of_four(Integers which, const Integers (&from)[4]) {
  // The highest bit of a lane decides.
  const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(which, 31));
  const __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(which, 30));
  const auto either = [](Integers a, Integers b, __m256 second) {
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), second));
  };
  return either(either(from[0], from[1], low), either(from[2], from[3], low), high);
}

// (2^32 - 1 - word) / 2^32 without its last bit.
inline Vector share_above(Integers words) {
  const Integers left = _mm256_srli_epi32(_mm256_andnot_si256(words, _mm256_set1_epi32(-1)), 1);
  return _mm256_mul_ps(_mm256_cvtepi32_ps(left), _mm256_set1_ps(0x1p-31f));
}

// A bit for each lane; none where one is a NaN, but in `lanes_of_nan`.
inline uint32_t lanes_below(Vector a, Vector b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
inline uint32_t lanes_from(Vector a, Vector b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
inline uint32_t lanes_of_nan(Vector a) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}

inline Doubles all_of(double value) { return _mm256_set1_pd(value); }
inline Doubles lower_half(Vector a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
inline Doubles upper_half(Vector a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
// c - a * b
inline Doubles fnma(Doubles a, Doubles b, Doubles c) { return _mm256_fnmadd_pd(a, b, c); }
inline Doubles greatest(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline Integers bits_of(Doubles a) { return _mm256_castpd_si256(a); }

// x times 2^n, where the lowest bits of `bits` are the whole number n and the result is normal.
inline Doubles times_power(Doubles x, Doubles bits) {
  const __m256i exponent = _mm256_slli_epi64(bits_of(bits), 52);
  return _mm256_castsi256_pd(_mm256_add_epi64(bits_of(x), exponent));
}

// Of 64 bits each.
inline Integers add_long(Integers a, Integers b) { return _mm256_add_epi64(a, b); }
inline Integers subtract_long(Integers a, Integers b) { return _mm256_sub_epi64(a, b); }

}  // namespace blockyard
