// Puts a step's keys and values where attention finds them: rotated on the way, quantised on the
// way, the fused projection read once.
//
// A thread takes two runs of 8 numbers of one head of one token: in the rotated part those that
// turn together, elsewhere neighbours. Compile-time: BF16, KV_FP8 (e4m3 pool with a scale a head),
// HEAD_DIM, BLOCK_SIZE.
#include "numbers.cuh"

using namespace by;

struct RotateArguments {
  const Number* projected;     // [tokens][heads + 2 * kv_heads][dim]: queries, keys, values
  const float* cosines;        // [tokens][rotated / 2]
  const float* sines;
  const int64_t* slots;        // [tokens] where each token goes; below 0: nowhere
  const float* scales;         // [2][kv_heads], or null
  Number* queries;             // [tokens][heads][dim], turned
  uint8_t* blocks;             // this layer's keys in block 0
  int64_t projected_stride;    // numbers, between tokens
  int64_t block_stride;        // bytes
  int64_t value_stride;        // bytes, from keys to values
  int64_t head_stride;         // bytes
  int num_tokens;
  int heads;
  int kv_heads;
  int rotated;                 // numbers of a head that turn, a multiple of 16
};

struct StoreArguments {
  const Number* keys;          // [tokens][kv_heads][dim]
  const Number* values;
  const int64_t* slots;
  const float* scales;
  uint8_t* blocks;
  int64_t key_stride;          // numbers, between tokens
  int64_t key_head_stride;
  int64_t value_token_stride;
  int64_t value_head_stride;
  int64_t block_stride;        // bytes
  int64_t value_stride;        // bytes, from keys to values
  int64_t head_stride;         // bytes
  int num_tokens;
  int kv_heads;
};

namespace {
constexpr int kDim = HEAD_DIM, kUnits = kDim / 16, kItem = KV_FP8 ? 1 : 2;
static_assert(kDim % 16 == 0);
constexpr float kMostFp8 = 448.f;

// Where a pool keeps one head of one token.
struct Place {
  uint8_t* row;
  float scale;

  __device__ __forceinline__ void put(int dim, const Eight& eight) const {
    if constexpr (KV_FP8) {
      uint32_t words[2] = {};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float x = to_float(eight.at[e]) / scale;
#if PLANT != 3
        // A NaN stays one: fminf would make it the bound.
        if (x > kMostFp8) x = kMostFp8;
        if (x < -kMostFp8) x = -kMostFp8;
#endif
        const uint32_t byte = __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
        words[e / 4] |= byte << (8 * (e % 4));
      }
      *reinterpret_cast<uint64_t*>(row + dim) =
          static_cast<uint64_t>(words[1]) << 32 | static_cast<uint64_t>(words[0]);
    } else {
      store8(row + dim * kItem, eight);
    }
  }
};

template <class Arguments>
__device__ __forceinline__ Place place(const Arguments& a, int64_t slot, bool value, int head) {
#if PLANT == 2
  const int64_t block = slot / BLOCK_SIZE, offset = (slot + 1) % BLOCK_SIZE;
#else
  const int64_t block = slot / BLOCK_SIZE, offset = slot % BLOCK_SIZE;
#endif
  return {a.blocks + block * a.block_stride + (value ? a.value_stride : 0) +
              head * a.head_stride + offset * (kDim * kItem),
          a.scales ? a.scales[(value ? a.kv_heads : 0) + head] : 1.f};
}
}  // namespace

extern "C" __global__ void __launch_bounds__(256)
rotate_and_write(const __grid_constant__ RotateArguments a) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const int all_heads = a.heads + 2 * a.kv_heads, unit = static_cast<int>(index % kUnits);
  const int64_t row = index / kUnits, token = row / all_heads;
#if PLANT == 1
  if (token > a.num_tokens) return;
#else
  if (token >= a.num_tokens) return;
#endif
  const int head = static_cast<int>(row - token * all_heads);
  const bool is_query = head < a.heads, is_value = head >= a.heads + a.kv_heads;
  const int turning = a.rotated / 16;
  const bool turns = !is_value && unit < turning;
  // Values have no rotated part, but take the same runs: what lies where stays the same.
  const int first = unit < turning ? unit * 8 : a.rotated + (unit - turning) * 16;
  const int second = unit < turning ? first + a.rotated / 2 : first + 8;
  const Number* from = a.projected + token * a.projected_stride + head * kDim;
  Eight low = load8(from + first), high = load8(from + second);
  if (turns) {
    const float* cosines = a.cosines + token * (a.rotated / 2) + first;
    const float* sines = a.sines + token * (a.rotated / 2) + first;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float x = to_float(low.at[e]), y = to_float(high.at[e]);
      low.at[e] = to_number(x * cosines[e] - y * sines[e]);
      high.at[e] = to_number(y * cosines[e] + x * sines[e]);
    }
  }
  if (is_query) {
    Number* to = a.queries + (token * a.heads + head) * kDim;
    store8(to + first, low);
    store8(to + second, high);
    return;
  }
  const int64_t slot = a.slots[token];
  if (slot < 0) return;
  const Place to = place(a, slot, is_value, head - a.heads - (is_value ? a.kv_heads : 0));
  to.put(first, low);
  to.put(second, high);
}

extern "C" __global__ void __launch_bounds__(256)
write_cache(const __grid_constant__ StoreArguments a) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const int dim = static_cast<int>(index % kUnits) * 16;
  const int64_t row = index / kUnits, token = row / (2 * a.kv_heads);
  if (token >= a.num_tokens) return;
  const int both = static_cast<int>(row - token * (2 * a.kv_heads));
  const bool is_value = both >= a.kv_heads;
  const int head = both - (is_value ? a.kv_heads : 0);
  const int64_t slot = a.slots[token];
  if (slot < 0) return;
  const Number* from =
      is_value ? a.values + token * a.value_token_stride + head * a.value_head_stride
               : a.keys + token * a.key_stride + head * a.key_head_stride;
  const Place to = place(a, slot, is_value, head);
  to.put(dim, load8(from + dim));
  to.put(dim + 8, load8(from + dim + 8));
}
