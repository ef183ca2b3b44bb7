// Many rows times panels of weights on the matrix unit, as exact as in float32.
//
// The unit multiplies bfloat16 and sums in float32, sixteen times as many products a cycle as the
// vector units. Rows come as three pieces (`row_pieces.hpp`), which are the whole of a float32.
// Weights in bfloat16, and the bare numbers of those in 8 and 4 bits, are one piece: three products
// are all, and nothing but the weights' own storage is rounded. Weights in float32 are split in
// three as well, once for all rows that pass by; of the nine products the three smallest, together
// below 2^-23 of the whole, are left out. Of 32 products the unit makes one sum before it adds that
// to the others. Errors against float64 are a fifth (8 bits) to a half (float32) of those of a
// chain of fused multiply-adds, and tests hold them to that chain's; in 4 bits, where a group's
// product and its least value may cancel, to twice that. A weight that is not finite makes its
// column NaN.
#pragma once

#ifdef __AMX_BF16__

#include "multiply.hpp"
#include "row_pieces.hpp"

namespace blockyard {

// Groups of inputs that are handled at once: their weights as pieces stay in the caches while rows
// pass by, and sums are seldom put away.
constexpr int kStretchGroups = 9;
constexpr int kSumFloats = kTileHeight * kPanel;

// What is fetched meanwhile: `lines` cache lines from each place for each group of inputs.
struct FetchedLines {
  const char* from[2];
  int64_t lines;
  void fetch(int64_t group, int which) const {
    const char* at = from[which] + group * lines * 64;
    for (int64_t line = 0; line < lines; ++line) _mm_prefetch(at + line * 64, _MM_HINT_T1);
  }
};

inline __m512i pair_of(__m512 even, __m512 odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                 _mm512_castps_si512(odd));
}

// A group of a panel as tiles of 16 pairs of inputs: three pieces of float32 weights, each of which
// takes 8 bits of what is left, or the one of bare numbers.
inline void tiles_of_float32(const float* from, std::byte* to) {
  const __m512i upper = _mm512_set1_epi32(-65536);
  const auto rest = [&](__m512 x) {
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper)));
  };
  for (int pair = 0; pair < kGroup / 2; ++pair, from += 2 * kPanel, to += 64) {
    __m512 even = _mm512_loadu_ps(from), odd = _mm512_loadu_ps(from + kPanel);
    for (int piece = 0; piece < 3; ++piece) {
      _mm512_store_si512(to + piece * kTileBytes, pair_of(even, odd));
      even = rest(even);
      odd = rest(odd);
    }
  }
}

inline void tiles_of_int8(const std::byte* from, std::byte* to) {
  const auto* numbers = reinterpret_cast<const __m128i*>(from + kPanel * 2);
  const auto widen = [](__m128i n) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(n)); };
  for (int pair = 0; pair < kGroup / 2; ++pair, numbers += 2, to += 64)
    _mm512_store_si512(to, pair_of(widen(_mm_loadu_si128(numbers)),
                                   widen(_mm_loadu_si128(numbers + 1))));
}

inline void tiles_of_int4(const std::byte* from, std::byte* to) {
  alignas(64) static constexpr Bfloat16 kNumbers[32] = {
      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
      0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
  const __m512i all = _mm512_load_si512(kNumbers), low = _mm512_set1_epi32(15);
  const auto* pairs = reinterpret_cast<const __m128i*>(from + kPanel * 4);
  for (int pair = 0; pair < kGroup / 2; ++pair, ++pairs, to += 64) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(pairs));
    const __m512i odd = _mm512_slli_epi32(_mm512_srli_epi32(both, 4), 16);
    const __m512i which = _mm512_or_si512(_mm512_and_si512(both, low), odd);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(which, all));
  }
}

// Sums of one or two tiles of rows and one or two panels, over some groups of inputs. Registers 0
// to 3 hold them, 4 and 5 rows, 6 and 7 weights; products are in the order that loads least.
template <int Tiles, int Panels, int Pieces>
inline void multiply_tiles(const std::byte* rows, int64_t tile_bytes,
                           const std::byte* const (&weights)[2], int64_t groups,
                           float* const (&sums)[2], bool add, const FetchedLines& ahead) {
  constexpr bool kTwoTiles = Tiles == 2, kTwoPanels = Panels == 2;
  if (add) {
    _tile_loadd(0, sums[0], 64);
    if constexpr (kTwoPanels) _tile_loadd(1, sums[1], 64);
    if constexpr (kTwoTiles) _tile_loadd(2, sums[0] + kSumFloats, 64);
    if constexpr (kTwoTiles && kTwoPanels) _tile_loadd(3, sums[1] + kSumFloats, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::byte *one = weights[0], *two = weights[1];
  const auto take_rows = [&](int piece) {
    _tile_loadd(4, rows + piece * kTileBytes, 64);
    if constexpr (kTwoTiles) _tile_loadd(5, rows + tile_bytes + piece * kTileBytes, 64);
  };
  const auto take_weights = [&](int piece) {
    _tile_loadd(6, one + piece * kTileBytes, 64);
    if constexpr (kTwoPanels) _tile_loadd(7, two + piece * kTileBytes, 64);
  };
  const auto multiply = [&] {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoPanels) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kTwoTiles && kTwoPanels) _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t group = 0; group < groups; ++group) {
    for (int i = 0; i < Panels; ++i) ahead.fetch(group, i);
    take_weights(0);
    take_rows(2);
    multiply();
    if constexpr (Pieces == 3) {
      take_rows(0);
      multiply();
      take_rows(1);
      multiply();
      take_weights(1);
      multiply();
      take_rows(0);
      multiply();
      take_weights(2);
      multiply();
    } else {
      take_rows(1);
      multiply();
      take_rows(0);
      multiply();
    }
    rows += kRowPieces * kTileBytes;
    one += Pieces * kTileBytes;
    two += Pieces * kTileBytes;
  }
  _tile_stored(0, sums[0], 64);
  if constexpr (kTwoPanels) _tile_stored(1, sums[1], 64);
  if constexpr (kTwoTiles) _tile_stored(2, sums[0] + kSumFloats, 64);
  if constexpr (kTwoTiles && kTwoPanels) _tile_stored(3, sums[1] + kSumFloats, 64);
}

// One tile of rows and one panel whose groups have scales (and, in 4 bits, least values): sums stay
// in vector registers, and each group's are scaled while the unit makes the next.
template <Storage kStorage>
inline void multiply_scaled(const std::byte* rows, const float* group_sums,
                            const std::byte* weights, const std::byte* panel, int64_t groups,
                            float* sums, bool add, float* room, const FetchedLines& ahead) {
  __m512 all[kTileHeight];
#pragma GCC unroll 16
  for (int row = 0; row < kTileHeight; ++row)
    all[row] = add ? _mm512_load_ps(sums + row * kPanel) : _mm512_setzero_ps();
  // Four registers and four rooms take turns: a group's sums begin before the last one's are there.
  // An instruction names its registers: no constant of a template can stand for one.
#define BLOCKYARD_SUM_INTO(which)     \
  _tile_zero(which);                  \
  _tile_dpbf16ps(which, 4, 7);        \
  _tile_dpbf16ps(which, 5, 7);        \
  _tile_dpbf16ps(which, 6, 7);        \
  _tile_stored(which, room + which * kSumFloats, 64)
  const auto begin_group = [&](int64_t group) {
    const std::byte* from = rows + group * kRowPieces * kTileBytes;
    ahead.fetch(group, 0);
    _tile_loadd(7, weights + group * kTileBytes, 64);
    _tile_loadd(4, from + 2 * kTileBytes, 64);
    _tile_loadd(5, from + kTileBytes, 64);
    _tile_loadd(6, from, 64);
    switch (group % 4) {
      case 0: BLOCKYARD_SUM_INTO(0); break;
      case 1: BLOCKYARD_SUM_INTO(1); break;
      case 2: BLOCKYARD_SUM_INTO(2); break;
      case 3: BLOCKYARD_SUM_INTO(3); break;
    }
  };
#undef BLOCKYARD_SUM_INTO
  const auto halves = [&](int64_t group, int which) {
    const std::byte* at = panel + group * group_bytes(kStorage) + which * kPanel * 2;
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  };
  begin_group(0);
  for (int64_t group = 0; group < groups; ++group) {
    if (group + 1 < groups) begin_group(group + 1);
    const float* found = room + group % 4 * kSumFloats;
    const __m512 scales = halves(group, 0);
#pragma GCC unroll 16
    for (int row = 0; row < kTileHeight; ++row)
      all[row] = _mm512_fmadd_ps(_mm512_load_ps(found + row * kPanel), scales, all[row]);
    if constexpr (kStorage == Storage::kInt4) {
      const __m512 leasts = halves(group, 1);
      const float* totals = group_sums + group * kTileHeight;
#pragma GCC unroll 16
      for (int row = 0; row < kTileHeight; ++row)
        all[row] = _mm512_fmadd_ps(_mm512_set1_ps(totals[row]), leasts, all[row]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kTileHeight; ++row) _mm512_store_ps(sums + row * kPanel, all[row]);
}

}  // namespace blockyard

#endif
