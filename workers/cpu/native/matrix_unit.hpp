// The processor's matrix unit (AMX): whether it may be used, and its registers' shape while it is.
//
// A system keeps its registers, 8 KiB of each thread, only for a process that has asked. It refuses
// where it knows nothing of the unit, where a sandbox forbids the call, and where the stack of some
// signal handler is too small to hold them; then the vector units compute.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

namespace blockyard {

#ifdef __AMX_BF16__

// Asks once, for the process and all of its threads.
inline bool may_use_matrix_unit() {
  static const bool allowed = [] {
    constexpr int kAskForState = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
  }();
  return allowed;
}

// While it lives the thread's eight registers are tiles of 16 rows of 64 bytes. Afterwards they are
// empty: a system then has nothing of them to save, and nobody else finds a shape not its own.
class TilesInUse {
 public:
  TilesInUse() {
    static constexpr struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } kShape;
    _tile_loadconfig(&kShape);
  }
  ~TilesInUse() { _tile_release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

#else

inline bool may_use_matrix_unit() { return false; }

#endif

}  // namespace blockyard
