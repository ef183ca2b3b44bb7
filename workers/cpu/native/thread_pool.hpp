// Threads that share one loop's chunks, and neither spin for long nor wait for each other's turn.
//
// The caller works too. Chunks are claimed one by one, and a loop has ended when its chunks have:
// a helper that the system does not let run is not waited for, its share is taken by the others.
// Only a chunk that was claimed is waited for: first spinning, since chunks are short, then asleep.
// OpenMP does neither: its loops split by thread, and its idle threads spin against other processes.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace blockyard {

class ThreadPool {
 public:
  explicit ThreadPool(int threads) {
    for (int worker = 1; worker < threads; ++worker)
      helpers_.emplace_back([this, worker] { help(worker); });
  }

  ~ThreadPool() {
    ending_.store(true);
    ticket_.fetch_add(1);
    wake(ticket_, INT_MAX);
    for (auto& helper : helpers_) helper.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(chunk, worker) once for each chunk, 0 <= worker < threads(); returns when all have
  // ended. One loop at a time, and none from within a body.
  template <class Body>
  void run(int chunks, Body&& body) {
    if (helpers_.empty() || chunks <= 1) {
      for (int chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    // Closed before anything is changed: whoever read a part of the old loop and a part of the new
    // one then fails to claim.
    claims_.store((++loop_ << 32) | kClosed);
    context_.store(&body, std::memory_order_release);
    call_.store([](void* context, int chunk, int worker) {
      (*static_cast<Plain*>(context))(chunk, worker);
    }, std::memory_order_release);
    chunks_.store(chunks, std::memory_order_release);
    ended_.store(0, std::memory_order_release);
    claims_.store(++loop_ << 32);
    ticket_.fetch_add(1);
    if (asleep_.load() > 0) wake(ticket_, INT_MAX);
    work(0);
    for (int spins = 0;; ++spins) {
      const uint32_t ended = ended_.load(std::memory_order_acquire);
      if (ended == static_cast<uint32_t>(chunks)) return;
      if (spins < kSpins) {
        _mm_pause();
      } else {
        caller_sleeps_.store(true);
        if (ended_.load() == ended) wait(ended_, ended);
        caller_sleeps_.store(false);
      }
    }
  }

 private:
  using Call = void (*)(void*, int, int);
  static constexpr uint64_t kClosed = 0xffffffff;
  // About 50 microseconds: longer than what lies between two loops of a step, far shorter than
  // what lies between steps.
  static constexpr int kSpins = 4000;

  void work(int worker) {
    for (;;) {
      uint64_t claim = claims_.load(std::memory_order_acquire);
      const Call call = call_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      const auto chunks = static_cast<uint32_t>(chunks_.load(std::memory_order_acquire));
      const auto chunk = static_cast<uint32_t>(claim);
      if (chunk >= chunks) return;  // also when closed
      if (!claims_.compare_exchange_weak(claim, claim + 1)) continue;
      call(context, static_cast<int>(chunk), worker);
      const uint32_t ended = ended_.fetch_add(1) + 1;
      if (ended == chunks && caller_sleeps_.load()) wake(ended_, 1);
    }
  }

  void help(int worker) {
    uint32_t seen = 0;
    while (!ending_.load()) {
      work(worker);
      int spins = 0;
      while (ticket_.load(std::memory_order_acquire) == seen && ++spins < kSpins) _mm_pause();
      if (spins == kSpins) {
        asleep_.fetch_add(1);
        if (ticket_.load() == seen && !ending_.load()) wait(ticket_, seen);
        asleep_.fetch_sub(1);
      }
      seen = ticket_.load();
    }
  }

  static void wait(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }

  static void wake(std::atomic<uint32_t>& word, int most) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
  }

  // Upper half: which loop; lower half: its next chunk.
  alignas(64) std::atomic<uint64_t> claims_{kClosed};
  alignas(64) std::atomic<uint32_t> ended_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(64) std::atomic<uint32_t> ticket_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> ending_{false};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int> chunks_{0};
  uint64_t loop_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace blockyard
