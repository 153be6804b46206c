// A thread as the operating system sees it: whether it is on a processor, and on which.
#pragma once

#include <pthread.h>
#include <time.h>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdint>

namespace pelton {

class OsThread {
 public:
  // This is the calling thread, from now on.
  void enroll() {
#if defined(__linux__)
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock) == 0) clock_.store(clock, std::memory_order_relaxed);
    id_.store(gettid(), std::memory_order_relaxed);
#endif
  }

  // Processor time that the thread has used, in ns: it stands still while the thread is not running. -1 if unknown.
  int64_t processor_time() const {
    timespec time;
    const int64_t clock = clock_.load(std::memory_order_relaxed);
    if (clock == kUnknown || clock_gettime(static_cast<clockid_t>(clock), &time) != 0) return -1;
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  }

  // Moves this thread to the caller's processor, and the caller to another one of those that it may use. What they may
  // use is the same before and after, if no two threads do this at once. -> false if there is none, or the system
  // refuses.
  bool take_callers_processor() const {
#if defined(__linux__)
    const pid_t id = id_.load(std::memory_order_relaxed);
    cpu_set_t here, others, callers, its;
    const int processor = sched_getcpu();
    if (id == 0 || processor < 0) return false;
    if (sched_getaffinity(0, sizeof(callers), &callers) != 0 || sched_getaffinity(id, sizeof(its), &its) != 0) {
      return false;
    }
    if (!CPU_ISSET(processor, &callers) || !CPU_ISSET(processor, &its)) return false;
    CPU_ZERO(&here);
    CPU_SET(processor, &here);
    others = callers;
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(id, sizeof(here), &here) != 0) return false;
    const bool has_moved = sched_setaffinity(0, sizeof(others), &others) == 0;
    sched_setaffinity(id, sizeof(its), &its);
    if (has_moved) sched_setaffinity(0, sizeof(callers), &callers);
    return has_moved;
#else
    return false;
#endif
  }

 private:
  static constexpr int64_t kUnknown = INT64_MAX;  // no clockid_t is so large

  std::atomic<int64_t> clock_{kUnknown};
  std::atomic<int> id_{0};
};

}  // namespace pelton
