// Weights of a linear layer, packed once in the order in which they are read.
//
// A panel holds 16 output columns, stored input by input: the 16 weights of input 0, of input 1, and
// so on. In bfloat16 a column's weights of inputs 0 and 1 are neighbours, of 2 and 3, and so on: one
// load gives two inputs, and products of pairs find theirs where they want them. What is stored in 8 or 4 bits comes in groups of 32 inputs, each with a half-precision
// scale for each column (and, in 4 bits, a half-precision least value): the numbers of a group first.
// Inputs are filled up to whole groups and columns to whole panels, with zeros.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "vector.hpp"

namespace blockyard {

constexpr int kGroup = 32;

enum class Storage : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };

struct Weights {
  const std::byte* data;
  int64_t columns;
  int64_t inputs;
  Storage storage;

  int64_t panels() const { return (columns + kPanel - 1) / kPanel; }
  int64_t padded_inputs() const { return (inputs + kGroup - 1) / kGroup * kGroup; }
  int64_t panel_bytes() const;
  const std::byte* panel(int64_t index) const { return data + index * panel_bytes(); }
};

// Bytes of a group of one panel, all 16 columns.
constexpr int64_t group_bytes(Storage storage) {
  switch (storage) {
    case Storage::kFloat32: return kGroup * kPanel * 4;
    case Storage::kBfloat16: return kGroup * kPanel * 2;
    case Storage::kInt8: return kPanel * 2 + kGroup * kPanel;
    case Storage::kInt4: return kPanel * 4 + kGroup * kPanel / 2;
  }
  return 0;
}

inline int64_t Weights::panel_bytes() const {
  return padded_inputs() / kGroup * group_bytes(storage);
}

// One reader for each storage. `group(at)` begins the group of 32 inputs stored at `at`;
// `read(input, to)` gives its weights of an even input and of the next, counted from the group's
// first. Where a group has scales, `read_numbers` gives the bare numbers instead, and `add_group`
// adds to `to` what sums of inputs times bare numbers amount to: one product with the scale for each
// group instead of each weight.
struct ReadFloat32 {
  static constexpr Storage storage = Storage::kFloat32;
  const float* weights;
  void group(const std::byte* at) { weights = reinterpret_cast<const float*>(at); }
  void read(int input, Columns (&to)[2]) const {
    to[0] = load_columns(weights + input * kPanel);
    to[1] = load_columns(weights + (input + 1) * kPanel);
  }
};

struct ReadBfloat16 {
  static constexpr Storage storage = Storage::kBfloat16;
  const Bfloat16* weights;
  void group(const std::byte* at) { weights = reinterpret_cast<const Bfloat16*>(at); }
  void read(int input, Columns (&to)[2]) const {
    for (int p = 0; p < kParts; ++p)
      load_pairs(weights + input * kPanel + p * 2 * kLanes, to[0].parts[p], to[1].parts[p]);
  }
};

inline Columns load_scales(const std::byte* from) {
  Columns scales;
  for (int p = 0; p < kParts; ++p)
    scales.parts[p] = load_halves(reinterpret_cast<const uint16_t*>(from) + p * kLanes);
  return scales;
}

struct ReadInt8 {
  static constexpr Storage storage = Storage::kInt8;
  const int8_t* weights;
  Columns scales;
  void group(const std::byte* at) {
    scales = load_scales(at);
    weights = reinterpret_cast<const int8_t*>(at + kPanel * 2);
  }
  void read_numbers(int input, Columns (&to)[2]) const {
    for (int i = 0; i < 2; ++i)
      for (int p = 0; p < kParts; ++p)
        to[i].parts[p] = load(weights + (input + i) * kPanel + p * kLanes);
  }
  void read(int input, Columns (&to)[2]) const {
    read_numbers(input, to);
    for (Columns& columns : to) columns = columns * scales;
  }
  Columns add_group(const float*, const Columns& sums, const Columns& to) const {
    return fma(sums, scales, to);
  }
};

// Byte `j` of an input pair holds column `j` of the even input below, of the odd input above.
struct ReadInt4 {
  static constexpr Storage storage = Storage::kInt4;
  const uint8_t* weights;
  Columns scales, leasts;
  void group(const std::byte* at) {
    scales = load_scales(at);
    leasts = load_scales(at + kPanel * 2);
    weights = reinterpret_cast<const uint8_t*>(at + kPanel * 4);
  }
  void read_numbers(int input, Columns (&to)[2]) const {
    for (int p = 0; p < kParts; ++p)
      load_fours(weights + input / 2 * kPanel + p * kLanes, to[0].parts[p], to[1].parts[p]);
  }
  void read(int input, Columns (&to)[2]) const {
    read_numbers(input, to);
    for (Columns& columns : to) columns = fma(columns, scales, leasts);
  }
  Columns add_group(const float* inputs, const Columns& sums, const Columns& to) const {
    Vector all = load(inputs);
    for (int i = kLanes; i < kGroup; i += kLanes) all += load(inputs + i);
    return fma(broadcast(sum(all)), leasts, fma(sums, scales, to));
  }
};

// Calls body with the reader of `storage`.
template <class Body>
void with_reader(Storage storage, Body&& body) {
  switch (storage) {
    case Storage::kFloat32: return body(ReadFloat32{});
    case Storage::kBfloat16: return body(ReadBfloat16{});
    case Storage::kInt8: return body(ReadInt8{});
    case Storage::kInt4: return body(ReadInt4{});
  }
}

inline uint16_t to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
inline float from_half(uint16_t value) { return _cvtsh_ss(value); }

// Packs one group of one panel. `values` is `[32][16]`.
inline void pack_group(Storage storage, const float* values, std::byte* to) {
  constexpr int kNumbers = kGroup * kPanel;
  if (storage == Storage::kFloat32) {
    std::memcpy(to, values, kNumbers * sizeof(float));
    return;
  }
  if (storage == Storage::kBfloat16) {
    auto* out = reinterpret_cast<Bfloat16*>(to);
    for (int input = 0; input < kGroup; ++input)
      for (int column = 0; column < kPanel; ++column)
        out[input / 2 * 2 * kPanel + column * 2 + input % 2] =
            to_bfloat16(values[input * kPanel + column]);
    return;
  }
  auto* scales = reinterpret_cast<uint16_t*>(to);
  if (storage == Storage::kInt8) {
    auto* out = reinterpret_cast<int8_t*>(to + kPanel * 2);
    for (int column = 0; column < kPanel; ++column) {
      float most = 0;
      for (int i = column; i < kNumbers; i += kPanel) most = std::max(most, std::fabs(values[i]));
      scales[column] = to_half(most / 127.0f);
      const float scale = from_half(scales[column]);
      for (int i = column; i < kNumbers; i += kPanel) {
        const float number = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0f;
        out[i] = static_cast<int8_t>(std::clamp(number, -127.0f, 127.0f));
      }
    }
    return;
  }
  // The scale spans the least to the greatest value; a group that is already in such a form, as
  // those of common 4-bit files are, is kept exactly.
  uint16_t* leasts = scales + kPanel;
  auto* out = reinterpret_cast<uint8_t*>(to + kPanel * 4);
  std::fill_n(out, kNumbers / 2, uint8_t{0});
  for (int column = 0; column < kPanel; ++column) {
    float least = values[column], most = values[column];
    for (int i = column; i < kNumbers; i += kPanel) {
      least = std::min(least, values[i]);
      most = std::max(most, values[i]);
    }
    scales[column] = to_half((most - least) / 15.0f);
    leasts[column] = to_half(least);
    const float scale = from_half(scales[column]);
    least = from_half(leasts[column]);
    for (int input = 0; input < kGroup; ++input) {
      const float value = values[input * kPanel + column];
      const float number = scale > 0 ? std::nearbyint((value - least) / scale) : 0.0f;
      const auto four_bits = static_cast<uint8_t>(std::clamp(number, 0.0f, 15.0f));
      out[input / 2 * kPanel + column] |= static_cast<uint8_t>(four_bits << (input % 2 * 4));
    }
  }
}

// Packs panel `index` of a layer whose row-major weights are `[columns][inputs]`, `stride` floats
// apart, to panel `place`: two layers may be packed into one, their panels alternating.
inline void pack_panel(const Weights& layer, int64_t index, const float* weights, int64_t stride,
                       int64_t place) {
  auto* to = const_cast<std::byte*>(layer.panel(place));
  const int64_t first = index * kPanel;
  const auto width = static_cast<int>(std::min<int64_t>(kPanel, layer.columns - first));
  float values[kGroup * kPanel];
  for (int64_t begin = 0; begin < layer.inputs; begin += kGroup) {
    const auto depth = static_cast<int>(std::min<int64_t>(kGroup, layer.inputs - begin));
    std::fill_n(values, kGroup * kPanel, 0.0f);
    for (int column = 0; column < width; ++column)
      for (int input = 0; input < depth; ++input)
        values[input * kPanel + column] = weights[(first + column) * stride + begin + input];
    pack_group(layer.storage, values, to);
    to += group_bytes(layer.storage);
  }
}

// Weights of one output column over all inputs, as float32: a row of the original matrix.
inline void widen_column(const Weights& layer, int64_t column, float* to) {
  const std::byte* at = layer.panel(column / kPanel);
  const auto lane = static_cast<int>(column % kPanel);
  with_reader(layer.storage, [&](auto reader) {
    float rows[2][kPanel];
    Columns pair[2];
    for (int64_t input = 0; input < layer.inputs; input += 2) {
      if (input % kGroup == 0) reader.group(at + input / kGroup * group_bytes(layer.storage));
      reader.read(static_cast<int>(input % kGroup), pair);
      for (int i = 0; i < 2; ++i) store(rows[i], pair[i]);
      to[input] = rows[0][lane];
      if (input + 1 < layer.inputs) to[input + 1] = rows[1][lane];
    }
  });
}

}  // namespace blockyard
