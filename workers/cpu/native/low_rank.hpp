// What adapters add to some rows of a linear: for each row a product with two narrow matrices.
//
// The first product takes a row's inputs to a few numbers, ahead and for all rows. The second takes
// those to a panel of outputs, where the linear has the panel's sums in registers: outputs are
// written once, and a gate has what is added before it is applied. Every row has one adapter or
// none; rows of one adapter share its matrices, however the step has them in order.
#pragma once

#include "thread_pool.hpp"
#include "weights.hpp"

namespace blockyard {

// The adapters of one linear, of which each has a slot.
extern "C" struct ByAdapters {
  const float *down, *up;  // [slots][rank][inputs], [slots][rank][outputs]; null: none adds here
  const int32_t* ranks;    // [slots], how much of `rank` is used
  int64_t inputs, outputs;
  int32_t rank;
};

class LowRank {
 public:
  // Takes in each row's slot, -1 for none; null: no row has one.
  void begin(const int32_t* slots, int64_t rows) {
    slots_.clear();
    if (slots != nullptr) slots_.assign(slots, slots + rows);
    sort_rows();
  }

  // From here on the step has these rows alone.
  void keep(const std::vector<int64_t>& rows) {
    if (slots_.empty()) return;
    std::vector<int32_t> kept;
    for (const int64_t row : rows) kept.push_back(slots_[static_cast<size_t>(row)]);
    slots_.swap(kept);
    sort_rows();
  }

  // Whether no row has an adapter.
  bool empty() const { return pieces_.empty(); }

  // Takes the first products of linears that read the same rows. Their panels lie one linear after
  // the other, or take turns. Answers what is to be added by `add`, null when it is nothing.
  const LowRank* multiply(ThreadPool& pool, const ByAdapters* linears, int count, bool turning,
                          const float* inputs, int64_t stride) {
    turning_ = turning;
    parts_.clear();
    int64_t width = 0, panel = 0;
    int most = 0;
    for (int i = 0; i < count; ++i) {
      parts_.push_back({linears[i], panel, width});
      panel += (linears[i].outputs + kPanel - 1) / kPanel;
      if (linears[i].down == nullptr) continue;
      most = std::max(most, linears[i].rank);
      width += (linears[i].rank + kRanks - 1) / kRanks * kRanks;
    }
    if (width == 0) return nullptr;
    width_ = width;
    narrow_.resize(std::max(narrow_.size(), slots_.size() * static_cast<size_t>(width)));
    const int quads = (most + kRanks - 1) / kRanks;
    const int each = count * quads, chunks = static_cast<int>(pieces_.size()) * each;
    auto take = [&](int chunk, int) {
      const Part& part = parts_[static_cast<size_t>(chunk % each / quads)];
      narrow(pieces_[static_cast<size_t>(chunk / each)], part, chunk % quads * kRanks, inputs,
             stride);
    };
    // Few products take less time than it takes to share them out.
    if (static_cast<int64_t>(order_.size()) * width * linears[0].inputs <= kAlone)
      for (int chunk = 0; chunk < chunks; ++chunk) take(chunk, 0);
    else
      pool.run(chunks, take);
    return this;
  }

  // Adds the second product to the sums of one row and panel.
  void add(int64_t row, int64_t panel, Columns& sums) const {
    const int32_t slot = slots_[static_cast<size_t>(row)];
    if (slot < 0) return;
    const auto count = static_cast<int64_t>(parts_.size());
    size_t own = 0;
    if (turning_) {
      own = static_cast<size_t>(panel % count);
      panel /= count;
    } else {
      while (own + 1 < parts_.size() && panel >= parts_[own + 1].panel) ++own;
      panel -= parts_[own].panel;
    }
    const Part& part = parts_[own];
    if (part.linear.down == nullptr) return;
    const float* narrow = narrow_.data() + row * width_ + part.at;
    const int64_t outputs = part.linear.outputs, column = panel * kPanel;
    const float* up = part.linear.up + slot * part.linear.rank * outputs + column;
    const int rank = part.linear.ranks[slot];
    const auto left = static_cast<int>(std::min<int64_t>(outputs - column, kPanel));
    if (left == kPanel) {
      // Two sums, or each product would wait for the one before.
      Columns others = zero_columns();
      int r = 0;
      for (; r + 1 < rank; r += 2, up += 2 * outputs) {
        sums = fma(broadcast(narrow[r]), load_columns(up), sums);
        others = fma(broadcast(narrow[r + 1]), load_columns(up + outputs), others);
      }
      if (r < rank) sums = fma(broadcast(narrow[r]), load_columns(up), sums);
      sums = sums + others;
      return;
    }
    for (int r = 0; r < rank; ++r, up += outputs)
      for (int p = 0; p < kParts; ++p)
        sums.parts[p] = fma(broadcast(narrow[r]), load_first(up + p * kLanes, left - p * kLanes),
                            sums.parts[p]);
  }

 private:
  static constexpr int kRanks = 4;      // taken together
  static constexpr int64_t kRows = 32;  // of a piece, so that threads share long chunks
  static constexpr int64_t kAlone = int64_t{1} << 20;  // products that one thread takes

  struct Part {
    ByAdapters linear;
    int64_t panel;  // its first, where they lie one after the other
    int64_t at;     // where a row's narrow numbers for it begin
  };

  struct Piece {  // rows `order_[begin..end)`, all of one slot
    int32_t slot;
    int64_t begin, end;
  };

  void sort_rows() {
    order_.clear();
    pieces_.clear();
    for (size_t row = 0; row < slots_.size(); ++row)
      if (slots_[row] >= 0) order_.push_back(static_cast<int64_t>(row));
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t one, int64_t other) {
      return slots_[static_cast<size_t>(one)] < slots_[static_cast<size_t>(other)];
    });
    const auto count = static_cast<int64_t>(order_.size());
    for (int64_t at = 0; at < count; ++at) {
      const int32_t slot = slots_[static_cast<size_t>(order_[static_cast<size_t>(at)])];
      if (pieces_.empty() || pieces_.back().slot != slot ||
          at - pieces_.back().begin == kRows)
        pieces_.push_back({slot, at, at});
      pieces_.back().end = at + 1;
    }
  }

  // Products of a piece's rows with up to four rows of `down`, from `first` on.
  void narrow(const Piece& piece, const Part& part, int first, const float* inputs,
              int64_t stride) {
    const ByAdapters& linear = part.linear;
    if (linear.down == nullptr || first >= linear.ranks[piece.slot]) return;
    const float* down[kRanks];
    for (int r = 0; r < kRanks; ++r) {
      // What lies beyond the rank is computed and never used.
      const int own = std::min(first + r, linear.rank - 1);
      down[r] = linear.down + (int64_t{piece.slot} * linear.rank + own) * linear.inputs;
    }
    for (int64_t at = piece.begin; at < piece.end; at += 2) {
      const int64_t row = order_[static_cast<size_t>(at)];
      const int64_t next = order_[static_cast<size_t>(std::min(at + 1, piece.end - 1))];
      const float* const from[2] = {inputs + row * stride, inputs + next * stride};
      float* const to[2] = {narrow_.data() + row * width_ + part.at + first,
                            narrow_.data() + next * width_ + part.at + first};
      if (row == next)
        multiply_rows<1>(from, down, linear.inputs, to);
      else
        multiply_rows<2>(from, down, linear.inputs, to);
    }
  }

  template <int Rows>
  static void multiply_rows(const float* const* rows, const float* const* down, int64_t inputs,
                            float* const* to) {
    Vector sums[Rows][kRanks];
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < kRanks; ++j) sums[r][j] = zero();
    const int64_t whole = inputs / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      Vector x[Rows];
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) x[r] = load(rows[r] + i);
#pragma GCC unroll 4
      for (int j = 0; j < kRanks; ++j) {
        const Vector w = load(down[j] + i);
#pragma GCC unroll 2
        for (int r = 0; r < Rows; ++r) sums[r][j] = fma(x[r], w, sums[r][j]);
      }
    }
    const auto left = static_cast<int>(inputs - whole);
    for (int r = 0; left > 0 && r < Rows; ++r)
      for (int j = 0; j < kRanks; ++j)
        sums[r][j] = fma(load_first(rows[r] + whole, left), load_first(down[j] + whole, left),
                         sums[r][j]);
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r)
      _mm_storeu_ps(to[r], sum_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
  }

  std::vector<int32_t> slots_;   // of each row
  std::vector<int64_t> order_;   // rows that have one, by slot
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;
  std::vector<float> narrow_;    // [rows][width_]
  int64_t width_ = 0;
  bool turning_ = false;
};

}  // namespace blockyard
