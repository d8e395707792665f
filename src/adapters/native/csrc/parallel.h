// SPDX-License-Identifier: Apache-2.0
// Threads that take their work in small pieces, so that none waits for one that was interrupted.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace trnport {

struct alignas(64) Range {
  std::atomic<int64_t> next;
  int64_t end;
};

// Calls run(begin, end) for pieces of 0..count, on several threads.
//
// A thread walks through a part of its own, front to back as memory likes it, and then helps the
// others with theirs. `prepare` is called once on each thread and makes what it keeps between pieces: its result is
// called with each piece. `least` is the fewest items that are worth a thread.
template <class Prepare>
void share(int64_t count, int64_t least, const Prepare& prepare) {
  const int64_t threads = std::clamp<int64_t>(count / std::max<int64_t>(least, 1), 1, at::get_num_threads());
  if (threads == 1) return prepare()(0, count);
  constexpr int64_t kPieces = 4;  // of each thread
  const int64_t piece = std::max<int64_t>(1, count / (threads * kPieces));
  std::vector<Range> ranges(threads);
  for (int64_t i = 0; i < threads; ++i) {
    ranges[i].next = count * i / threads;
    ranges[i].end = count * (i + 1) / threads;
  }
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    auto run = prepare();
    for (int64_t i = 0; i < threads; ++i) {
      Range& range = ranges[(first + i) % threads];
      for (;;) {
        const int64_t begin = range.next.fetch_add(piece, std::memory_order_relaxed);
        if (begin >= range.end) break;
        run(begin, std::min(begin + piece, range.end));
      }
    }
  });
}

}  // namespace trnport
