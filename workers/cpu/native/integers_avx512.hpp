// Sixteen whole numbers of 32 bits, or eight doubles. The twin of `integers_avx2.hpp`, name by
// name.
#pragma once

#include "vector_avx512.hpp"

namespace blockyard {

using Integers = __m512i;
using Doubles = __m512d;
constexpr int kDoubles = 8;

inline Integers all_of(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
inline Integers load_integers(const void* from) { return _mm512_loadu_si512(from); }
inline void store_integers(void* to, Integers values) { _mm512_storeu_si512(to, values); }
inline Integers add(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
inline Integers quarters(Integers a) { return _mm512_srli_epi32(a, 2); }
inline Integers exclusive_or(Integers a, Integers b, Integers c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}

// The products of 64 bits with a number that all lanes of `by` hold, in halves.
inline void multiply(Integers a, Integers by, Integers& upper, Integers& lower) {
  const Integers even = _mm512_mul_epu32(a, by);
  const Integers odd = _mm512_mul_epu32(_mm512_shuffle_epi32(a, _MM_PERM_DDBB), by);
  lower = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
  upper = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

// Every four neighbouring lanes of four vectors, transposed: first lanes to the first vector.
inline void transpose_fours(Integers (&in)[4]) {
  const Integers a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]);
  const Integers c = _mm512_unpacklo_epi32(in[2], in[3]), d = _mm512_unpackhi_epi32(in[2], in[3]);
  in[0] = _mm512_unpacklo_epi64(a, c), in[1] = _mm512_unpackhi_epi64(a, c);
  in[2] = _mm512_unpacklo_epi64(b, d), in[3] = _mm512_unpackhi_epi64(b, d);
}

// Of each lane the vector of `from` that the lowest two bits of `which` name.
inline Integers one_of_four(Integers which, const Integers (&from)[4]) {
  const __mmask16 low = _mm512_test_epi32_mask(which, _mm512_set1_epi32(1));
  const __mmask16 high = _mm512_test_epi32_mask(which, _mm512_set1_epi32(2));
  return _mm512_mask_blend_epi32(high, _mm512_mask_blend_epi32(low, from[0], from[1]),
                                 _mm512_mask_blend_epi32(low, from[2], from[3]));
}

// (2^32 - 1 - word) / 2^32 without its last bit.
inline Vector share_above(Integers words) {
  const Integers left = _mm512_srli_epi32(_mm512_andnot_si512(words, _mm512_set1_epi32(-1)), 1);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(left), _mm512_set1_ps(0x1p-31f));
}

// A bit for each lane; none where one is a NaN, but in `lanes_of_nan`.
inline uint32_t lanes_below(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline uint32_t lanes_from(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline uint32_t lanes_of_nan(Vector a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }

inline Doubles all_of(double value) { return _mm512_set1_pd(value); }
inline Doubles lower_half(Vector a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
inline Doubles upper_half(Vector a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
// c - a * b
inline Doubles fnma(Doubles a, Doubles b, Doubles c) { return _mm512_fnmadd_pd(a, b, c); }
inline Doubles greatest(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
inline Integers bits_of(Doubles a) { return _mm512_castpd_si512(a); }

// x times 2^n, where the lowest bits of `bits` are the whole number n and the result is normal.
inline Doubles times_power(Doubles x, Doubles bits) {
  const __m512i exponent = _mm512_slli_epi64(bits_of(bits), 52);
  return _mm512_castsi512_pd(_mm512_add_epi64(bits_of(x), exponent));
}

// Of 64 bits each.
inline Integers add_long(Integers a, Integers b) { return _mm512_add_epi64(a, b); }
inline Integers subtract_long(Integers a, Integers b) { return _mm512_sub_epi64(a, b); }

}  // namespace blockyard
