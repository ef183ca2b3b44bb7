// Rows times panels of weights: where nearly all time of a step goes.
//
// Sums stay in registers: with AVX2 6 rows by one panel, 12 of the 16 registers, with AVX-512 12 rows
// by two panels, 24 of 32; the others hold the weights and one input. A stretch of the panels is
// widened once into the first-level cache, every row passes over it there, and meanwhile the next
// stretch is fetched from memory: reading and computing overlap.
#pragma once

#include <utility>

#include "multiply_direct.hpp"

namespace blockyard {

constexpr int kTileRows = kRegisters == 32 ? 12 : 6;
constexpr int kTilePanels = 2 / kParts;
// Inputs of a tile's panels that are handled at once: 24 KiB of float32 (AVX2: 18 KiB), so that rows
// fit beside them.
constexpr int kStretch = kRegisters == 32 ? 192 : 288;
// Inputs of so many bytes stay in the second-level cache while panels pass by.
constexpr int64_t kCachedBytes = kRegisters == 32 ? 640 * 1024 : 256 * 1024;

// Calls body(constant, first row) for tiles of at most `kTileRows` rows, as even as possible: a tile
// of few rows does not keep both multipliers busy.
template <class Body>
inline void for_tiles(int rows, Body&& body) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = rows * tile / tiles;
    const int count = rows * (tile + 1) / tiles - first;
    with_count<kTileRows>(count, [&](auto constant) { body(constant, first); });
  }
}

// Sums of a tile, `[rows][panels][16]`.
template <int Rows, int Panels>
struct TileSums {
  Columns sums[Rows][Panels];

  void begin(const float* from, int64_t stride, int64_t panel_stride, bool add) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p)
        sums[r][p] = add ? load_columns(from + r * stride + p * panel_stride) : zero_columns();
  }

  // Adds one input of every row times its weights.
  [[gnu::always_inline]] void multiply(const float* inputs, int64_t stride,
                                       const Columns (&weights)[Panels]) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const Vector x = broadcast(inputs[r * stride]);
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) sums[r][p] = fma(x, weights[p], sums[r][p]);
    }
  }

  void end(float* to, int64_t stride, int64_t panel_stride) const {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) store(to + r * stride + p * panel_stride, sums[r][p]);
  }
};

// What a tile fetches while it computes: of each panel `step` bytes for each input.
struct Ahead {
  const char* panels;
  int64_t panel_bytes, step;
};

// Adds rows times `inputs` weights of float32 panels, `panel_stride` floats apart, to sums, or sets
// them. A short loop is unrolled so far that its end can be foreseen; it fetches nothing.
template <int Rows, int Panels, bool Short = false>
inline void multiply_tile(const float* rows, int64_t row_stride, const float* panels,
                          int64_t panel_stride, int inputs, float* sums, int64_t sum_stride,
                          int64_t sum_panel_stride, bool add, Ahead ahead = {}) {
  TileSums<Rows, Panels> tile;
  tile.begin(sums, sum_stride, sum_panel_stride, add);
  const auto multiply = [&](int input) {
    Columns weights[Panels];
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p)
      weights[p] = load_columns(panels + p * panel_stride + input * kPanel);
    tile.multiply(rows + input, row_stride, weights);
  };
  if constexpr (Short) {
#pragma GCC unroll 16
    for (int input = 0; input < inputs; ++input) multiply(input);
  } else {
#pragma GCC unroll 2
    for (int input = 0; input < inputs; ++input) {
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p)
        _mm_prefetch(ahead.panels + p * ahead.panel_bytes + input * ahead.step, _MM_HINT_T0);
      multiply(input);
    }
  }
  tile.end(sums, sum_stride, sum_panel_stride);
}

// The first tile of a stretch in a narrower storage: widens the weights, uses them and keeps them.
template <int Rows, int Panels, class Reader>
inline void multiply_and_widen(const float* rows, int64_t row_stride, const std::byte* panels,
                               int64_t panel_bytes, int inputs, float* sums, int64_t sum_stride,
                               int64_t sum_panel_stride, bool add, float* wide) {
  Reader readers[Panels];
  TileSums<Rows, Panels> tile;
  tile.begin(sums, sum_stride, sum_panel_stride, add);
  for (int begin = 0; begin < inputs; begin += kGroup, rows += kGroup) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) readers[p].group(panels + p * panel_bytes);
    panels += group_bytes(Reader::storage);
    for (int input = 0; input < kGroup; input += 2, wide += 2 * kPanel) {
      Columns weights[2][Panels];
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) {
        Columns pair[2];
        readers[p].read(input, pair);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          store(wide + p * kStretch * kPanel + i * kPanel, pair[i]);
          weights[i][p] = pair[i];
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) tile.multiply(rows + input + i, row_stride, weights[i]);
    }
  }
  tile.end(sums, sum_stride, sum_panel_stride);
}

// Many rows: adds a stretch of neighbouring panels to sums, `[panel][row][16]`, or sets them. `wide`
// is room for the panels' stretch in float32; what lies at `ahead` is fetched meanwhile.
template <class Reader, int Panels>
inline void multiply_stretch(const float* rows, int64_t row_stride, int count,
                             const std::byte* panels, int64_t panel_bytes, int depth, float* sums,
                             int64_t sum_stride, bool add, float* wide, const std::byte* ahead) {
  constexpr bool kIsWide = Reader::storage == Storage::kFloat32;
  const int64_t bytes = depth / kGroup * group_bytes(Reader::storage);
  const int tiles = (count + kTileRows - 1) / kTileRows;
  const int64_t step = std::max<int64_t>(bytes / depth / tiles, 1);
  const float* weights = kIsWide ? reinterpret_cast<const float*>(panels) : wide;
  const int64_t stride = kIsWide ? panel_bytes / int64_t{sizeof(float)} : kStretch * kPanel;
  Ahead fetched{reinterpret_cast<const char*>(ahead), panel_bytes, step};
  for_tiles(count, [&](auto tile_rows, int first) {
    const float* from = rows + first * row_stride;
    float* to = sums + first * kPanel;
    if (!kIsWide && first == 0)
      multiply_and_widen<tile_rows, Panels, Reader>(from, row_stride, panels, panel_bytes, depth,
                                                    to, kPanel, sum_stride, add, wide);
    else
      multiply_tile<tile_rows, Panels>(from, row_stride, weights, stride, depth, to, kPanel,
                                       sum_stride, add, fetched);
    fetched.panels += step * depth;
  });
}

// Sums of `count` rows and some neighbouring panels, `[panels][sum_stride]`. Rows are readable, and
// finite, up to the padded number of inputs. Where they do not stay in the second-level cache, all
// panels take a stretch of them before the next one.
template <class Reader>
inline void multiply_panels(const float* rows, int64_t row_stride, int count, const Weights& layer,
                            int64_t first, int panels, float* sums, int64_t sum_stride,
                            float* wide) {
  const int64_t inputs = layer.padded_inputs();
  if (count <= direct_rows(Reader::storage)) {
    for (int i = 0; i < panels; ++i)
      multiply_panel<Reader>(rows, row_stride, count, layer.panel(first + i), inputs,
                             sums + i * sum_stride);
    return;
  }
  // Stretches are even, and of whole groups.
  const int64_t most = (inputs + kStretch - 1) / kStretch;
  const int64_t length = (inputs / kGroup + most - 1) / most * kGroup;
  const auto stretches = static_cast<int>((inputs + length - 1) / length);
  const int tiles = (panels + kTilePanels - 1) / kTilePanels;
  const bool by_panel = count * inputs * int64_t{sizeof(float)} <= kCachedBytes;
  const auto place = [&](int number) {
    const int tile = by_panel ? number / stretches : number % tiles;
    const int stretch = by_panel ? number % stretches : number / tiles;
    return std::pair{tile * kTilePanels, stretch * length};
  };
  const auto weights = [&](int number) {
    const auto [panel, begin] = place(number);
    return layer.panel(first + panel) + begin / kGroup * group_bytes(Reader::storage);
  };
  const int all = tiles * stretches;
  for (int number = 0; number < all; ++number) {
    const auto [panel, begin] = place(number);
    const auto depth = static_cast<int>(std::min(length, inputs - begin));
    const std::byte* ahead = number + 1 < all ? weights(number + 1) : layer.panel(first + panels);
    with_count<kTilePanels>(std::min(kTilePanels, panels - panel), [&](auto taking) {
      multiply_stretch<Reader, taking>(rows + begin, row_stride, count, weights(number),
                                       layer.panel_bytes(), depth, sums + panel * sum_stride,
                                       sum_stride, begin > 0, wide, ahead);
    });
  }
}

}  // namespace blockyard
