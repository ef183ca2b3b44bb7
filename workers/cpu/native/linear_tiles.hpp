// A linear layer over many rows on the matrix unit, split over threads by panels and by rows.
#pragma once

#ifdef __AMX_BF16__

#include "matrix_tiles.hpp"
#include "matrix_unit.hpp"

namespace blockyard {

// Tiles of rows handled at once: a stretch of their pieces stays in the second-level cache while
// panels pass by, and what is split or widened of a panel serves all of them.
constexpr int kBlockTiles = 12;
// Panels whose sums are kept at once.
constexpr int kTiledPanels = 8;
// Pieces that are made before they are used: more would have left the caches by then.
constexpr int64_t kPassBytes = int64_t{4} << 20;

struct alignas(64) TiledScratch {
  float sums[kTiledPanels][kBlockTiles * kSumFloats];
  std::byte weights[kTiledPanels * kStretchGroups * kTileBytes];
  float room[4 * kSumFloats];
  float wide[kTilePanels * kStretch * kPanel];
};
static_assert(kTiledPanels >= 2 * 3, "two panels of float32 in pieces have room");

inline TiledScratch& tiled_scratch() {
  static thread_local TiledScratch scratch;
  return scratch;
}

// From so many rows on the unit is faster than vectors: with fewer, making pieces costs more than
// it saves.
inline int64_t least_tiled_rows(Storage storage) {
  switch (storage) {
    case Storage::kFloat32: return 80;
    case Storage::kBfloat16: return 5;
    case Storage::kInt8: return 13;
    case Storage::kInt4: return 10;
  }
  return 0;
}

// Sums of some tiles of rows and neighbouring panels in float32 or bfloat16, two by two.
template <int Pieces>
inline void multiply_panel_pairs(const RowPieces& rows, int first_tile, int tiles,
                                 const Weights& layer, int64_t first, int panels,
                                 TiledScratch& scratch) {
  const int64_t groups = layer.padded_inputs() / kGroup, bytes = group_bytes(layer.storage);
  const int64_t stretches = (groups + kStretchGroups - 1) / kStretchGroups;
  const int64_t length = (groups + stretches - 1) / stretches;
  const int steps = (tiles + 1) / 2;
  for (int64_t begin = 0; begin < groups; begin += length) {
    const int64_t depth = std::min(length, groups - begin);
    const bool last = begin + depth == groups;
    for (int panel = 0; panel < panels; panel += 2) {
      const int width = std::min(2, panels - panel);
      const std::byte* weights[2];
      float* sums[2];
      FetchedLines ahead{{}, (bytes + 64 * steps - 1) / (64 * steps)};
      for (int i = 0; i < 2; ++i) {
        const int which = panel + std::min(i, width - 1);
        const std::byte* from = layer.panel(first + which) + begin * bytes;
        const bool turns = panel + 2 >= panels;  // then the next stretch of the first ones comes
        const std::byte* next = !turns ? from + 2 * layer.panel_bytes()
                                : last ? layer.panel(first + panels + i)
                                       : layer.panel(first + i) + (begin + depth) * bytes;
        ahead.from[i] = reinterpret_cast<const char*>(next);
        sums[i] = scratch.sums[which];
        weights[i] = from;
        if constexpr (Pieces == 3) {
          std::byte* split = scratch.weights + i * kStretchGroups * Pieces * kTileBytes;
          weights[i] = split;
          if (i >= width) continue;
          for (int64_t group = 0; group < depth; ++group)
            tiles_of_float32(reinterpret_cast<const float*>(from + group * bytes),
                             split + group * Pieces * kTileBytes);
        }
      }
      const int64_t fetched = ahead.lines * 64 * depth;
      for (int tile = 0; tile < tiles; tile += 2) {
        const std::byte* at = rows.at(first_tile + tile, begin);
        const auto run = [&](auto height, auto breadth) {
          multiply_tiles<height, breadth, Pieces>(at, rows.tile_bytes(), weights, depth, sums,
                                                  begin > 0, ahead);
        };
        constexpr std::integral_constant<int, 1> kOne;
        constexpr std::integral_constant<int, 2> kTwo;
        if (tile + 1 < tiles && width == 2) run(kTwo, kTwo);
        else if (tile + 1 < tiles) run(kTwo, kOne);
        else if (width == 2) run(kOne, kTwo);
        else run(kOne, kOne);
        for (int i = 0; i < 2; ++i) {
          ahead.from[i] += fetched;
          sums[i] += 2 * kSumFloats;
        }
      }
    }
  }
}

// The same of panels whose groups have scales.
template <Storage kStorage>
inline void multiply_scaled_panels(const RowPieces& rows, int first_tile, int tiles,
                                   const Weights& layer, int64_t first, int panels,
                                   TiledScratch& scratch) {
  const int64_t groups = layer.padded_inputs() / kGroup, bytes = group_bytes(kStorage);
  const int64_t stretches = (groups + kStretchGroups - 1) / kStretchGroups;
  const int64_t length = (groups + stretches - 1) / stretches;
  for (int64_t begin = 0; begin < groups; begin += length) {
    const int64_t depth = std::min(length, groups - begin);
    const bool last = begin + depth == groups;
    const auto panel_at = [&](int panel) { return layer.panel(first + panel) + begin * bytes; };
    for (int panel = 0; panel < panels; ++panel) {
      for (int64_t group = 0; group < depth; ++group) {
        const std::byte* from = panel_at(panel) + group * bytes;
        std::byte* to = scratch.weights + (panel * kStretchGroups + group) * kTileBytes;
        if constexpr (kStorage == Storage::kInt8) tiles_of_int8(from, to);
        else tiles_of_int4(from, to);
      }
    }
    const int64_t lines = (bytes + 64 * tiles - 1) / (64 * tiles);
    for (int tile = 0; tile < tiles; ++tile) {
      for (int panel = 0; panel < panels; ++panel) {
        const std::byte* next =
            last ? layer.panel(first + panels + panel) : panel_at(panel) + depth * bytes;
        const auto* part = reinterpret_cast<const char*>(next) + tile * lines * 64 * depth;
        const FetchedLines ahead{{part}, lines};
        multiply_scaled<kStorage>(rows.at(first_tile + tile, begin),
                                  rows.group_sums(first_tile + tile, begin),
                                  scratch.weights + panel * kStretchGroups * kTileBytes,
                                  panel_at(panel), depth,
                                  scratch.sums[panel] + tile * kSumFloats, begin > 0, scratch.room,
                                  ahead);
      }
    }
  }
}

inline void multiply_tiled_panels(const RowPieces& rows, int first_tile, int tiles,
                                  const Weights& layer, int64_t first, int panels,
                                  TiledScratch& scratch) {
  const TilesInUse in_use;
  switch (layer.storage) {
    case Storage::kFloat32:
      return multiply_panel_pairs<3>(rows, first_tile, tiles, layer, first, panels, scratch);
    case Storage::kBfloat16:
      return multiply_panel_pairs<1>(rows, first_tile, tiles, layer, first, panels, scratch);
    case Storage::kInt8:
      return multiply_scaled_panels<Storage::kInt8>(rows, first_tile, tiles, layer, first, panels,
                                                    scratch);
    case Storage::kInt4:
      return multiply_scaled_panels<Storage::kInt4>(rows, first_tile, tiles, layer, first, panels,
                                                    scratch);
  }
}

// As `for_pieces` of `linear.hpp`. Rows pass by in as many as have their pieces in the caches.
template <int Width, class Finish>
void for_tiled_pieces(ThreadPool& pool, const Weights& layer, const float* inputs, int64_t stride,
                      int64_t rows, Finish&& finish) {
  static thread_local RowPieces pieces;
  const int64_t groups = layer.padded_inputs() / kGroup;
  const int64_t tile_bytes = groups * kRowPieces * kTileBytes;
  const int64_t all_tiles = (rows + kTileHeight - 1) / kTileHeight;
  const int64_t passes =
      std::min(all_tiles, (all_tiles * tile_bytes + kPassBytes - 1) / kPassBytes);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = all_tiles * pass / passes * kTileHeight;
    const int64_t end = std::min(rows, all_tiles * (pass + 1) / passes * kTileHeight);
    RowPieces& split = pieces;  // the caller's own, for all threads
    split.split(pool, inputs + begin * stride, stride, end - begin, groups,
                layer.storage == Storage::kInt4);
    const int tiles = split.tiles();
    const int blocks = (tiles + kBlockTiles - 1) / kBlockTiles;
    const auto units = static_cast<int>(layer.panels() / Width);
    // Chunks of an even number of panels, no more than have room, and enough of them for a late
    // thread to cost little.
    constexpr int kPair = 2 / Width, kMost = kTiledPanels / Width;
    const int wanted = std::max(1, 12 * pool.threads() / blocks);
    const int size = std::clamp(units / wanted / kPair * kPair, kPair, kMost);
    const int shares = (units + size - 1) / size;
    pool.run(blocks * shares, [&](int chunk, int) {
      TiledScratch& scratch = tiled_scratch();
      const int first_tile = tiles * (chunk / shares) / blocks;
      const int until_tile = tiles * (chunk / shares + 1) / blocks;
      const int64_t first = begin + int64_t{first_tile} * kTileHeight;
      const auto count = static_cast<int>(
          std::min(end, begin + int64_t{until_tile} * kTileHeight) - first);
      const int unit = chunk % shares * size;
      const int taking = std::min(size, units - unit);
      const int64_t panel = int64_t{unit} * Width;
      if (split.has_pieces(first_tile, until_tile)) {
        multiply_tiled_panels(split, first_tile, until_tile - first_tile, layer, panel,
                              taking * Width, scratch);
      } else {
        with_reader(layer.storage, [&](auto reader) {
          multiply_panels<decltype(reader)>(inputs + first * stride, stride, count, layer, panel,
                                            taking * Width, scratch.sums[0],
                                            kBlockTiles * kSumFloats, scratch.wide);
        });
      }
      // Outputs of a row lie side by side: they are written together, a tile at a time.
      for (int row = 0; row < count; row += kTileHeight) {
        for (int i = 0; i < taking * Width; i += Width) {
          const float* found[Width];
          for (int side = 0; side < Width; ++side)
            found[side] = scratch.sums[i + side] + row * kPanel;
          finish(found, first + row, std::min(kTileHeight, count - row), panel + i);
        }
      }
    });
  }
}

}  // namespace blockyard

#endif

