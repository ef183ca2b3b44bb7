// What stands between the large multiplications of a layer, each in one pass over memory: RMSNorm
// with or without a residual added before, and gated activations.
//
// Rows are read once, 16 bytes at a time, and kept in registers. Sums are float32 whatever the
// dtype, as in transformers. Compile-time: BF16, ROW_THREADS (32 or 256 threads share a row),
// VECTORS (runs of 8 numbers that a thread holds), WEIGHT_FLOAT (weights are float32).
#include "numbers.cuh"

using namespace by;

namespace {
#if WEIGHT_FLOAT
using Weight = float;
#else
using Weight = Number;
#endif
}  // namespace

struct NormArguments {
  const Number* rows;      // row r at (r / inner) * outer_stride + (r % inner) * inner_stride
  const Number* residual;  // [rows][width], or null: nothing is added
  const Weight* weight;    // [width]
  Number* sums;            // [rows][width], what was normalised; written where there is a residual
  Number* output;          // [rows][width]
  int64_t outer_stride;    // numbers
  int64_t inner_stride;    // numbers
  int inner;
  int num_rows;
  int width;               // numbers, a multiple of 8
  float epsilon;
};

struct GateArguments {
  const Number* gate_and_up;  // [rows][2 * width], gate first
  Number* output;             // [rows][width]
  int64_t num_vectors;        // runs of 8 numbers in the output
  int64_t row_stride;         // numbers, between rows of gate_and_up
  int width;                  // numbers, a multiple of 8
};

namespace {
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowThreads = ROW_THREADS, kRows = kThreads / kRowThreads;
static_assert(kRowThreads == 32 || kRowThreads == kThreads);

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int turn = 16; turn > 0; turn >>= 1) x += __shfl_xor_sync(~0u, x, turn);
  return x;
}

// The sum over the threads that share a row, the same in each of them.
__device__ __forceinline__ float row_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (kRowThreads > 32) {
    const int warp = threadIdx.x >> 5;
    if ((threadIdx.x & 31) == 0) shared[warp] = x;
#if PLANT != 1
    __syncthreads();
#endif
    x = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += shared[w];
  }
  return x;
}

__device__ __forceinline__ float silu(float x) { return x / (1.f + exp2_fast(-kLog2e * x)); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)): no cancellation where tanh nears -1.
__device__ __forceinline__ float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.f + exp2_fast(-2.f * kLog2e * u));
}

template <class Activation>
__device__ __forceinline__ void gate(const GateArguments& a, Activation activation) {
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
#if PLANT == 3
  if (vector > a.num_vectors) return;
#else
  if (vector >= a.num_vectors) return;
#endif
  const int64_t row = vector * 8 / a.width;
  const int64_t column = vector * 8 - row * a.width;
  const Number* from = a.gate_and_up + row * a.row_stride + column;
  const Eight gates = load8(from), ups = load8(from + a.width);
  Eight result;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    result.at[e] = to_number(activation(to_float(gates.at[e])) * to_float(ups.at[e]));
  store8(a.output + vector * 8, result);
}
}  // namespace

extern "C" __global__ void __launch_bounds__(256)
rms_norm(const __grid_constant__ NormArguments a) {
  BY_SHARED(shared);
  const int in_row = threadIdx.x % kRowThreads;
  const int row = blockIdx.x * kRows + threadIdx.x / kRowThreads;
  if (row >= a.num_rows) return;  // whole warps: those of a row stay together
  const Number* from = a.rows + row / a.inner * a.outer_stride + row % a.inner * a.inner_stride;
  const int64_t base = static_cast<int64_t>(row) * a.width;
  Eight held[VECTORS];
  float sum = 0.f;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    const int column = (v * kRowThreads + in_row) * 8;
    if (column >= a.width) break;
    held[v] = load8(from + column);
    if (a.residual) {
      const Eight more = load8(a.residual + base + column);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        // Rounded before it is squared: the sum that goes on is the one that is normalised.
        held[v].at[e] = to_number(to_float(held[v].at[e]) + to_float(more.at[e]));
      store8(a.sums + base + column, held[v]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += to_float(held[v].at[e]) * to_float(held[v].at[e]);
  }
  sum = row_sum(sum, reinterpret_cast<float*>(shared));
  const float factor = inverse_root(sum / a.width + a.epsilon);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    const int column = (v * kRowThreads + in_row) * 8;
#if PLANT == 2
    if (column > a.width) break;
#else
    if (column >= a.width) break;
#endif
    Eight result;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#if WEIGHT_FLOAT
      const float weight = a.weight[column + e];
#else
      const float weight = to_float(a.weight[column + e]);
#endif
      result.at[e] = to_number(to_float(held[v].at[e]) * factor * weight);
    }
    store8(a.output + base + column, result);
  }
}

extern "C" __global__ void __launch_bounds__(256)
silu_and_multiply(const __grid_constant__ GateArguments a) {
  gate(a, silu);
}

extern "C" __global__ void __launch_bounds__(256)
gelu_and_multiply(const __grid_constant__ GateArguments a) {
  gate(a, gelu_tanh);
}
