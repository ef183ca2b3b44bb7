// wgmma: what the 128 threads of a warpgroup multiply, from descriptors of shared memory. Read as
// the PTX manual gives them; no GPU has confirmed it.
#include <stdexcept>
#include <utility>

#include "machine.hpp"

namespace emu {
namespace {
Machine& m = machine;

float to_float(uint16_t h, bool bf16) {
  if (bf16) return std::bit_cast<float>(uint32_t(h) << 16);
  return __half2float(std::bit_cast<__half>(h));
}

// Element (row, k) of an operand with the 128-byte swizzle. K-major: rows of 64 halves, groups of
// 8 rows a stride offset apart. Transposed (MN-major): 64 rows lie side by side in one 128-byte
// line a k, 8 k make a group, groups along k are a stride offset apart, along rows a leading one.
float element(uint64_t descriptor, int row, int k, bool transposed, bool bf16) {
  if (descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
  const uint32_t base = (descriptor & 0x3fff) << 4;
  const uint32_t leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = (descriptor >> 32 & 0x3fff) << 4;
  uint32_t at = transposed ? base + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                           : base + row / 8 * stride + row % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;
  if (at + 2 > m.shared_bytes) fail("wgmma: a descriptor leads outside shared memory");
  uint16_t h;
  std::memcpy(&h, m.shared.get() + at, 2);
  return to_float(h, bf16);
}

void multiply(const Wgmma& w) {
  std::vector<float> A(64 * 16), B(w.n * 16);
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 16; ++k) {
      if (!w.from_registers) {
        A[i * 16 + k] = element(w.a, i, k, false, w.bf16);
        continue;
      }
      // Warp i / 16 of the group holds rows as mma.m16n8k16 lays out its A operand.
      const int thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
      const uint32_t pair = w.a_registers[thread][(i % 16 / 8) + (k / 8) * 2];
      A[i * 16 + k] = to_float(k & 1 ? pair >> 16 : pair & 0xffff, w.bf16);
    }
  for (int j = 0; j < w.n; ++j)
    for (int k = 0; k < 16; ++k) B[j * 16 + k] = element(w.b, j, k, w.b_transposed, w.bf16);
  for (int t = 0; t < 128; ++t)
    for (int j = 0; j < w.n / 8; ++j)
      for (int e = 0; e < 4; ++e) {
        const int row = t / 32 * 16 + t % 32 / 4 + (e >> 1) * 8;
        const int column = j * 8 + (t & 3) * 2 + (e & 1);
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += A[row * 16 + k] * B[column * 16 + k];
        w.d[t][j * 4 + e] += sum;
      }
}

template <class Last>
void meet(const char* what, Where where, Last last) {
  Fiber* f = m.current;
  WarpGroup& group = m.warp_groups[f->index / 128];
  if (++group.arrived < 128) return block_on(State::Meeting, what, where);
  group.arrived = 0;
  last(group);
  const int first = f->index / 128 * 128;
  for (int i = first; i < first + 128; ++i)
    if (i != f->index) wake(m.fibers[i]);
}

void issue(float* d, int n, const uint32_t* registers, uint64_t a, uint64_t b, bool b_transposed,
           bool bf16, Where where) {
  Quiet quiet;
  const int thread = m.current->index % 128;
  WarpGroup& group = m.warp_groups[m.current->index / 128];
  Wgmma& next = group.next;
  if (group.arrived == 0)
    next.a = a, next.b = b, next.n = n, next.from_registers = registers != nullptr,
    next.b_transposed = b_transposed, next.bf16 = bf16;
  if (next.a != a || next.b != b || next.n != n || next.from_registers != (registers != nullptr))
    fail("wgmma: the threads of a warpgroup disagree");
  next.d[thread] = d;
  if (registers) std::memcpy(next.a_registers[thread], registers, 16);
  meet("wgmma", where, [](WarpGroup& g) {  // lands now or at the wait, as cp.async does
    if (lands_now()) multiply(g.next);
    else g.open.push_back(g.next);
  });
}
}  // namespace

void wgmma(float* d, int n, uint64_t a, uint64_t b, bool b_transposed, bool bf16, Where where) {
  issue(d, n, nullptr, a, b, b_transposed, bf16, where);
}
void wgmma(float* d, int n, const uint32_t* a, uint64_t b, bool b_transposed, bool bf16,
           Where where) {
  issue(d, n, a, 0, b, b_transposed, bf16, where);
}
void wgmma_commit(Where where) {
  Quiet quiet;
  meet("wgmma.commit_group", where,
       [](WarpGroup& g) { g.groups.push_back(std::exchange(g.open, {})); });
}
void wgmma_wait(uint32_t keep, Where where) {
  Quiet quiet;
  meet("wgmma.wait_group", where, [keep](WarpGroup& g) {
    while (g.groups.size() > keep) {
      for (const Wgmma& w : g.groups[0]) multiply(w);
      g.groups.erase(g.groups.begin());
    }
  });
}
}  // namespace emu
