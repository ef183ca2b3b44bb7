// Copies whole blocks from anywhere to anywhere: blocks to be written apart, and scattered blocks
// gathered into one piece (or spread out of one) so that a single DMA moves them.
//
// A thread block takes a fixed share of one block. All loads of a share are issued before its
// stores, so that memory is kept busy. Compile-time: none.
#include "prims.cuh"

using namespace by;

struct BlockCopyArguments {
  const uint8_t* source;       // block 0 of the pool that is read
  uint8_t* destination;        // block 0 of the pool that is written
  const int* pairs;            // [pairs][2]: block read, block written
  int64_t block_bytes;         // a multiple of 16, and the distance between blocks in both pools
  int num_pairs;
  int shares;                  // thread blocks for each pair
};

namespace {
constexpr int kThreads = 256, kUnroll = 4, kShare = kThreads * kUnroll;  // 16-byte runs
}

extern "C" __global__ void __launch_bounds__(256)
copy_blocks(const __grid_constant__ BlockCopyArguments a) {
  const int pair = blockIdx.x / a.shares, share = blockIdx.x % a.shares;
  if (pair >= a.num_pairs) return;
  const int64_t runs = a.block_bytes / 16, first = static_cast<int64_t>(share) * kShare;
  const int64_t from = a.pairs[2 * pair] * a.block_bytes;
  const int64_t to = a.pairs[2 * pair + 1] * a.block_bytes;
  Bytes16 held[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t run = first + u * kThreads + threadIdx.x;
    if (run < runs) held[u] = *reinterpret_cast<const Bytes16*>(a.source + from + run * 16);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t run = first + u * kThreads + threadIdx.x;
#if PLANT == 1
    if (run <= runs) *reinterpret_cast<Bytes16*>(a.destination + to + run * 16) = held[u];
#else
    if (run < runs) *reinterpret_cast<Bytes16*>(a.destination + to + run * 16) = held[u];
#endif
  }
}
