// Tells whether another thread of this process is on a processor.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <pthread.h>
#include <time.h>
#endif

namespace pelton {

class ThreadClock {
 public:
  // Of the calling thread, from now on.
  void enroll() {
#if defined(__linux__)
    is_known_ = pthread_getcpuclockid(pthread_self(), &clock_) == 0;
#endif
  }

  // Processor time that the thread has used, in ns: it stands still while the thread is not running. -1 if unknown.
  int64_t now() const {
#if defined(__linux__)
    timespec time;
    if (is_known_ && clock_gettime(clock_, &time) == 0) {
      return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
    }
#endif
    return -1;
  }

 private:
#if defined(__linux__)
  clockid_t clock_ = 0;
#endif
  bool is_known_ = false;
};

}  // namespace pelton
