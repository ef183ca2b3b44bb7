// Few rows times one panel of weights, which is read once from end to end and widened as it is read.
#pragma once

#include <utility>

#include "weights.hpp"

namespace blockyard {

// So many rows at most have their sums with one panel kept while the panel is read once from end to
// end. Of float32 there is nothing to widen, and stretches of two panels are sooner as fast; of
// narrower storages a row more costs less here, until registers run out.
constexpr int direct_rows(Storage storage) {
  return storage == Storage::kFloat32 ? 2 : kRegisters == 32 ? 12 : 8;
}

// Calls body(constant) with the constant that `count` is, 1 <= count <= Most.
template <int Most, class Body>
inline void with_count(int count, Body&& body) {
  if constexpr (Most > 1) {
    if (count < Most) return with_count<Most - 1>(count, body);
  }
  body(std::integral_constant<int, Most>{});
}

constexpr int64_t kFetchedAhead = 4096;  // bytes, where a panel is read from end to end

inline void fetch_group(const std::byte* panel, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(panel) + kFetchedAhead + line, _MM_HINT_T0);
}

// Sums of each row and panel that go side by side, or each would wait for the last.
constexpr int sums_of(int rows) {
  const int wanted = kRegisters / (2 * kParts) / rows;
  return wanted >= 8 ? 8 : wanted >= 4 ? 4 : wanted >= 2 ? 2 : 1;
}

// `Rows` inputs times the weights of neighbouring inputs, to sums that take turns.
template <int Rows, int Sums>
[[gnu::always_inline]] inline void multiply_pair(const float* inputs, int64_t stride, int turn,
                                                 const Columns (&pair)[2],
                                                 Columns (&sums)[Sums][Rows]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
#pragma GCC unroll 24
    for (int r = 0; r < Rows; ++r) {
      Columns& own = sums[(turn + i) % Sums][r];
      own = fma(broadcast(inputs[r * stride + i]), pair[i], own);
    }
}

template <int Rows, int Sums>
[[gnu::always_inline]] inline void clear(Columns (&sums)[Sums][Rows]) {
#pragma GCC unroll 8
  for (int s = 0; s < Sums; ++s)
#pragma GCC unroll 24
    for (int r = 0; r < Rows; ++r) sums[s][r] = zero_columns();
}

template <int Rows, int Sums>
[[gnu::always_inline]] inline Columns gather(const Columns (&sums)[Sums][Rows], int row) {
  Columns all = sums[0][row];
#pragma GCC unroll 8
  for (int s = 1; s < Sums; ++s) all = all + sums[s][row];
  return all;
}

// Few rows, all inputs of one panel.
template <int Rows, class Reader>
inline void multiply_direct(const float* rows, int64_t row_stride, const std::byte* panel,
                            int64_t inputs, float* sums) {
  constexpr int kSums = sums_of(Rows), kStep = std::max(kSums, 2);
  Reader reader;
  Columns found[kSums][Rows];
  clear(found);
  constexpr int64_t kBytes = group_bytes(Reader::storage);
  for (int64_t begin = 0; begin < inputs; begin += kGroup, panel += kBytes, rows += kGroup) {
    reader.group(panel);
    fetch_group(panel, kBytes);
    for (int input = 0; input < kGroup; input += kStep)
#pragma GCC unroll 4
      for (int i = 0; i < kStep; i += 2) {
        Columns pair[2];
        reader.read(input + i, pair);
        multiply_pair(rows + input + i, row_stride, i, pair, found);
      }
  }
#pragma GCC unroll 24
  for (int r = 0; r < Rows; ++r) store(sums + r * kPanel, gather(found, r));
}

// The same for weights with a scale for each group, which is applied to the group's sums.
template <int Rows, class Reader>
inline void multiply_groups(const float* rows, int64_t row_stride, const std::byte* panel,
                            int64_t inputs, float* sums) {
  constexpr int kSums = std::max(sums_of(Rows), 2);
  Reader reader;
  Columns all[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) all[r] = zero_columns();
  constexpr int64_t kBytes = group_bytes(Reader::storage);
  for (int64_t begin = 0; begin < inputs; begin += kGroup, panel += kBytes, rows += kGroup) {
    reader.group(panel);
    fetch_group(panel, kBytes);
    Columns found[kSums][Rows];
    clear(found);
    for (int input = 0; input < kGroup; input += kSums)
#pragma GCC unroll 4
      for (int i = 0; i < kSums; i += 2) {
        Columns pair[2];
        reader.read_numbers(input + i, pair);
        multiply_pair(rows + input + i, row_stride, i, pair, found);
      }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
      all[r] = reader.add_group(rows + r * row_stride, gather(found, r), all[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) store(sums + r * kPanel, all[r]);
}

// Sums of few rows and one panel, `[count][16]`.
template <class Reader>
inline void multiply_panel(const float* rows, int64_t row_stride, int count,
                           const std::byte* panel, int64_t inputs, float* sums) {
  constexpr bool kHasScales =
      Reader::storage == Storage::kInt8 || Reader::storage == Storage::kInt4;
  constexpr int kGroupRows = kRegisters == 32 ? 4 : 2;  // of which sums and a group's sums fit
  with_count<direct_rows(Reader::storage)>(count, [&](auto constant) {
    if constexpr (kHasScales && constant <= kGroupRows)
      multiply_groups<constant, Reader>(rows, row_stride, panel, inputs, sums);
    else
      multiply_direct<constant, Reader>(rows, row_stride, panel, inputs, sums);
  });
}

}  // namespace blockyard
