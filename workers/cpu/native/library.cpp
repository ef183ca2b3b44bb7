// What Python calls. Every pointer stays the caller's; nothing here throws across the border.
#include "decoder.hpp"
#include "matrix_unit.hpp"
#include "penalties.hpp"
#include "sampling.hpp"
#include "token_scores.hpp"

using namespace blockyard;

#pragma GCC visibility push(default)
extern "C" {

// Raised when a signature below changes, so that a library of another time is not called.
int32_t by_version() { return 10; }

// The instruction set that it was compiled for.
const char* by_instructions() { return may_use_matrix_unit() ? "amx" : kInstructions; }

ThreadPool* by_pool_new(int32_t threads) { return new ThreadPool(threads); }
void by_pool_free(ThreadPool* pool) { delete pool; }

int64_t by_packed_bytes(int64_t columns, int64_t inputs, int32_t storage) {
  const Weights layer{nullptr, columns, inputs, static_cast<Storage>(storage)};
  return layer.panels() * layer.panel_bytes();
}

// Packs `weights`, `[columns][inputs]` with rows `stride` apart, to every `step`-th panel of
// `packed`, from panel `first` on.
void by_pack(ThreadPool* pool, const float* weights, int64_t stride, int64_t columns,
             int64_t inputs, int32_t storage, int64_t first, int64_t step, void* packed) {
  Weights layer{static_cast<const std::byte*>(packed), columns, inputs,
                static_cast<Storage>(storage)};
  pool->run(static_cast<int>(layer.panels()), [&](int panel, int) {
    pack_panel(layer, panel, weights, stride, first + panel * step);
  });
}

// The weights as they are after packing, `[columns][inputs]`.
void by_unpack(ThreadPool* pool, const void* packed, int64_t columns, int64_t inputs,
               int32_t storage, int64_t first, int64_t step, float* weights) {
  const Weights layer{static_cast<const std::byte*>(packed), columns, inputs,
                      static_cast<Storage>(storage)};
  pool->run(static_cast<int>(columns), [&](int column, int) {
    const int64_t place = (first + column / kPanel * step) * kPanel + column % kPanel;
    widen_column(layer, place, weights + column * inputs);
  });
}

// Some columns' weights as they are after packing, `[count][inputs]`: an embedding's look-up.
void by_look_up(ThreadPool* pool, const void* packed, int64_t columns, int64_t inputs,
                int32_t storage, const int64_t* wanted, int64_t count, float* found) {
  const Weights layer{static_cast<const std::byte*>(packed), columns, inputs,
                      static_cast<Storage>(storage)};
  for_rows(*pool, count,
           [&](int64_t row) { widen_column(layer, wanted[row], found + row * inputs); });
}

// Rows hold zeros between `inputs` and the next multiple of 32; outputs have whole panels. `slots`
// are the rows' adapters, of `count` linears whose panels may take turns; null: there are none.
void by_linear(ThreadPool* pool, const void* packed, int64_t columns, int64_t inputs,
               int32_t storage, const float* bias, const float* rows, int64_t row_stride,
               int64_t num_rows, float* outputs, int64_t output_stride, const int32_t* slots,
               const ByAdapters* adapters, int32_t count, int32_t turning) {
  const Weights layer{static_cast<const std::byte*>(packed), columns, inputs,
                      static_cast<Storage>(storage)};
  LowRank low_rank;
  low_rank.begin(slots, num_rows);
  const LowRank* added = nullptr;
  if (!low_rank.empty())
    added = low_rank.multiply(*pool, adapters, count, turning != 0, rows, row_stride);
  linear(*pool, layer, bias, ConstRows(rows, row_stride), num_rows, Rows{outputs, output_stride},
         false, added);
}

void by_write(ThreadPool* pool, const ByLayer* layer, const ByStep* step, const float* keys,
              const float* values, int64_t stride) {
  write_tokens(*pool, *layer, *step, keys, values, stride);
}

void by_rotate_and_write(ThreadPool* pool, const ByLayer* layer, const ByStep* step,
                         const ByRotary* rotary, float* projected, int64_t stride, int32_t heads) {
  rotate_and_write(*pool, *layer, *step, *rotary, projected, stride, heads);
}

AttentionPlan* by_plan_new(ThreadPool* pool, const ByStep* step, int32_t heads, int32_t kv_heads) {
  return new AttentionPlan(*step, pool->threads(), heads, kv_heads);
}

void by_plan_free(AttentionPlan* plan) { delete plan; }

void by_attend(ThreadPool* pool, AttentionPlan* plan, const ByLayer* layer, const ByForm* form,
               const float* queries, int64_t query_stride, float* outputs, int64_t output_stride) {
  plan->run(*pool, *layer, *form, ConstRows(queries, query_stride), Rows{outputs, output_stride});
}

Decoder* by_decoder_new(const ByDecoder* model) { return new Decoder(*model); }
void by_decoder_free(Decoder* decoder) { delete decoder; }

void by_decoder_begin(ThreadPool* pool, Decoder* decoder, const ByStep* step, const int64_t* tokens,
                      const int64_t* positions, const int64_t* wanted, int64_t num_wanted,
                      const float* embedded) {
  decoder->begin(*pool, *step, tokens, positions, wanted, num_wanted, embedded);
}

// Comes after `begin` where rows have adapters: their slots, -1 for none, and the adapters of each
// layer's seven linears, `[layers][7]`, which stay the caller's until the step ends.
void by_decoder_adapt(Decoder* decoder, const int32_t* slots, const ByAdapters* linears) {
  decoder->adapt(slots, linears);
}

// All layers of a model that is whole; `layers` are its parts of the pool, `forms` its formulas.
void by_decoder_run(ThreadPool* pool, Decoder* decoder, const ByLayer* layers,
                    const ByForm* forms) {
  for (int index = 0; index < decoder->num_layers(); ++index) {
    decoder->attend(*pool, index, layers[index], forms[index], nullptr);
    decoder->feed_forward(*pool, index, nullptr);
  }
}

// Half a layer of a rank: `product`, `[rows][hidden]`, waits for the other ranks' products.
void by_decoder_attend(ThreadPool* pool, Decoder* decoder, int32_t index, const ByLayer* layer,
                       const ByForm* form, float* product) {
  decoder->attend(*pool, index, *layer, *form, product);
}

void by_decoder_feed_forward(ThreadPool* pool, Decoder* decoder, int32_t index, float* product) {
  decoder->feed_forward(*pool, index, product);
}

void by_decoder_add(ThreadPool* pool, Decoder* decoder, const float* product) {
  decoder->add_product(*pool, product);
}

// Rows that are left: all of the step's, or after the last layer's attention the wanted ones.
int64_t by_decoder_rows(Decoder* decoder) { return decoder->rows(); }

void by_decoder_finish(ThreadPool* pool, Decoder* decoder, float* logits, int64_t stride) {
  decoder->finish(*pool, logits, stride);
}

// Chooses a token for each row of logits, `[count][vocabulary]` with rows `stride` apart, whose first
// logit is that of token `offset`, a multiple of 4: its score with noise, and why it means nothing.
void by_choose(ThreadPool* pool, const float* logits, int64_t stride, int64_t vocabulary,
               int64_t offset, const ByRowSampling* rows, int64_t count, int32_t* tokens,
               double* scores, int32_t* failed) {
  Sampling(logits, stride, vocabulary, offset, rows, count).run(*pool, tokens, scores, failed);
}

// What the model thought of some tokens, given by `rows` and `tokens`: log probabilities
// `[count][1 + most]` of each and of its `tops` likeliest, and its rank and their ids.
void by_score(ThreadPool* pool, const float* logits, int64_t stride, int64_t vocabulary,
              const int64_t* rows, const int64_t* tokens, const int64_t* tops, int64_t count,
              int64_t most, float* logprobs, int32_t* ids) {
  pool->run(static_cast<int>(count), [&](int i, int) {
    score_token(ScoreRow{logits + rows[i] * stride, 1.0f, vocabulary}, tokens[i], tops[i],
                logprobs + i * (1 + most), ids + i * (1 + most));
  });
}

// Changes some rows of scores in place.
void by_penalise(ThreadPool* pool, float* scores, int64_t stride, int64_t vocabulary,
                 const ByRowPenalties* rows, int64_t count) {
  penalise(*pool, scores, stride, vocabulary, rows, count);
}

}  // extern "C"
#pragma GCC visibility pop
