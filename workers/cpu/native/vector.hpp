// As many floats as a register holds, in one of two instruction sets, and what is made of their
// operations: exponentials, and the sixteen columns of a panel of weights.
//
// Kernels are written once, in these terms. Plain arithmetic on vectors is done by operators.
#pragma once

#include <cstring>

#ifdef __AVX512F__
#include "vector_avx512.hpp"
#else
#include "vector_avx2.hpp"
#endif

namespace blockyard {

constexpr int kPanel = 16;                 // columns of a panel
constexpr int kParts = kPanel / kLanes;    // vectors that hold them

// One number for each column of a panel.
struct Columns {
  Vector parts[kParts];
};

inline Columns zero_columns() {
  Columns columns;
  for (Vector& part : columns.parts) part = zero();
  return columns;
}

inline Columns load_columns(const float* from) {
  Columns columns;
  for (int p = 0; p < kParts; ++p) columns.parts[p] = load(from + p * kLanes);
  return columns;
}

inline void store(float* to, const Columns& columns) {
  for (int p = 0; p < kParts; ++p) store(to + p * kLanes, columns.parts[p]);
}

inline Columns operator+(Columns a, const Columns& b) {
  for (int p = 0; p < kParts; ++p) a.parts[p] += b.parts[p];
  return a;
}

inline Columns operator*(Columns a, const Columns& b) {
  for (int p = 0; p < kParts; ++p) a.parts[p] *= b.parts[p];
  return a;
}

inline Columns fma(const Columns& a, const Columns& b, Columns c) {
  for (int p = 0; p < kParts; ++p) c.parts[p] = fma(a.parts[p], b.parts[p], c.parts[p]);
  return c;
}

inline Columns fma(Vector a, const Columns& b, Columns c) {
  for (int p = 0; p < kParts; ++p) c.parts[p] = fma(a, b.parts[p], c.parts[p]);
  return c;
}

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

// Added to this number, x loses its fraction; the lowest bits of the sum are the whole part.
constexpr float kRounder = 12582912.0f;

// e^x to about 2 units in the last place: 2^n times a polynomial of degree 6 on +-ln(2)/2
// (coefficients of Cephes' expf). Below -87.3 it is 0, so that a score of -inf weighs nothing.
inline Vector exp(Vector x) {
  const Vector lowest = broadcast(-87.33f), rounder = broadcast(kRounder), given = x;
  // In this order of operands a NaN stays one.
  x = least(broadcast(88.37f), greatest(lowest, x));
  const Vector shifted = fma(x, broadcast(1.44269504f), rounder);
  const Vector n = shifted - rounder;
  x = fnma(n, broadcast(0.693359375f), x);
  x = fnma(n, broadcast(-2.12194440e-4f), x);
  Vector y = broadcast(1.9875691500e-4f);
  y = fma(y, x, broadcast(1.3981999507e-3f));
  y = fma(y, x, broadcast(8.3334519073e-3f));
  y = fma(y, x, broadcast(4.1665795894e-2f));
  y = fma(y, x, broadcast(1.6666665459e-1f));
  y = fma(y, x, broadcast(5.0000001201e-1f));
  y = fma(y, x * x, x + broadcast(1.0f));
  // A product, and not a sum of exponents: it keeps every NaN.
  return zero_below(given, lowest, y * times_power(broadcast(1.0f), shifted));
}

// 2^x of what is not above 0, to about 2 units in the last place (coefficients of Cephes' exp2f).
// Below -126 it is 0, so that a score of -inf weighs nothing; a NaN stays one.
inline Vector exp2(Vector x) {
  const Vector lowest = broadcast(-126.0f), rounder = broadcast(kRounder), given = x;
  x = greatest(lowest, x);  // in this order of operands a NaN stays one
  const Vector shifted = x + rounder;
  x -= shifted - rounder;
  Vector y = broadcast(1.535336188319500e-4f);
  y = fma(y, x, broadcast(1.339887440266574e-3f));
  y = fma(y, x, broadcast(9.618437357674640e-3f));
  y = fma(y, x, broadcast(5.550332471162809e-2f));
  y = fma(y, x, broadcast(2.402264791363012e-1f));
  y = fma(y, x, broadcast(6.931472028550421e-1f));
  y = fma(y, x, broadcast(1.0f));
  return zero_below(given, lowest, times_power(y, shifted));
}

// x / (1 + e^-x)
inline Vector silu(Vector x) { return x / (broadcast(1.0f) + exp(zero() - x)); }

inline Columns silu(Columns x) {
  for (Vector& part : x.parts) part = silu(part);
  return x;
}

}  // namespace blockyard
