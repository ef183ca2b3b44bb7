// Eight floats at a time: loads from every storage type, sums, exponentials. AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace blockyard {

using Bfloat16 = uint16_t;
constexpr int kLanes = 8;

inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }

inline __m256 load8(const Bfloat16* from) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}

inline __m256 load8(const int8_t* from) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw));
}

inline void store8(float* to, __m256 values) { _mm256_storeu_ps(to, values); }

// Rounds to the nearest, ties to even; a NaN stays one.
inline Bfloat16 to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bfloat16>((bits >> 16) | 0x40u);
  return static_cast<Bfloat16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float to_float(Bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline float sum8(__m256 values) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float max8(__m256 values) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// The sums of four vectors.
inline __m128 sum8_of_four(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
}

// e^x to about 2 units in the last place: 2^n times a polynomial of degree 6 on +-ln(2)/2
// (coefficients of Cephes' expf). Below -87.3 it is 0, so that a score of -inf weighs nothing.
inline __m256 exp8(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.33f);
  const __m256 vanishes = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
  // In this order of operands a NaN stays one.
  x = _mm256_min_ps(_mm256_set1_ps(88.37f), _mm256_max_ps(lowest, x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), x);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_fmadd_ps(y, _mm256_mul_ps(x, x), _mm256_add_ps(x, _mm256_set1_ps(1.0f)));
  const __m256i exponent = _mm256_slli_epi32(
      _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(vanishes, _mm256_mul_ps(y, _mm256_castsi256_ps(exponent)));
}

// 2^x of what is not above 0, to about 2 units in the last place (coefficients of Cephes' exp2f).
// Below -126 it is 0, so that a score of -inf weighs nothing.
inline __m256 exp2_8(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-126.0f);
  const __m256 vanishes = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
  x = _mm256_max_ps(lowest, x);  // in this order of operands a NaN stays one
  // Added to this number, x loses its fraction; the lowest bits of the sum are the whole part.
  const __m256 rounder = _mm256_set1_ps(12582912.0f);
  const __m256 shifted = _mm256_add_ps(x, rounder);
  x = _mm256_sub_ps(x, _mm256_sub_ps(shifted, rounder));
  __m256 y = _mm256_set1_ps(1.535336188319500e-4f);
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.339887440266574e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(9.618437357674640e-3f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(5.550332471162809e-2f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(2.402264791363012e-1f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(6.931472028550421e-1f));
  y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_andnot_ps(
      vanishes, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent)));
}

// x / (1 + e^-x)
inline __m256 silu8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_div_ps(x, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

}  // namespace blockyard
