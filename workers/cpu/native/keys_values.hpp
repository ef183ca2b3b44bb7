// One layer's part of the pool of KV blocks: where keys and values are, and how they get there.
//
// The layout is `[block][K, V][KV head][slot][dimension]` with given distances, counted in elements;
// the numbers of one slot are contiguous. In int8 each slot of a head has a float32 scale, at
// `[block][K, V][KV head][slot]`.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "thread_pool.hpp"
#include "vector.hpp"

namespace blockyard {

enum class Numbers : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

extern "C" struct ByLayer {
  void* blocks;
  float* scales;  // null unless int8
  int64_t block_stride, kind_stride, head_stride;
  int64_t scale_block_stride, scale_kind_stride, scale_head_stride;
  int32_t kv_heads, head_dim, block_size, numbers;
};

extern "C" struct ByStep {
  const int32_t* counts;   // [requests] tokens computed in this step
  const int32_t* lengths;  // [requests] tokens in the cache after it
  const int32_t* tables;   // [requests][table_width]
  const int64_t* slots;    // [tokens]
  int64_t tokens;
  int32_t requests, table_width;
};

template <class Body>
void with_numbers(int32_t numbers, Body&& body) {
  switch (static_cast<Numbers>(numbers)) {
    case Numbers::kFloat32: return body(static_cast<float*>(nullptr));
    case Numbers::kBfloat16: return body(static_cast<Bfloat16*>(nullptr));
    case Numbers::kInt8: return body(static_cast<int8_t*>(nullptr));
  }
}

// Finds the slots of one request's positions in one KV head.
template <class T>
struct HeadReader {
  HeadReader(const ByLayer& layer, const int32_t* table, int head)
      : layer_(layer), table_(table), head_(head) {}

  // Where the keys (`kind` 0) or values (1) of `count` positions are. Blocks are walked, because a
  // division for each position would take as long as its scores.
  void locate(int64_t first, int count, int kind, const T** to) const {
    walk(first, count, [&](int64_t block, int64_t offset, int length) {
      const T* from = static_cast<const T*>(layer_.blocks) + block * layer_.block_stride +
                      kind * layer_.kind_stride + head_ * layer_.head_stride +
                      offset * layer_.head_dim;
      for (int i = 0; i < length; ++i, from += layer_.head_dim) *to++ = from;
    });
  }

  // Multiplies by the scales of `count` positions.
  void apply_scales(int64_t first, int count, int kind, float* numbers) const {
    walk(first, count, [&](int64_t block, int64_t offset, int length) {
      const float* from = layer_.scales + block * layer_.scale_block_stride +
                          kind * layer_.scale_kind_stride + head_ * layer_.scale_head_stride +
                          offset;
      for (int i = 0; i < length; ++i) *numbers++ *= from[i];
    });
  }

 private:
  template <class Body>
  void walk(int64_t first, int count, Body&& body) const {
    const int size = layer_.block_size;
    int64_t index = first / size, offset = first % size;
    for (int64_t left = count; left > 0; ++index, offset = 0) {
      const auto length = static_cast<int>(std::min<int64_t>(left, size - offset));
      body(static_cast<int64_t>(table_[index]), offset, length);
      left -= length;
    }
  }

  const ByLayer& layer_;
  const int32_t* table_;
  int head_;
};

inline void store_numbers(float* to, float*, const float* from, int count) {
  std::copy_n(from, count, to);
}

inline void store_numbers(Bfloat16* to, float*, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
}

inline void store_numbers(int8_t* to, float* scale, const float* from, int count) {
  float most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, std::fabs(from[i]));
  *scale = std::max(most / 127.0f, std::numeric_limits<float>::min());
  for (int i = 0; i < count; ++i) to[i] = static_cast<int8_t>(std::nearbyint(from[i] / *scale));
}

// Stores one token's numbers of one KV head at a slot.
template <class T>
inline void write_head(const ByLayer& layer, int64_t slot, int kind, int head, const float* from) {
  const int64_t block = slot / layer.block_size, offset = slot % layer.block_size;
  T* to = static_cast<T*>(layer.blocks) + block * layer.block_stride + kind * layer.kind_stride +
          head * layer.head_stride + offset * layer.head_dim;
  float* scale = nullptr;
  if (layer.scales != nullptr)
    scale = layer.scales + block * layer.scale_block_stride + kind * layer.scale_kind_stride +
            head * layer.scale_head_stride + offset;
  store_numbers(to, scale, from, layer.head_dim);
}

// Tokens handled by one chunk of loops whose rows cost little.
constexpr int kRowsAtOnce = 8;

template <class Body>
void for_rows(ThreadPool& pool, int64_t rows, Body&& body) {
  const auto chunks = static_cast<int>((rows + kRowsAtOnce - 1) / kRowsAtOnce);
  pool.run(chunks, [&](int chunk, int) {
    const int64_t end = std::min<int64_t>(rows, (chunk + 1) * int64_t{kRowsAtOnce});
    for (int64_t row = chunk * int64_t{kRowsAtOnce}; row < end; ++row) body(row);
  });
}

// Stores keys and values, `[tokens][kv heads][head dim]`, rows `stride` apart.
inline void write_tokens(ThreadPool& pool, const ByLayer& layer, const ByStep& step,
                         const float* keys, const float* values, int64_t stride) {
  with_numbers(layer.numbers, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_rows(pool, step.tokens, [&](int64_t token) {
      for (int head = 0; head < layer.kv_heads; ++head) {
        const int64_t from = token * stride + head * layer.head_dim;
        write_head<T>(layer, step.slots[token], 0, head, keys + from);
        write_head<T>(layer, step.slots[token], 1, head, values + from);
      }
    });
  });
}

// Turns the first `2 * half` numbers of a head: number i with number i + half.
inline void rotate_head(float* head, const float* cosines, const float* sines, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vector a = load(head + i), b = load(head + half + i);
    const Vector cosine = load(cosines + i), sine = load(sines + i);
    store(head + i, fnma(b, sine, a * cosine));
    store(head + half + i, fma(b, cosine, a * sine));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

inline void scale_row(const float* from, const float* weight, float epsilon, int64_t width,
                      float* to) {
  // Several sums, or each square would wait for the last.
  constexpr int kSums = 4;
  Vector squares[kSums] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kSums * kLanes <= width; i += kSums * kLanes)
    for (int s = 0; s < kSums; ++s) {
      const Vector x = load(from + i + s * kLanes);
      squares[s] = fma(x, x, squares[s]);
    }
  for (; i < width; i += kLanes) {
    const Vector x = load_first(from + i, static_cast<int>(width - i));
    squares[0] = fma(x, x, squares[0]);
  }
  const float all = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const float scale = 1.0f / std::sqrt(all / static_cast<float>(width) + epsilon);
  const Vector scales = broadcast(scale);
  for (i = 0; i + kLanes <= width; i += kLanes)
    store(to + i, load(weight + i) * (load(from + i) * scales));
  for (; i < width; ++i) to[i] = weight[i] * (from[i] * scale);
}

extern "C" struct ByRotary {
  const float* cosines;      // [positions][half]
  const float* sines;        // [positions][half]
  const int64_t* positions;  // [tokens], rows of the two; null: the token's own number
  const float* query_norm;   // [head_dim], or null: heads are not normalised
  const float* key_norm;
  float epsilon;
  int32_t half;
};

// Normalises and turns the heads of `projected`, `[tokens][heads + 2 * kv heads][head dim]`, in
// place, and stores keys and values.
inline void rotate_and_write(ThreadPool& pool, const ByLayer& layer, const ByStep& step,
                             const ByRotary& rotary, float* projected, int64_t stride, int heads) {
  with_numbers(layer.numbers, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_rows(pool, step.tokens, [&](int64_t token) {
      float* row = projected + token * stride;
      const int64_t place = rotary.positions ? rotary.positions[token] : token;
      const float* cosines = rotary.cosines + place * rotary.half;
      const float* sines = rotary.sines + place * rotary.half;
      const int dim = layer.head_dim;
      for (int head = 0; head < heads + layer.kv_heads; ++head, row += dim) {
        const float* norm = head < heads ? rotary.query_norm : rotary.key_norm;
        if (norm != nullptr) scale_row(row, norm, rotary.epsilon, dim, row);
        rotate_head(row, cosines, sines, rotary.half);
        if (head >= heads) write_head<T>(layer, step.slots[token], 0, head - heads, row);
      }
      for (int head = 0; head < layer.kv_heads; ++head, row += dim)
        write_head<T>(layer, step.slots[token], 1, head, row);
    });
  });
}

}  // namespace blockyard
