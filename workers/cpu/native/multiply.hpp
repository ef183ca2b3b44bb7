// Rows times one panel of weights: where nearly all time of a step goes.
//
// The sums of up to 6 rows by 16 columns stay in registers: 12 of the 16, the others hold the
// weights and one input. With few rows the weights are widened as they are read. With more, a
// stretch of the panel is widened once into the first-level cache, every row passes over it there,
// and meanwhile the next stretch is fetched from memory: reading and computing overlap.
#pragma once

#include <utility>

#include "weights.hpp"

namespace blockyard {

// Inputs of a panel that are handled at once: 18 KiB of float32, so that rows fit beside them.
constexpr int kStretch = 288;
constexpr int kTileRows = 6;
// Inputs of so many bytes stay in the second-level cache while panels pass by.
constexpr int64_t kCachedBytes = 256 * 1024;

template <int Rows>
[[gnu::always_inline]] inline void multiply_input(const float* rows, int64_t row_stride,
                                                  const float* weights, __m256 (&a)[Rows],
                                                  __m256 (&b)[Rows]) {
  const __m256 w = load8(weights), v = load8(weights + kLanes);
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    const __m256 x = _mm256_broadcast_ss(rows + r * row_stride);
    a[r] = _mm256_fmadd_ps(x, w, a[r]);
    b[r] = _mm256_fmadd_ps(x, v, b[r]);
  }
}

// Adds rows times `inputs` weights of a float32 panel to sums of `[Rows][16]`, or sets them.
// `ahead` is fetched, 64 bytes at a time, `ahead_step` bytes for each input. A short loop is unrolled
// so far that its end can be foreseen.
template <int Rows, int Unrolled = 2>
inline void multiply_tile(const float* rows, int64_t row_stride, const float* panel, int inputs,
                          float* sums, int64_t sum_stride, bool add, const char* ahead,
                          int64_t ahead_step) {
  __m256 a[Rows], b[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    a[r] = add ? load8(sums + r * sum_stride) : _mm256_setzero_ps();
    b[r] = add ? load8(sums + r * sum_stride + kLanes) : _mm256_setzero_ps();
  }
  if constexpr (Unrolled == 2) {
#pragma GCC unroll 2
    for (int input = 0; input < inputs; ++input) {
      _mm_prefetch(ahead + input * ahead_step, _MM_HINT_T0);
      multiply_input(rows + input, row_stride, panel + input * kPanel, a, b);
    }
  } else {
    static_assert(Unrolled == 16);
#pragma GCC unroll 16
    for (int input = 0; input < inputs; ++input)
      multiply_input(rows + input, row_stride, panel + input * kPanel, a, b);
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    store8(sums + r * sum_stride, a[r]);
    store8(sums + r * sum_stride + kLanes, b[r]);
  }
}

// Calls body(constant, first row) for tiles of at most 6 rows, as even as possible: a tile of few
// rows does not keep both multipliers busy.
template <class Body>
inline void for_tiles(int rows, Body&& body) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = rows * tile / tiles;
    const int count = rows * (tile + 1) / tiles - first;
    switch (count) {
      case 1: body(std::integral_constant<int, 1>{}, first); break;
      case 2: body(std::integral_constant<int, 2>{}, first); break;
      case 3: body(std::integral_constant<int, 3>{}, first); break;
      case 4: body(std::integral_constant<int, 4>{}, first); break;
      case 5: body(std::integral_constant<int, 5>{}, first); break;
      case 6: body(std::integral_constant<int, 6>{}, first); break;
    }
  }
}

// Few rows, all inputs. Several sums for each row and column, or each would wait for the last.
template <int Rows, class Reader>
inline void multiply_direct(Reader reader, const float* rows, int64_t row_stride,
                            const std::byte* panel, int64_t inputs, float* sums) {
  constexpr int kSums = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
  constexpr int64_t kAhead = 4096;
  __m256 a[kSums][Rows], b[kSums][Rows];
#pragma GCC unroll 4
  for (int s = 0; s < kSums; ++s)
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) a[s][r] = b[s][r] = _mm256_setzero_ps();
  const int64_t bytes = group_bytes(Reader::storage);
  for (int64_t begin = 0; begin < inputs; begin += kGroup, panel += bytes, rows += kGroup) {
    reader.group(panel);
    for (int64_t line = 0; line < bytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(panel) + kAhead + line, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int input = 0; input < kGroup; input += kSums) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) {
        __m256 w, v;
        reader.read(input + s, w, v);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          const __m256 x = _mm256_broadcast_ss(rows + r * row_stride + input + s);
          a[s][r] = _mm256_fmadd_ps(x, w, a[s][r]);
          b[s][r] = _mm256_fmadd_ps(x, v, b[s][r]);
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int s = 1; s < kSums; ++s) {
      a[0][r] = _mm256_add_ps(a[0][r], a[s][r]);
      b[0][r] = _mm256_add_ps(b[0][r], b[s][r]);
    }
    store8(sums + r * kPanel, a[0][r]);
    store8(sums + r * kPanel + kLanes, b[0][r]);
  }
}

// The same for weights with a scale for each group, which is applied to the group's sums.
template <int Rows, class Reader>
inline void multiply_groups(Reader reader, const float* rows, int64_t row_stride,
                            const std::byte* panel, int64_t inputs, float* sums) {
  constexpr int kSums = Rows == 1 ? 4 : 2;
  constexpr int64_t kAhead = 4096;
  __m256 a[Rows], b[Rows];
#pragma GCC unroll 2
  for (int r = 0; r < Rows; ++r) a[r] = b[r] = _mm256_setzero_ps();
  const int64_t bytes = group_bytes(Reader::storage);
  for (int64_t begin = 0; begin < inputs; begin += kGroup, panel += bytes, rows += kGroup) {
    reader.group(panel);
    for (int64_t line = 0; line < bytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(panel) + kAhead + line, _MM_HINT_T0);
    __m256 of_a[kSums][Rows], of_b[kSums][Rows];
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s)
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) of_a[s][r] = of_b[s][r] = _mm256_setzero_ps();
    for (int input = 0; input < kGroup; input += kSums) {
#pragma GCC unroll 4
      for (int s = 0; s < kSums; s += 2) {
        __m256 w[2], v[2];
        reader.read_pair(input + s, w, v);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
          for (int r = 0; r < Rows; ++r) {
            const __m256 x = _mm256_broadcast_ss(rows + r * row_stride + input + s + i);
            of_a[s + i][r] = _mm256_fmadd_ps(x, w[i], of_a[s + i][r]);
            of_b[s + i][r] = _mm256_fmadd_ps(x, v[i], of_b[s + i][r]);
          }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int s = 1; s < kSums; ++s) {
        of_a[0][r] = _mm256_add_ps(of_a[0][r], of_a[s][r]);
        of_b[0][r] = _mm256_add_ps(of_b[0][r], of_b[s][r]);
      }
      reader.add_group(rows + r * row_stride, of_a[0][r], of_b[0][r], a[r], b[r]);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < Rows; ++r) {
    store8(sums + r * kPanel, a[r]);
    store8(sums + r * kPanel + kLanes, b[r]);
  }
}

// The first tile of a stretch in a narrower storage: widens the weights, uses them and keeps them.
template <int Rows, class Reader>
inline void multiply_and_widen(Reader reader, const float* rows, int64_t row_stride,
                               const std::byte* panel, int inputs, float* sums, bool add,
                               float* wide) {
  __m256 a[Rows], b[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    a[r] = add ? load8(sums + r * kPanel) : _mm256_setzero_ps();
    b[r] = add ? load8(sums + r * kPanel + kLanes) : _mm256_setzero_ps();
  }
  for (int begin = 0; begin < inputs; begin += kGroup, rows += kGroup) {
    reader.group(panel);
    panel += group_bytes(Reader::storage);
#pragma GCC unroll 2
    for (int input = 0; input < kGroup; ++input, wide += kPanel) {
      __m256 w, v;
      reader.read(input, w, v);
      store8(wide, w);
      store8(wide + kLanes, v);
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const __m256 x = _mm256_broadcast_ss(rows + r * row_stride + input);
        a[r] = _mm256_fmadd_ps(x, w, a[r]);
        b[r] = _mm256_fmadd_ps(x, v, b[r]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    store8(sums + r * kPanel, a[r]);
    store8(sums + r * kPanel + kLanes, b[r]);
  }
}

// Many rows: adds a stretch of a panel to sums, `[rows][16]`, or sets them. `wide` is room for
// `kStretch * 16` floats; what lies at `ahead` is fetched meanwhile.
template <class Reader>
inline void multiply_stretch(Reader reader, const float* rows, int64_t row_stride, int count,
                             const std::byte* panel, int depth, float* sums, bool add,
                             float* wide, const std::byte* ahead) {
  constexpr bool kIsWide = Reader::storage == Storage::kFloat32;
  const int64_t bytes = depth / kGroup * group_bytes(Reader::storage);
  const int tiles = (count + kTileRows - 1) / kTileRows;
  const int64_t step = std::max<int64_t>(bytes / depth / tiles, 1);
  const auto* fetched = reinterpret_cast<const char*>(ahead);
  int tile = 0;
  for_tiles(count, [&](auto tile_rows, int first) {
    const float* from = rows + first * row_stride;
    float* to = sums + first * kPanel;
    if constexpr (kIsWide) {
      multiply_tile<tile_rows>(from, row_stride, reinterpret_cast<const float*>(panel), depth, to,
                               kPanel, add, fetched, step);
    } else if (tile == 0) {
      multiply_and_widen<tile_rows>(reader, from, row_stride, panel, depth, to, add, wide);
    } else {
      multiply_tile<tile_rows>(from, row_stride, wide, depth, to, kPanel, add, fetched, step);
    }
    ++tile;
    fetched += step * depth;
  });
}

// At most 6 rows: sums of them and one panel, `[count][16]`.
template <class Reader>
inline void multiply_panel(Reader reader, const float* rows, int64_t row_stride, int count,
                           const std::byte* panel, int64_t inputs, float* sums) {
  if constexpr (Reader::storage == Storage::kInt8 || Reader::storage == Storage::kInt4) {
    if (count == 1) return multiply_groups<1>(reader, rows, row_stride, panel, inputs, sums);
    if (count == 2) return multiply_groups<2>(reader, rows, row_stride, panel, inputs, sums);
  }
  switch (count) {
    case 1: return multiply_direct<1>(reader, rows, row_stride, panel, inputs, sums);
    case 2: return multiply_direct<2>(reader, rows, row_stride, panel, inputs, sums);
    case 3: return multiply_direct<3>(reader, rows, row_stride, panel, inputs, sums);
    case 4: return multiply_direct<4>(reader, rows, row_stride, panel, inputs, sums);
    case 5: return multiply_direct<5>(reader, rows, row_stride, panel, inputs, sums);
    default: return multiply_direct<6>(reader, rows, row_stride, panel, inputs, sums);
  }
}

// Sums of `count` rows and some neighbouring panels, `[panels][sum_stride]`. Rows are readable, and
// finite, up to the padded number of inputs. Where they do not stay in the second-level cache, all
// panels take a stretch of them before the next one.
template <class Reader>
inline void multiply_panels(Reader reader, const float* rows, int64_t row_stride, int count,
                            const Weights& layer, int64_t first, int panels, float* sums,
                            int64_t sum_stride, float* wide) {
  const int64_t inputs = layer.padded_inputs();
  if (count <= kTileRows) {
    for (int i = 0; i < panels; ++i)
      multiply_panel(reader, rows, row_stride, count, layer.panel(first + i), inputs,
                     sums + i * sum_stride);
    return;
  }
  // Stretches are even, and of whole groups.
  const int64_t most = (inputs + kStretch - 1) / kStretch;
  const int64_t length = (inputs / kGroup + most - 1) / most * kGroup;
  const auto stretches = static_cast<int>((inputs + length - 1) / length);
  const bool by_panel = count * inputs * int64_t{sizeof(float)} <= kCachedBytes;
  const auto place = [&](int number) {
    const int panel = by_panel ? number / stretches : number % panels;
    const int stretch = by_panel ? number % stretches : number / panels;
    return std::pair{panel, stretch * length};
  };
  const auto weights = [&](int number) {
    const auto [panel, begin] = place(number);
    return layer.panel(first + panel) + begin / kGroup * group_bytes(Reader::storage);
  };
  const int all = panels * stretches;
  for (int number = 0; number < all; ++number) {
    const auto [panel, begin] = place(number);
    const auto depth = static_cast<int>(std::min(length, inputs - begin));
    const std::byte* ahead = number + 1 < all ? weights(number + 1) : layer.panel(first + panels);
    multiply_stretch(reader, rows + begin, row_stride, count, weights(number), depth,
                     sums + panel * sum_stride, begin > 0, wide, ahead);
  }
}

}  // namespace blockyard
