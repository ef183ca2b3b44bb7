// Attention of a whole step: its work cut into pieces by what they cost, and run over threads.
#pragma once

#include <cstring>

#include "attend_chunk.hpp"
#include "linear.hpp"

namespace blockyard {

extern "C" struct ByForm {
  const float* sinks;  // [heads], or null
  float scale, soft_cap;  // no cap: 0
  int64_t window;         // no window: 0
};

// Tokens `row ..` of the queries, which sit at positions `start ..` of one request.
struct Span {
  int64_t row;
  int32_t request, start, count;
};

// What all layers of a step share. Layers are alike in shape and may differ in form.
class AttentionPlan {
 public:
  AttentionPlan(const ByStep& step, int threads, int heads, int kv_heads)
      : step_(step), heads_(heads), kv_heads_(kv_heads) {
    int64_t row = 0;
    std::vector<Span> spans;
    for (int32_t request = 0; request < step.requests; ++request) {
      const int32_t count = step.counts[request];
      spans.push_back({row, request, step.lengths[request] - count, count});
      row += count;
    }
    cut(spans, threads);
  }

  // The same step, and of its tokens only `tokens`: query row i is the token tokens[i].
  AttentionPlan(const ByStep& step, int threads, int heads, int kv_heads, const int64_t* tokens,
                int64_t num_tokens)
      : step_(step), heads_(heads), kv_heads_(kv_heads) {
    std::vector<int64_t> ends;
    int64_t end = 0;
    for (int32_t request = 0; request < step.requests; ++request)
      ends.push_back(end += step.counts[request]);
    std::vector<Span> spans;
    for (int64_t row = 0; row < num_tokens; ++row) {
      const auto found = std::upper_bound(ends.begin(), ends.end(), tokens[row]);
      const auto request = static_cast<int32_t>(found - ends.begin());
      const auto behind = static_cast<int32_t>(*found - tokens[row]);
      spans.push_back({row, request, step.lengths[request] - behind, 1});
    }
    cut(spans, threads);
  }

  void run(ThreadPool& pool, const ByLayer& layer, const ByForm& form, ConstRows queries,
           Rows outputs) {
    with_numbers(layer.numbers, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int dim = layer.head_dim;
      const int sharing = heads_ / kv_heads_;
      const int64_t partial_floats = int64_t{sharing} * (dim + 2);
      if (partials_.size() < static_cast<size_t>(num_partials_ * partial_floats))
        partials_.resize(static_cast<size_t>(num_partials_ * partial_floats));
      pool.run(static_cast<int>(pieces_.size()), [&](int chunk, int) {
        static thread_local ChunkScratch scratch;
        const Piece& piece = pieces_[static_cast<size_t>(chunk)];
        const int32_t* table = step_.tables + int64_t{piece.span.request} * step_.table_width;
        const HeadReader<T> reader(layer, table, piece.kv_head);
        const int rows = piece.span.count * sharing;
        scratch.fit(rows, dim);
        gather(piece, dim, kLog2OfE * form.scale, queries, scratch.queries);
        if (piece.span.count == 1)
          attend_one(reader, piece, dim, form, scratch);
        else
          attend_chunk(reader, Chunk{piece.span.count, sharing, dim, piece.span.start,
                                     window_of(form), kLog2OfE * form.soft_cap}, scratch);
        if (piece.partial >= 0) {
          float* to = partials_.data() + piece.partial * partial_floats;
          std::copy_n(scratch.values, sharing * dim, to);
          for (int h = 0; h < sharing; ++h) {
            to[sharing * dim + 2 * h] = scratch.softmax[static_cast<size_t>(h)].most;
            to[sharing * dim + 2 * h + 1] = scratch.softmax[static_cast<size_t>(h)].sum;
          }
        } else {
          scatter(piece, dim, form.sinks, scratch, outputs);
        }
      });
      if (!splits_.empty())
        pool.run(static_cast<int>(splits_.size()), [&](int chunk, int) {
          merge(splits_[static_cast<size_t>(chunk)], dim, form.sinks, outputs);
        });
    });
  }

 private:
  // A token's positions are split when few tokens would leave threads idle.
  static constexpr int64_t kLeastPositions = 256;

  struct Piece {
    Span span;
    int kv_head;
    int64_t begin, end;  // positions; whole spans take theirs from the window
    int64_t partial;     // number of its partial result, or -1
    int64_t cost;
  };

  struct Split {
    int64_t row;
    int kv_head;
    int64_t first;  // its partial results
    int count;
  };

  void cut(const std::vector<Span>& spans, int threads) {
    const int sharing = heads_ / kv_heads_;
    int64_t total = 0;
    for (const Span& span : spans)
      if (span.count == 1) total += int64_t{span.start + 1} * kv_heads_;
    const int64_t most = std::max(kLeastPositions, total / (threads * 3));
    const int tokens_at_once = std::max(2, kChunkRows / sharing);
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head)
      for (const Span& span : spans)
        if (span.count == 1)
          cut_token(span, kv_head, most);
        else
          cut_chunk(span, kv_head, tokens_at_once);
    // The longest first, or one that is begun last keeps all others waiting. Those of about one
    // length stay in the order of heads: requests that share a prefix find it in the cache.
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return a.cost / kLeastPositions > b.cost / kLeastPositions;
    });
  }

  void cut_token(const Span& span, int kv_head, int64_t most) {
    const int64_t length = span.start + 1;
    const auto count = static_cast<int>(parts_of(length, most));
    if (count > 1) splits_.push_back({span.row, kv_head, num_partials_, count});
    for (int part = 0; part < count; ++part) {
      const int64_t begin = length * part / count, end = length * (part + 1) / count;
      const int64_t partial = count > 1 ? num_partials_++ : -1;
      pieces_.push_back({span, kv_head, begin, end, partial, end - begin});
    }
  }

  static int64_t parts_of(int64_t length, int64_t most) { return (length + most - 1) / most; }

  void cut_chunk(const Span& span, int kv_head, int tokens_at_once) {
    const int parts = (span.count + tokens_at_once - 1) / tokens_at_once;
    for (int part = 0; part < parts; ++part) {
      const int first = span.count * part / parts;
      const int count = span.count * (part + 1) / parts - first;
      const Span own{span.row + first, span.request, span.start + first, count};
      const int64_t end = own.start + count;
      // One position of a chunk costs little more than half of what it costs alone.
      pieces_.push_back({own, kv_head, 0, end, -1, end * count / 2});
    }
  }

  static int64_t window_of(const ByForm& form) {
    return form.window > 0 ? form.window : std::numeric_limits<int32_t>::max();
  }

  void gather(const Piece& piece, int dim, float scale, ConstRows queries, float* to) const {
    const int sharing = heads_ / kv_heads_;
    const Vector scales = broadcast(scale);
    for (int token = 0; token < piece.span.count; ++token) {
      const float* from = queries.row(piece.span.row + token) + piece.kv_head * sharing * dim;
      for (int i = 0; i < sharing * dim; i += kLanes, to += kLanes)
        store(to, load(from + i) * scales);
    }
  }

  void scatter(const Piece& piece, int dim, const float* sinks, ChunkScratch& scratch,
               Rows outputs) const {
    const int sharing = heads_ / kv_heads_;
    for (int token = 0; token < piece.span.count; ++token)
      for (int h = 0; h < sharing; ++h) {
        const int row = token * sharing + h, head = piece.kv_head * sharing + h;
        finish(scratch.softmax[static_cast<size_t>(row)], sinks ? sinks + head : nullptr,
               scratch.values + row * dim, dim,
               outputs.row(piece.span.row + token) + head * dim);
      }
  }

  static void finish(Softmax softmax, const float* sink, const float* values, int dim, float* to) {
    const float kept = sink != nullptr ? softmax.take_sink(kLog2OfE * *sink) : 1.0f;
    const Vector factor = broadcast(kept / softmax.sum);
    for (int d = 0; d < dim; d += kLanes) store(to + d, load(values + d) * factor);
  }

  template <class T>
  void attend_one(const HeadReader<T>& reader, const Piece& piece, int dim, const ByForm& form,
                  ChunkScratch& scratch) const {
    const int sharing = heads_ / kv_heads_;
    const int64_t seen = std::max<int64_t>(0, piece.span.start - window_of(form) + 1);
    const int64_t begin = std::max(piece.begin, seen);
    const int64_t end = std::max(piece.end, begin);
    for (int h = 0; h < sharing;) {
      const float* queries = scratch.queries + h * dim;
      float* values = scratch.values + h * dim;
      Softmax* softmax = scratch.softmax.data() + h;
      const float cap = kLog2OfE * form.soft_cap;
      switch (sharing - h) {
        case 1: attend_token<T, 1>(reader, queries, dim, begin, end, cap, softmax, values); break;
        case 2: attend_token<T, 2>(reader, queries, dim, begin, end, cap, softmax, values); break;
        case 4: attend_token<T, 4>(reader, queries, dim, begin, end, cap, softmax, values); break;
        default: attend_token<T, 3>(reader, queries, dim, begin, end, cap, softmax, values);
      }
      h += sharing - h == 4 ? 4 : std::min(3, sharing - h);
    }
  }

  void merge(const Split& split, int dim, const float* sinks, Rows outputs) const {
    const int sharing = heads_ / kv_heads_;
    const int64_t floats = int64_t{sharing} * (dim + 2);
    for (int h = 0; h < sharing; ++h) {
      const int head = split.kv_head * sharing + h;
      Softmax softmax;
      float* to = outputs.row(split.row) + head * dim;
      std::fill_n(to, dim, 0.0f);
      for (int part = 0; part < split.count; ++part) {
        const float* from = partials_.data() + (split.first + part) * floats;
        const float most = from[sharing * dim + 2 * h], sum = from[sharing * dim + 2 * h + 1];
        if (most == kNever) continue;  // all its positions lie before the window
        const float next = std::max(softmax.most, most);
        const float old_kept = std::exp2(softmax.most - next), new_kept = std::exp2(most - next);
        softmax.sum = softmax.sum * old_kept + sum * new_kept;
        softmax.most = next;
        for (int d = 0; d < dim; ++d) to[d] = to[d] * old_kept + from[h * dim + d] * new_kept;
      }
      finish(softmax, sinks ? sinks + head : nullptr, to, dim, to);
    }
  }

  ByStep step_;
  int heads_, kv_heads_;
  std::vector<Piece> pieces_;
  std::vector<Split> splits_;
  std::vector<float> partials_;
  int64_t num_partials_ = 0;
};

}  // namespace blockyard
