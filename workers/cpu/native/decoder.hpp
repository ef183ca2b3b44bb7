// Whole decoder layers of the Llama family: RMS norm, attention with rotary positions, gated SiLU.
//
// Rows of a step pass through a layer in eight loops over threads and no copies: sums are added to
// the residual stream where they are made, and the gate is applied where both its sides are. Of the
// last layer's rows only those go on that are sampled; all others end with their keys and values.
// Between ranks a product must be summed before it is added: then each half of a layer is a call of
// its own, and the product is the caller's.
#pragma once

#include <memory>

#include "attention.hpp"

namespace blockyard {

extern "C" struct ByMatrix {
  const void* data;
  const float* bias;  // or null
  int64_t columns, inputs;
  int32_t storage;
};

extern "C" struct ByDecoderLayer {
  ByMatrix projections;  // queries, keys, values
  ByMatrix output, gate_up, down;
  const float *attention_norm, *feed_forward_norm;
  const float *query_norm, *key_norm;  // of heads, or null
};

extern "C" struct ByDecoder {
  const ByDecoderLayer* layers;
  const float* final_norm;
  const float *cosines, *sines;  // [positions][half]
  ByMatrix head;                 // also the embedding, where that is not given
  int64_t hidden;
  float epsilon, head_epsilon;
  int32_t num_layers, heads, kv_heads, head_dim, half;
};

// One array of rows that grows and is never cleared again: what pads a row stays zero.
class RowBuffer {
 public:
  Rows fit(int64_t rows, int64_t width) {
    const int64_t stride = (width + kGroup - 1) / kGroup * kGroup;
    if (rows * stride > size_) {
      size_ = rows * stride;
      data_ = make_large(size_);
      std::fill_n(data_.get(), size_, 0.0f);
    }
    return rows_ = Rows{data_.get(), stride};
  }
  const Rows& rows() const { return rows_; }

 private:
  LargeFloats data_;
  int64_t size_ = 0;
  Rows rows_{nullptr, 0};
};

class Decoder {
 public:
  explicit Decoder(const ByDecoder& model)
      : model_(model), layers_(model.layers, model.layers + model.num_layers) {}

  // Takes in a step. `embedded` is `[tokens][hidden]`, or null: then the head's rows are looked up.
  void begin(ThreadPool& pool, const ByStep& step, const int64_t* tokens, const int64_t* positions,
             const int64_t* wanted, int64_t num_wanted, const float* embedded) {
    step_ = step;
    positions_ = positions;
    rows_ = step.tokens;
    low_rank_.begin(nullptr, 0);
    wanted_.assign(wanted, wanted + num_wanted);
    all_wanted_ = num_wanted == rows_;
    for (int64_t i = 0; all_wanted_ && i < num_wanted; ++i) all_wanted_ = wanted[i] == i;
    plan_ = std::make_unique<AttentionPlan>(step, pool.threads(), model_.heads, model_.kv_heads);
    const Rows hidden = hidden_.fit(rows_, model_.hidden);
    for_rows(pool, rows_, [&](int64_t row) {
      if (embedded != nullptr)
        std::copy_n(embedded + row * model_.hidden, model_.hidden, hidden.row(row));
      else
        widen_column(weights(model_.head), tokens[row], hidden.row(row));
    });
  }

  // Takes in which adapter each row of the step has, -1 for none, and those of every layer's linears.
  void adapt(const int32_t* slots, const ByAdapters* linears) {
    low_rank_.begin(slots, rows_);
    adapters_ = linears;
  }

  // Attention of one layer. Added to the residual stream, unless `product` is to take it.
  void attend(ThreadPool& pool, int index, const ByLayer& kv, const ByForm& form, float* product) {
    const ByDecoderLayer& layer = layers_[static_cast<size_t>(index)];
    const Rows projected = projected_.fit(rows_, layer.projections.columns);
    const Rows normed = normalise(pool, layer.attention_norm);
    project(pool, layer.projections, normed, projected, false,
            adapted(pool, index, kProjections, 3, normed));
    const ByRotary rotary{model_.cosines,   model_.sines,   positions_,          layer.query_norm,
                          layer.key_norm,   model_.head_epsilon, model_.half};
    rotate_and_write(pool, kv, step_, rotary, projected.data, projected.stride, model_.heads);
    ConstRows queries = projected;
    if (index + 1 == model_.num_layers && !all_wanted_) queries = keep_wanted(pool);
    const Rows attended = attended_.fit(rows_, layer.output.inputs);
    plan_->run(pool, kv, form, queries, attended);
    add(pool, layer.output, attended, product, adapted(pool, index, kOutput, 1, attended));
  }

  void feed_forward(ThreadPool& pool, int index, float* product) {
    const ByDecoderLayer& layer = layers_[static_cast<size_t>(index)];
    const Rows gated = gated_.fit(rows_, layer.down.inputs);
    const Rows normed = normalise(pool, layer.feed_forward_norm);
    gated_linear(pool, weights(layer.gate_up), normed, rows_, gated,
                 adapted(pool, index, kGateUp, 2, normed));
    add(pool, layer.down, gated, product, adapted(pool, index, kDown, 1, gated));
  }

  // Adds what ranks have summed, `[rows][hidden]`.
  void add_product(ThreadPool& pool, const float* product) {
    const Rows hidden = hidden_.rows();
    for_rows(pool, rows_, [&](int64_t row) {
      const float* from = product + row * model_.hidden;
      float* to = hidden.row(row);
      for (int64_t i = 0; i < model_.hidden; ++i) to[i] += from[i];
    });
  }

  // Logits of the wanted rows; whole panels of columns are written.
  void finish(ThreadPool& pool, float* logits, int64_t stride) {
    project(pool, model_.head, normalise(pool, model_.final_norm), Rows{logits, stride}, false,
            nullptr);
  }

  int64_t rows() const { return rows_; }
  int num_layers() const { return model_.num_layers; }

 private:
  static Weights weights(const ByMatrix& matrix) {
    return {static_cast<const std::byte*>(matrix.data), matrix.columns, matrix.inputs,
            static_cast<Storage>(matrix.storage)};
  }

  // Where a layer's linears are among the seven that may have adapters.
  enum { kProjections = 0, kOutput = 3, kGateUp = 4, kDown = 6, kLinears = 7 };

  // What adapters add to `count` linears that read the same rows; null: nothing.
  const LowRank* adapted(ThreadPool& pool, int index, int first, int count, ConstRows inputs) {
    if (low_rank_.empty()) return nullptr;
    return low_rank_.multiply(pool, adapters_ + index * kLinears + first, count, first == kGateUp,
                              inputs.data, inputs.stride);
  }

  void project(ThreadPool& pool, const ByMatrix& matrix, ConstRows inputs, Rows outputs, bool add,
               const LowRank* adapters) {
    linear(pool, weights(matrix), matrix.bias, inputs, rows_, outputs, add, adapters);
  }

  void add(ThreadPool& pool, const ByMatrix& matrix, ConstRows inputs, float* product,
           const LowRank* adapters) {
    if (product != nullptr)
      project(pool, matrix, inputs, Rows{product, model_.hidden}, false, adapters);
    else
      project(pool, matrix, inputs, hidden_.rows(), true, adapters);
  }

  Rows normalise(ThreadPool& pool, const float* weight) {
    const Rows hidden = hidden_.rows(), normed = normed_.fit(rows_, model_.hidden);
    for_rows(pool, rows_, [&](int64_t row) {
      scale_row(hidden.row(row), weight, model_.epsilon, model_.hidden, normed.row(row));
    });
    return normed;
  }

  // From here on the step has the wanted rows alone. Returns their queries.
  ConstRows keep_wanted(ThreadPool& pool) {
    const auto count = static_cast<int64_t>(wanted_.size());
    const int64_t width = int64_t{model_.heads} * model_.head_dim;
    const Rows hidden = hidden_.rows(), projected = projected_.rows();
    const Rows kept = kept_.fit(count, model_.hidden), queries = queries_.fit(count, width);
    for_rows(pool, count, [&](int64_t row) {
      const int64_t token = wanted_[static_cast<size_t>(row)];
      std::copy_n(hidden.row(token), model_.hidden, kept.row(row));
      std::copy_n(projected.row(token), width, queries.row(row));
    });
    std::swap(hidden_, kept_);
    plan_ = std::make_unique<AttentionPlan>(step_, pool.threads(), model_.heads, model_.kv_heads,
                                            wanted_.data(), count);
    low_rank_.keep(wanted_);
    rows_ = count;
    return queries;
  }

  ByDecoder model_;
  std::vector<ByDecoderLayer> layers_;
  ByStep step_{};
  const int64_t* positions_ = nullptr;
  int64_t rows_ = 0;
  std::vector<int64_t> wanted_;
  bool all_wanted_ = false;
  std::unique_ptr<AttentionPlan> plan_;
  LowRank low_rank_;
  const ByAdapters* adapters_ = nullptr;  // [layers][7], the caller's until the step ends
  RowBuffer hidden_, normed_, projected_, attended_, gated_, kept_, queries_;
};

}  // namespace blockyard
