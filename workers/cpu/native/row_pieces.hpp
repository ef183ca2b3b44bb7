// Rows as the matrix unit takes them: each float32 as three bfloat16, in tiles of 16 rows by 32
// inputs.
//
// A float32 has 24 significant bits and a bfloat16 has 8: what rounding to bfloat16 leaves, rounded
// once more, leaves what a third holds exactly. Only what lies below 2^-126 is lost, since the unit
// takes it for zero. What rounds to infinity, or is no finite number, has no pieces: its tile is
// marked, and is for the vector units.
#pragma once

#ifdef __AMX_BF16__

#include <vector>

#include "large_memory.hpp"
#include "thread_pool.hpp"
#include "weights.hpp"

namespace blockyard {

constexpr int kTileHeight = 16;
constexpr int kRowPieces = 3;
constexpr int64_t kTileBytes = kTileHeight * kGroup * sizeof(Bfloat16);

// Of some rows, `[tile][group][piece][16][32]`, and their sums by group, `[tile][group][16]`.
class RowPieces {
 public:
  int tiles() const { return tiles_; }
  int64_t tile_bytes() const { return groups_ * kRowPieces * kTileBytes; }

  const std::byte* at(int tile, int64_t group) const {
    return reinterpret_cast<const std::byte*>(pieces_.get()) + tile * tile_bytes() +
           group * kRowPieces * kTileBytes;
  }
  const float* group_sums(int tile, int64_t group) const {
    return sums_.get() + (tile * groups_ + group) * kTileHeight;
  }
  bool has_pieces(int first, int until) const {
    for (int tile = first; tile < until; ++tile)
      if (!whole_[static_cast<size_t>(tile)]) return false;
    return true;
  }

  // Rows are readable, and zero, up to whole groups of inputs. Beyond `count` rows are zeros.
  void split(ThreadPool& pool, const float* rows, int64_t stride, int64_t count, int64_t groups,
             bool with_sums) {
    tiles_ = static_cast<int>((count + kTileHeight - 1) / kTileHeight);
    groups_ = groups;
    grow(pieces_, pieces_size_, tiles_ * tile_bytes() / int64_t{sizeof(float)});
    if (with_sums) grow(sums_, sums_size_, tiles_ * groups * kTileHeight);
    whole_.assign(static_cast<size_t>(tiles_), 0);
    pool.run(tiles_, [&](int tile, int) {
      const int64_t first = int64_t{tile} * kTileHeight;
      const auto height = static_cast<int>(std::min<int64_t>(kTileHeight, count - first));
      whole_[static_cast<size_t>(tile)] =
          split_tile(rows + first * stride, stride, height, tile, with_sums);
    });
  }

 private:
  static void grow(LargeFloats& data, int64_t& size, int64_t needed) {
    if (needed <= size) return;
    data = make_large(needed);
    size = needed;
  }

  // Says whether all of it has pieces.
  bool split_tile(const float* rows, int64_t stride, int height, int tile, bool with_sums) {
    const __m512 bound = _mm512_set1_ps(0x1p127f);
    __mmask16 beyond = 0;
    auto* to = const_cast<std::byte*>(at(tile, 0));
    float* sums = with_sums ? const_cast<float*>(group_sums(tile, 0)) : nullptr;
    for (int64_t group = 0; group < groups_; ++group, rows += kGroup) {
      for (int row = 0; row < kTileHeight; ++row, to += kTileBytes / kTileHeight) {
        __m512 a = _mm512_setzero_ps(), b = _mm512_setzero_ps();
        if (row < height) {
          a = _mm512_loadu_ps(rows + row * stride);
          b = _mm512_loadu_ps(rows + row * stride + kGroup / 2);
        }
        if (with_sums) *sums++ = _mm512_reduce_add_ps(_mm512_add_ps(a, b));
        beyond |= _mm512_cmp_ps_mask(_mm512_abs_ps(a), bound, _CMP_NLT_UQ);
        beyond |= _mm512_cmp_ps_mask(_mm512_abs_ps(b), bound, _CMP_NLT_UQ);
        for (int piece = 0; piece < kRowPieces; ++piece) {
          const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(b, a);
          _mm512_store_si512(to + piece * kTileBytes, rounded);
          a = _mm512_sub_ps(a, widened(_mm512_castsi512_si256(rounded)));
          b = _mm512_sub_ps(b, widened(_mm512_extracti64x4_epi64(rounded, 1)));
        }
      }
      to += (kRowPieces - 1) * kTileBytes;
    }
    return beyond == 0;
  }

  static __m512 widened(__m256i numbers) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  }

  LargeFloats pieces_, sums_;
  int64_t pieces_size_ = 0, sums_size_ = 0, groups_ = 0;
  int tiles_ = 0;
  std::vector<uint8_t> whole_;
};

}  // namespace blockyard

#endif
