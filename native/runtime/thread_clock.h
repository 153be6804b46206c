// Tells whether another thread of this process is on a processor.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace pelton {

class ThreadClock {
 public:
  // Of this thread, from now on.
  void enroll(pthread_t thread) {
#if defined(__linux__)
    clockid_t clock;
    if (pthread_getcpuclockid(thread, &clock) == 0) clock_.store(clock, std::memory_order_relaxed);
#else
    static_cast<void>(thread);
#endif
  }

  // Processor time that the thread has used, in ns: it stands still while the thread is not running. -1 if unknown.
  int64_t now() const {
    timespec time;
    const int64_t clock = clock_.load(std::memory_order_relaxed);
    if (clock == kUnknown || clock_gettime(static_cast<clockid_t>(clock), &time) != 0) return -1;
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  }

 private:
  static constexpr int64_t kUnknown = INT64_MAX;  // no clockid_t is so large

  std::atomic<int64_t> clock_{kUnknown};
};

}  // namespace pelton
