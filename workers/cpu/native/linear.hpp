// A linear layer over all rows of a step, split over threads by panels and, for many rows, by rows.
#pragma once

#include "linear_tiles.hpp"
#include "low_rank.hpp"
#include "multiply.hpp"
#include "thread_pool.hpp"

namespace blockyard {

// Rows handled at once: their inputs stay in the second-level cache while panels pass by.
constexpr int kMostRows = kRegisters == 32 ? 192 : 96;
// Panels whose sums are kept at once.
constexpr int kMostPanels = 8;
// Bytes of weights that a thread claims at once where few rows read them.
constexpr int64_t kLeastStream = 64 * 1024;

struct alignas(64) LinearScratch {
  float sums[kMostPanels][kMostRows * kPanel];
  float wide[kTilePanels * kStretch * kPanel];
};

inline LinearScratch& linear_scratch() {
  static thread_local LinearScratch scratch;
  return scratch;
}

// Rows and how far apart they are.
struct Rows {
  float* data;
  int64_t stride;
  float* row(int64_t index) const { return data + index * stride; }
};

struct ConstRows {
  const float* data;
  int64_t stride;
  ConstRows(const float* data, int64_t stride) : data(data), stride(stride) {}
  ConstRows(const Rows& rows) : data(rows.data), stride(rows.stride) {}
  const float* row(int64_t index) const { return data + index * stride; }
};

// Runs finish(sums, first row, count, first panel) for every `Width` neighbouring panels and some
// rows, once their sums are there: `sums[i]` holds those of panel `first panel + i`.
template <int Width, class Finish>
void for_pieces(ThreadPool& pool, const Weights& layer, ConstRows inputs, int64_t rows,
                Finish&& finish) {
  if (rows == 0) return;
#ifdef __AMX_BF16__
  if (rows >= least_tiled_rows(layer.storage) && may_use_matrix_unit())
    return for_tiled_pieces<Width>(pool, layer, inputs.data, inputs.stride, rows, finish);
#endif
  // Blocks of rows end with whole tiles.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  constexpr int kMostTiles = kMostRows / kTileRows;
  const auto blocks = static_cast<int>((tiles + kMostTiles - 1) / kMostTiles);
  const auto units = static_cast<int>(layer.panels() / Width);
  // A chunk is long enough to make claiming it cheap and its memory one stream, and there are
  // enough of them for a late thread to cost little.
  const int wanted = std::max(1, 12 * pool.threads() / blocks);
  const bool direct = rows <= direct_rows(layer.storage);
  const int64_t stream = direct ? kLeastStream / (Width * layer.panel_bytes()) : 1;
  const int most = units / (2 * pool.threads());
  const int size = std::max({1, units / wanted, static_cast<int>(std::min<int64_t>(stream, most))});
  const int pieces = (units + size - 1) / size;
  pool.run(blocks * pieces, [&](int chunk, int) {
    LinearScratch& scratch = linear_scratch();
    const int block = chunk / pieces;
    const int64_t first = tiles * block / blocks * kTileRows;
    const int64_t until = std::min(rows, tiles * (block + 1) / blocks * kTileRows);
    const auto count = static_cast<int>(until - first);
    const int begin = chunk % pieces * size;
    const int end = std::min(begin + size, units);
    with_reader(layer.storage, [&](auto reader) {
      constexpr int kUnits = kMostPanels / Width;
      for (int unit = begin; unit < end; unit += kUnits) {
        const int taking = std::min(kUnits, end - unit);
        const int64_t panel = int64_t{unit} * Width;
        multiply_panels<decltype(reader)>(inputs.row(first), inputs.stride, count, layer, panel,
                                          taking * Width, scratch.sums[0], kMostRows * kPanel,
                                          scratch.wide);
        for (int i = 0; i < taking; ++i)
          finish(scratch.sums + i * Width, first, count, panel + i * Width);
      }
    });
  });
}

// outputs = inputs * weights^T (+ bias) (+ what adapters add), or added to what outputs hold. Whole
// panels are written.
inline void linear(ThreadPool& pool, const Weights& layer, const float* bias, ConstRows inputs,
                   int64_t rows, Rows outputs, bool add, const LowRank* adapters) {
  for_pieces<1>(pool, layer, inputs, rows,
                [&](const auto* found, int64_t first, int count, int64_t panel) {
    const int64_t column = panel * kPanel;
    const Columns biases = bias != nullptr ? load_columns(bias + column) : zero_columns();
    for (int row = 0; row < count; ++row) {
      float* to = outputs.row(first + row) + column;
      Columns sums = load_columns(found[0] + row * kPanel) + biases;
      if (adapters != nullptr) adapters->add(first + row, panel, sums);
      if (add) sums = sums + load_columns(to);
      store(to, sums);
    }
  });
}

// outputs = silu(gate) * up, of a layer whose panels alternate: gate's first, up's first, and so on.
inline void gated_linear(ThreadPool& pool, const Weights& layer, ConstRows inputs, int64_t rows,
                         Rows outputs, const LowRank* adapters) {
  for_pieces<2>(pool, layer, inputs, rows,
                [&](const auto* found, int64_t first, int count, int64_t panel) {
    for (int row = 0; row < count; ++row) {
      Columns gate = load_columns(found[0] + row * kPanel);
      Columns up = load_columns(found[1] + row * kPanel);
      if (adapters != nullptr) {
        adapters->add(first + row, panel, gate);
        adapters->add(first + row, panel + 1, up);
      }
      store(outputs.row(first + row) + panel / 2 * kPanel, silu(gate) * up);
    }
  });
}

}  // namespace blockyard
