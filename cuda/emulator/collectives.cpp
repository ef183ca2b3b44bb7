// What threads do together: shuffles, votes, matrix loads, tensor cores, asynchronous copies.
#include <algorithm>
#include <utility>

#include "machine.hpp"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace emu {
namespace {
Machine& m = machine;

// All lanes of `mask` meet; the last to come runs `together` over the lanes' own arguments.
template <class Together>
void meet(uint32_t mask, const char* what, void* argument, Where where, Together together) {
  Fiber* f = m.current;
  auto& open = m.warps[f->warp].open;
  if (!(mask >> f->lane & 1)) fail("the calling lane is not in its own mask");
  auto fits = [&](const Meeting& o) {
    return o.mask == mask && o.what == what && !(o.arrived >> f->lane & 1);
  };
  size_t i = std::find_if(open.begin(), open.end(), fits) - open.begin();
  if (i == open.size()) open.push_back({mask, 0, what, {}});
  open[i].argument[f->lane] = argument;
  open[i].arrived |= 1u << f->lane;
  if (open[i].arrived != mask) return block_on(State::Meeting, what, where);
  Meeting all = open[i];
  open.erase(open.begin() + i);
  together(all.argument);
  for (int l = 0; l < 32; ++l)
    if ((mask >> l & 1) && l != f->lane) wake(m.fibers[f->warp * 32 + l]);
}

float half_of(uint32_t pair, int high, bool bf16) {
  const uint16_t h = high ? pair >> 16 : pair & 0xffff;
  if (bf16) return std::bit_cast<float>(uint32_t(h) << 16);
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return __half2float(std::bit_cast<__half>(h));
#endif
}

struct Mma {
  float* c;
  const uint32_t *a, *b;
};
void multiply(void** lanes, bool bf16) {
  alignas(64) float A[16][16], B[16][8], C[16][8];
  for (int l = 0; l < 32; ++l) {
    auto* x = static_cast<Mma*>(lanes[l]);
    const int r = l >> 2, t = (l & 3) * 2;
    for (int h = 0; h < 2; ++h) {
      A[r][t + h] = half_of(x->a[0], h, bf16), A[r + 8][t + h] = half_of(x->a[1], h, bf16);
      A[r][t + 8 + h] = half_of(x->a[2], h, bf16), A[r + 8][t + 8 + h] = half_of(x->a[3], h, bf16);
      B[t + h][r] = half_of(x->b[0], h, bf16), B[t + 8 + h][r] = half_of(x->b[1], h, bf16);
      C[r][t + h] = x->c[h], C[r + 8][t + h] = x->c[2 + h];
    }
  }
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) C[i][j] += A[i][k] * B[k][j];
  for (int l = 0; l < 32; ++l) {
    auto* x = static_cast<Mma*>(lanes[l]);
    const int r = l >> 2, t = (l & 3) * 2;
    for (int h = 0; h < 2; ++h) x->c[h] = C[r][t + h], x->c[2 + h] = C[r + 8][t + h];
  }
}
}  // namespace

void warp_barrier(uint32_t mask, Where where) {
  Quiet quiet;
  char* order = &m.warps[m.current->warp].order;
  if (__tsan_release) __tsan_release(order);
  meet(mask, "__syncwarp", nullptr, where, [](void**) {});
  if (__tsan_acquire) __tsan_acquire(order);
}

uint64_t shuffle(uint32_t mask, uint64_t value, int from, const char* what, Where where) {
  Quiet quiet;
  struct Lane {
    uint64_t in, out;
    int from;
  } own{value, value, from};
  meet(mask, what, &own, where, [mask](void** lanes) {
    for (int l = 0; l < 32; ++l) {
      if (!(mask >> l & 1)) continue;
      Lane* x = static_cast<Lane*>(lanes[l]);
      if (x->from < 0) continue;
      if (!(mask >> x->from & 1)) fail("shuffle reads a lane that is not in the mask");
      x->out = static_cast<Lane*>(lanes[x->from])->in;
    }
  });
  return own.out;
}

uint32_t ballot(uint32_t mask, bool predicate, Where where) {
  Quiet quiet;
  struct Lane {
    bool in;
    uint32_t out;
  } own{predicate, 0};
  meet(mask, "__ballot_sync", &own, where, [mask](void** lanes) {
    uint32_t votes = 0;
    for (int l = 0; l < 32; ++l)
      if (mask >> l & 1) votes |= uint32_t(static_cast<Lane*>(lanes[l])->in) << l;
    for (int l = 0; l < 32; ++l)
      if (mask >> l & 1) static_cast<Lane*>(lanes[l])->out = votes;
  });
  return own.out;
}

void load_matrices(uint32_t* out, const uint16_t (&row)[8], bool transposed, Where where) {
  Quiet quiet;
  struct Lane {
    const uint16_t* in;
    uint32_t* out;
  } own{row, out};
  const char* what = transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4";
  meet(~0u, what, &own, where, [transposed](void** lanes) {
    for (int l = 0; l < 32; ++l)
      for (int matrix = 0; matrix < 4; ++matrix) {
        uint32_t v[2];
        for (int h = 0; h < 2; ++h) {
          const int i = transposed ? (l & 3) * 2 + h : l >> 2;
          const int j = transposed ? l >> 2 : (l & 3) * 2 + h;
          v[h] = static_cast<Lane*>(lanes[matrix * 8 + i])->in[j];
        }
        static_cast<Lane*>(lanes[l])->out[matrix] = v[0] | v[1] << 16;
      }
  });
}

void mma_m16n8k16(float* c, const uint32_t* a, const uint32_t* b, bool bf16, Where where) {
  Quiet quiet;
  Mma own{c, a, b};
  const char* what = bf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16";
  meet(~0u, what, &own, where, [bf16](void** lanes) { multiply(lanes, bf16); });
}

bool copy_later(const Copy& c) {
  Quiet quiet;
  if (lands_now()) return false;
  m.current->open.push_back(c);
  return true;
}
void copy_commit() {
  Quiet quiet;
  m.current->groups.push_back(std::exchange(m.current->open, {}));
}
bool copy_due(uint32_t keep, Copy& c) {
  Quiet quiet;
  Fiber& f = *m.current;
  while (f.groups.size() > keep) {
    if (f.landed < f.groups[0].size()) {
      c = f.groups[0][f.landed++];
      return true;
    }
    f.groups.erase(f.groups.begin());
    f.landed = 0;
  }
  return false;
}
}  // namespace emu
