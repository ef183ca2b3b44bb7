// Vectors of sixteen floats: AVX-512 F, BW, DQ and VL. The twin of `vector_avx2.hpp`, name by name.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace blockyard {

using Vector = __m512;
using Bfloat16 = uint16_t;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr const char* kInstructions = "avx512";

inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector broadcast(float value) { return _mm512_set1_ps(value); }
inline Vector load(const float* from) { return _mm512_loadu_ps(from); }

inline Vector load(const Bfloat16* from) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

inline Vector load(const int8_t* from) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw));
}

inline Vector load_halves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// The first `count` floats, none if it is below 1; the other lanes are 0.
inline Vector load_first(const float* from, int count) {
  const int lanes = count < 0 ? 0 : count > kLanes ? kLanes : count;
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), from);
}

// Neighbouring pairs of bfloat16, one for each lane: the first of each, and the second.
inline void load_pairs(const Bfloat16* from, Vector& first, Vector& second) {
  const __m512i pairs = _mm512_loadu_si512(from);
  first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

// A byte for each lane: its lower four bits, and its upper.
inline void load_fours(const uint8_t* from, Vector& lower, Vector& upper) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m512i bytes = _mm512_cvtepu8_epi32(raw);
  lower = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
  upper = _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4));
}

inline void store(float* to, Vector values) { _mm512_storeu_ps(to, values); }

inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
// c - a * b
inline Vector fnma(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }
// Where one operand is a NaN, these give the second.
inline Vector least(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector greatest(Vector a, Vector b) { return _mm512_max_ps(a, b); }

// `values` where x is not below `bound`, else 0.
inline Vector zero_below(Vector x, Vector bound, Vector values) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), values);
}

// x times 2^n, where the lowest bits of `bits` are the whole number n and the result is normal.
inline Vector times_power(Vector x, Vector bits) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(bits), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}

inline float sum(Vector values) { return _mm512_reduce_add_ps(values); }
inline float greatest_lane(Vector values) { return _mm512_reduce_max_ps(values); }

// The sums of four vectors.
inline __m128 sum_of_four(Vector a, Vector b, Vector c, Vector d) {
  const auto fold = [](Vector values) {
    return _mm256_add_ps(_mm512_castps512_ps256(values), _mm512_extractf32x8_ps(values, 1));
  };
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(fold(a), fold(b)),
                                     _mm256_hadd_ps(fold(c), fold(d)));
  return _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
}

// Rows become columns, stored `stride` floats apart.
inline void transpose(const Vector (&in)[kLanes], float* out, int64_t stride) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(in[i], in[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  // Quarter q of b[4 * g + i] holds column 4 * q + i of rows 4 * g .. 4 * g + 3.
  for (int i = 0; i < 4; ++i) {
    const __m512 even = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
    const __m512 odd = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
    const __m512 other_even = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
    const __m512 other_odd = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    store(out + i * stride, _mm512_shuffle_f32x4(even, other_even, 0x88));
    store(out + (i + 4) * stride, _mm512_shuffle_f32x4(odd, other_odd, 0x88));
    store(out + (i + 8) * stride, _mm512_shuffle_f32x4(even, other_even, 0xdd));
    store(out + (i + 12) * stride, _mm512_shuffle_f32x4(odd, other_odd, 0xdd));
  }
}

}  // namespace blockyard
