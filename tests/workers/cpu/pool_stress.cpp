// Loops of all sizes on pools of some threads, for the thread sanitizer: every chunk runs once, and
// what a loop wrote without atomics is seen by the next.
#include <cstdio>
#include <vector>

#include "thread_pool.hpp"

int main() {
  for (int threads : {1, 2, 3, 5}) {
    blockyard::ThreadPool pool(threads);
    std::vector<int> counts(64, 0);
    for (int round = 0; round < 4000; ++round) {
      const int chunks = round * 7 % 64;
      pool.run(chunks, [&](int chunk, int) { counts[static_cast<size_t>(chunk)] += 1; });
      // Long enough now and then for helpers to fall asleep.
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::vector<int> expected(64, 0);
    for (int round = 0; round < 4000; ++round)
      for (int chunk = 0; chunk < round * 7 % 64; ++chunk) expected[static_cast<size_t>(chunk)] += 1;
    if (counts != expected) {
      std::printf("%d threads: a chunk ran twice, or not at all\n", threads);
      return 1;
    }
  }
  return 0;
}
