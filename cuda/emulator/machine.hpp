// The emulated multiprocessor's state, shared by fibers.cpp (who runs) and collectives.cpp (what
// threads do together). One launch at a time.
#pragma once
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulation.hpp"
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {  // the sanitizers' hooks, absent without them
void* __tsan_get_current_fiber() __attribute__((weak));
void* __tsan_create_fiber(unsigned) __attribute__((weak));
void __tsan_destroy_fiber(void*) __attribute__((weak));
void __tsan_switch_to_fiber(void*, unsigned) __attribute__((weak));
void __tsan_acquire(void*) __attribute__((weak));
void __tsan_release(void*) __attribute__((weak));
void AnnotateIgnoreReadsBegin(const char*, int) __attribute__((weak));
void AnnotateIgnoreReadsEnd(const char*, int) __attribute__((weak));
void AnnotateIgnoreWritesBegin(const char*, int) __attribute__((weak));
void AnnotateIgnoreWritesEnd(const char*, int) __attribute__((weak));
void __sanitizer_start_switch_fiber(void**, const void*, size_t) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) __attribute__((weak));
}

namespace emu {

enum class State : uint8_t { Ready, Meeting, Barrier, Done };
enum Order { Forward, Reverse, RandomOrder };
enum Landing { Eager, Lazy, RandomLanding };

// The machine's own libc calls must not look like the kernel's accesses to TSan.
struct Quiet {
  Quiet() {
    if (!AnnotateIgnoreReadsBegin) return;
    AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0);
  }
  ~Quiet() {
    if (!AnnotateIgnoreReadsEnd) return;
    AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0);
  }
};

struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<unsigned char[]> stack;
  dim3 thread;
  int index = 0, warp = 0, lane = 0;
  State state = State::Done;
  const char* what = "";
  Where where;
  void *barrier = nullptr, *tsan = nullptr, *asan = nullptr;
  std::vector<std::vector<Copy>> groups;  // committed copies, oldest first
  std::vector<Copy> open;
  size_t landed = 0;  // copies of groups[0] already handed out
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};
// Lanes on their way to one collective.
struct Meeting {
  uint32_t mask = 0, arrived = 0;
  const char* what = "";
  void* argument[32] = {};
};
struct Warp {
  std::vector<Meeting> open;
  char order = 0;  // its address stands for the happens-before of __syncwarp
};
struct Wgmma {
  float* d[128];
  uint32_t a_registers[128][4];
  uint64_t a, b;
  int n;
  bool from_registers, b_transposed, bf16;
};
struct WarpGroup {
  int arrived = 0;
  Wgmma next;
  std::vector<std::vector<Wgmma>> groups;
  std::vector<Wgmma> open;
};
struct Barrier {
  int arrived = 0, threads = 0;  // 0 threads: all that have not exited
  char order = 0;
};

struct Machine {
  dim3 grid, block, block_index;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<WarpGroup> warp_groups;
  size_t shared_bytes = 0;
  Barrier barriers[16];
  std::vector<int> ready;
  int live = 0, order = Forward, landing = Lazy;
  Fiber* current = nullptr;
  void *main_stack_pointer = nullptr, *main_tsan = nullptr, *main_asan = nullptr;
  const void* main_bottom = nullptr;
  size_t main_size = 0;
  std::unique_ptr<unsigned char, decltype(&std::free)> shared{nullptr, &std::free};
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
  std::string error;
  char block_starts = 0, block_ends = 0;  // ordered with the host, and so with other blocks
  std::mt19937_64 random{0};
#if !defined(__x86_64__)
  ucontext_t main_context;
#endif
};
extern Machine machine;

inline bool lands_now() {
  return machine.landing == Eager || (machine.landing == RandomLanding && (machine.random() & 1));
}
void wake(Fiber&);
void block_on(State, const char* what, Where);
}  // namespace emu
