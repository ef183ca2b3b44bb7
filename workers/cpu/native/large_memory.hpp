// Arrays that begin with a cache line, of whole large pages where they are worth one.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace blockyard {

struct FreeFloats {
  void operator()(float* data) const { std::free(data); }
};
using LargeFloats = std::unique_ptr<float, FreeFloats>;

// Rows of a tile lie far apart: in small pages every one would need a translation of its own.
inline LargeFloats make_large(int64_t count) {
  constexpr size_t kLine = 64, kLargePage = size_t{2} << 20;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  const size_t unit = bytes < kLargePage / 8 ? kLine : kLargePage;
  const size_t whole = (bytes + unit - 1) / unit * unit;
  auto* memory = static_cast<float*>(std::aligned_alloc(unit, whole));
  if (unit == kLargePage) madvise(memory, whole, MADV_HUGEPAGE);
  return LargeFloats(memory);
}

}  // namespace blockyard
