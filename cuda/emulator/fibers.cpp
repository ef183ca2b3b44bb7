// Who runs when: fibers, their switches, and the order of threads and blocks. Build without
// sanitizers; their fiber hooks are found at run time through weak symbols.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "machine.hpp"

namespace emu {
Machine machine;

namespace {
Machine& m = machine;
constexpr size_t kStackBytes = 256 * 1024;
thread_local std::string last_error;

#if defined(__x86_64__)
__attribute__((naked, noinline)) void raw_switch(void**, void*) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

void to_main(bool exiting = false) {
  Fiber* f = m.current;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(exiting ? nullptr : &f->asan, m.main_bottom, m.main_size);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(m.main_tsan, 1);  // 1: orders nothing
#if defined(__x86_64__)
  raw_switch(&f->stack_pointer, m.main_stack_pointer);
#else
  swapcontext(&f->context, &m.main_context);
#endif
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(f->asan, &m.main_bottom, &m.main_size);
}

void to_fiber(Fiber* f) {
  m.current = f;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(&m.main_asan, f->stack.get(), kStackBytes);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(f->tsan, 1);
#if defined(__x86_64__)
  raw_switch(&m.main_stack_pointer, f->stack_pointer);
#else
  swapcontext(&m.main_context, &f->context);
#endif
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(m.main_asan, nullptr, nullptr);
}

void open_barrier(Barrier& b) {
  b.arrived = 0;
  for (Fiber& f : m.fibers)
    if (f.state == State::Barrier && f.barrier == &b) wake(f);
}

void fiber_main() {
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(nullptr, &m.main_bottom, &m.main_size);
  if (__tsan_acquire) __tsan_acquire(&m.block_starts);
  try {
    m.entry(m.argument);
  } catch (const std::exception& e) {
    m.error = e.what();
  }
  if (__tsan_release) __tsan_release(&m.block_ends);
  m.current->state = State::Done;
  --m.live;
  for (Barrier& b : m.barriers)  // threads that have exited no longer count for all threads
    if (!b.threads && b.arrived && b.arrived == m.live) open_barrier(b);
  to_main(true);
  std::abort();
}

void start(Fiber& f) {
  if (!f.stack) f.stack = std::make_unique_for_overwrite<unsigned char[]>(kStackBytes);
  if (__tsan_create_fiber) {
    if (f.tsan) __tsan_destroy_fiber(f.tsan);
    f.tsan = __tsan_create_fiber(0);
  }
#if defined(__x86_64__)
  const auto top = reinterpret_cast<uintptr_t>(f.stack.get()) + kStackBytes;
  void** p = reinterpret_cast<void**>(top & ~uintptr_t(63));
  *--p = nullptr;  // 16-byte alignment at entry
  *--p = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--p = nullptr;
  f.stack_pointer = p;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get();
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, reinterpret_cast<void (*)()>(&fiber_main), 0);
#endif
  f.groups.clear();
  f.open.clear();
  f.landed = 0;
  f.state = State::Ready;
}

[[noreturn]] void deadlock() {
  const dim3 b = m.block_index;
  std::string text = "no thread can run (divergent barrier or collective) in block (" +
                     std::to_string(b.x) + "," + std::to_string(b.y) + "," + std::to_string(b.z) +
                     "):";
  std::vector<std::pair<std::string, int>> places;
  for (Fiber& f : m.fibers) {
    std::string place = f.state == State::Done ? "exited"
                                               : std::string(f.what) + " at " +
                                                     f.where.file_name() + ":" +
                                                     std::to_string(f.where.line());
    auto it = std::find_if(places.begin(), places.end(), [&](auto& p) { return p.first == place; });
    if (it == places.end()) places.push_back({place, 1});
    else ++it->second;
  }
  for (auto& [place, count] : places) text += "\n  " + std::to_string(count) + " threads: " + place;
  throw std::runtime_error(text);
}

void run_block(const int* shape) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 1024, std::max<size_t>(m.shared_bytes, 1))) throw std::bad_alloc();
  m.shared.reset(static_cast<unsigned char*>(memory));
  std::memset(memory, 0xff, m.shared_bytes);  // NaN in every floating type
  const int threads = static_cast<int>(m.fibers.size());
  m.warps.assign((threads + 31) / 32, Warp{});
  m.warp_groups.assign((threads + 127) / 128, WarpGroup{});
  for (Barrier& b : m.barriers) b = Barrier{};
  m.ready.clear();
  for (int i = 0; i < threads; ++i) {
    Fiber& f = m.fibers[i];
    f.index = i, f.warp = i / 32, f.lane = i % 32;
    f.thread = dim3(i % shape[3], i / shape[3] % shape[4], i / (shape[3] * shape[4]));
    start(f);
    m.ready.push_back(i);
  }
  if (m.order == Reverse) std::reverse(m.ready.begin(), m.ready.end());
  m.live = threads;
  if (__tsan_release) __tsan_release(&m.block_starts);
  for (size_t head = 0; m.live;) {
    if (head == m.ready.size()) deadlock();
    if (m.order == RandomOrder)
      std::swap(m.ready[head], m.ready[head + m.random() % (m.ready.size() - head)]);
    Fiber* f = &m.fibers[m.ready[head++]];
    if (head > 4096) m.ready.erase(m.ready.begin(), m.ready.begin() + head), head = 0;
    to_fiber(f);
    if (!m.error.empty()) throw std::runtime_error(std::exchange(m.error, {}));
  }
  if (__tsan_acquire) __tsan_acquire(&m.block_ends);
  m.shared.reset();
}

void run_grid(const int* shape, size_t shared_bytes) {
  m.grid = dim3(shape[0], shape[1], shape[2]);
  m.block = dim3(shape[3], shape[4], shape[5]);
  const int threads = shape[3] * shape[4] * shape[5];
  if (threads < 1 || threads > 1024 || shape[0] < 1 || shape[1] < 1 || shape[2] < 1)
    throw std::runtime_error("bad launch shape");
  if (shared_bytes > 227 * 1024) throw std::runtime_error("more than 227 KB of shared memory");
  if (__tsan_get_current_fiber) m.main_tsan = __tsan_get_current_fiber();
  m.fibers.resize(threads);
  m.shared_bytes = shared_bytes;
  std::vector<uint64_t> blocks(uint64_t(shape[0]) * shape[1] * shape[2]);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  if (m.order == RandomOrder) std::shuffle(blocks.begin(), blocks.end(), m.random);
  if (m.order == Reverse) std::reverse(blocks.begin(), blocks.end());
  for (uint64_t b : blocks) {
    m.block_index = dim3(b % shape[0], b / shape[0] % shape[1], b / (uint64_t(shape[0]) * shape[1]));
    run_block(shape);
  }
}
}  // namespace

void wake(Fiber& f) {
  f.state = State::Ready;
  m.ready.push_back(f.index);
}
void block_on(State state, const char* what, Where where) {
  m.current->state = state;
  m.current->what = what;
  m.current->where = where;
  to_main();
}
const dim3& thread_index() { return m.current->thread; }
const dim3& block_index() { return m.block_index; }
const dim3& block_shape() { return m.block; }
const dim3& grid_shape() { return m.grid; }
int lane() { return m.current->lane; }
unsigned char* shared_memory() { return m.shared.get(); }
uint32_t shared_offset(const void* p) {
  return static_cast<const unsigned char*>(p) - m.shared.get();
}
void fail(const char* what) { throw std::runtime_error(what); }

void barrier(int id, int threads, const char* what, Where where) {
  Quiet quiet;
  Barrier& b = m.barriers[id];
  if (__tsan_release) __tsan_release(&b.order);
  b.threads = threads;
  if (++b.arrived == (threads ? threads : m.live)) {
    open_barrier(b);
  } else {
    m.current->barrier = &b;
    block_on(State::Barrier, what, where);
  }
  if (__tsan_acquire) __tsan_acquire(&b.order);
}
void barrier_arrive(int id, int threads, Where) {
  Quiet quiet;
  Barrier& b = m.barriers[id];
  if (__tsan_release) __tsan_release(&b.order);
  b.threads = threads;
  if (++b.arrived == threads) open_barrier(b);
}

int run(const int* shape, size_t shared_bytes, int order, int landing, uint64_t seed,
        void (*entry)(void*), void* argument) {
  Quiet quiet;
  try {
    m.order = order, m.landing = landing, m.entry = entry, m.argument = argument;
    m.random.seed(seed);
    m.error.clear();
    run_grid(shape, shared_bytes);
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return 1;
  }
}
}  // namespace emu

extern "C" const char* emu_last_error() { return emu::last_error.c_str(); }
