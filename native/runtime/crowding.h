// How many threads to use on a machine that others use too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pelton {

// With as many threads as processors, a busy foreign process takes one of them off its processor for milliseconds, and
// the others wait for it at the next barrier. One thread less is then faster. So the number goes down when a run has
// lost time to waiting for threads that were not running, and after a while one more is tried again: later and later as
// long as that fails. Bits do not depend on the number of threads.
//
// Measured on 2 processors beside one busy loop, against alone, with 2 threads and with 1: one stream 41 and 110 %, 8
// streams 40 and 84 %, 64 streams 55 and 64 %, a prompt of 512 tokens 53 and 53 %. Alone, runs stall for less than 1 %.
class Crowding {
 public:
  explicit Crowding(int num_threads) : most_(num_threads), current_(num_threads) {}

  // Threads for a run that begins now (ns).
  int num_threads(int64_t now) {
    is_trial_ = current_ < most_ && now >= next_trial_;
    return is_trial_ ? current_ + 1 : current_;
  }

  // How a run of as many threads went: it ended now, took so long, and each thread waited so long for threads that were
  // not running (ns).
  void record(int64_t now, int64_t duration, int64_t stalled) {
    if (stalled > kMostStalled * duration) {
      if (!is_trial_) current_ = std::max(1, current_ - 1);
      pause_ = is_trial_ ? std::min(2 * pause_, kLongestPause) : kFirstPause;
      next_trial_ = now + pause_;
    } else if (is_trial_) {
      ++current_;
      pause_ = kFirstPause;
      next_trial_ = now + pause_;
    }
    is_trial_ = false;
  }

 private:
  // Between 0.01 of quiet machines and 0.4 and more of crowded ones.
  static constexpr double kMostStalled = 0.15;
  // A failed trial costs some 30 ms: a tenth of the time at first, a hundredth in the end.
  static constexpr int64_t kFirstPause = 100'000'000;
  static constexpr int64_t kLongestPause = 3'200'000'000;

  const int most_;
  int current_;
  bool is_trial_ = false;
  int64_t pause_ = kFirstPause;
  int64_t next_trial_ = 0;
};

}  // namespace pelton
