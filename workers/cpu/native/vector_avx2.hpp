// Vectors of eight floats: AVX2, FMA and F16C. The twin of `vector_avx512.hpp`, name by name.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace blockyard {

using Vector = __m256;
using Bfloat16 = uint16_t;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr const char* kInstructions = "avx2";

inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector broadcast(float value) { return _mm256_set1_ps(value); }
inline Vector load(const float* from) { return _mm256_loadu_ps(from); }

inline Vector load(const Bfloat16* from) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}

inline Vector load(const int8_t* from) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw));
}

inline Vector load_halves(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// The first `count` floats, none if it is below 1; the other lanes are 0.
inline Vector load_first(const float* from, int count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
}

// Neighbouring pairs of bfloat16, one for each lane: the first of each, and the second.
inline void load_pairs(const Bfloat16* from, Vector& first, Vector& second) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

// A byte for each lane: its lower four bits, and its upper.
inline void load_fours(const uint8_t* from, Vector& lower, Vector& upper) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const __m256i bytes = _mm256_cvtepu8_epi32(raw);
  lower = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
  upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}

inline void store(float* to, Vector values) { _mm256_storeu_ps(to, values); }

inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
// c - a * b
inline Vector fnma(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }
// Where one operand is a NaN, these give the second.
inline Vector least(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Vector greatest(Vector a, Vector b) { return _mm256_max_ps(a, b); }

// `values` where x is not below `bound`, else 0.
inline Vector zero_below(Vector x, Vector bound, Vector values) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), values);
}

// x times 2^n, where the lowest bits of `bits` are the whole number n and the result is normal.
inline Vector times_power(Vector x, Vector bits) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bits), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}

inline float sum(Vector values) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float greatest_lane(Vector values) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// The sums of four vectors.
inline __m128 sum_of_four(Vector a, Vector b, Vector c, Vector d) {
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
}

// Rows become columns, stored `stride` floats apart.
inline void transpose(const Vector (&in)[kLanes], float* out, int64_t stride) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    store(out + i * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
    store(out + (i + 4) * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
  }
}

}  // namespace blockyard
