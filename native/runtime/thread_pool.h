// Threads that run one function together, and wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/thread_clock.h"

namespace pelton {

// A number that threads wait for: briefly by spinning, then asleep.
class Gate {
 public:
  uint32_t now() const { return number_.load(std::memory_order_acquire); }
  // Opens the gate for everyone who waits for it to leave `now()`.
  void open();
  // Spins until the number is no longer `seen`, for some `spin_ns` at most. -> whether it is.
  bool spin(uint32_t seen, int64_t spin_ns) const;
  // Sleeps until the number is no longer `seen`.
  void sleep(uint32_t seen);

 private:
  alignas(128) std::atomic<uint32_t> number_{0};
  alignas(128) std::atomic<int32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// The calling thread, number 0, and `num_threads - 1` others. One `run` at a time.
class ThreadPool {
 public:
  using Function = void (*)(void* argument, int thread);

  explicit ThreadPool(int num_threads);  // throws std::system_error if a thread cannot be made
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }
  // Calls function(argument, i) on the first `num_threads` threads; returns when all are done. -> how long each of them
  // has waited, on average, for threads that were not running, in ns.
  int64_t run(int num_threads, Function function, void* argument);
  // Within `run`: waits for all of its threads. The last to come calls `last` first, while the others still wait.
  template <class F>
  void barrier(int thread, F&& last) {
    const int num = num_active_;  // before arriving: once all have arrived, the next run may change it
    if (num == 1) {
      last();
      return;
    }
    const uint32_t seen = barrier_.now();
    members_[thread].arrived.store(seen + 1, std::memory_order_release);
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) == num - 1) {
      num_arrived_.store(0, std::memory_order_relaxed);
      last();
      barrier_.open();
    } else {
      wait(seen, num);
    }
  }

 private:
  struct Member {
    alignas(128) Gate start;
    alignas(128) std::atomic<uint32_t> arrived{0};  // at which opening of the barrier
    ThreadClock clock;
  };

  void loop(int thread);
  void stop();
  void wait(uint32_t seen, int num_active);
  bool is_anyone_off(uint32_t seen, int num_active) const;

  const int num_threads_;
  int num_active_ = 1;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  bool is_stopping_ = false;
  Gate barrier_;
  alignas(128) std::atomic<int> num_arrived_{0};
  alignas(128) std::atomic<int64_t> stalled_{0};  // ns, of all threads of a run
  std::unique_ptr<Member[]> members_;
  std::vector<std::thread> threads_;
};

}  // namespace pelton
