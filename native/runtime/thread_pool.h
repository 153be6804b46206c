// Threads that run one function together, and wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pelton {

// A number that threads wait for: briefly by spinning, then asleep.
class Gate {
 public:
  uint32_t now() const { return number_.load(std::memory_order_acquire); }
  // Opens the gate for everyone who waits for it to leave `now()`.
  void open();
  // Returns once the number is no longer `seen`. Spins for some `spin_ns` at most before it sleeps.
  void wait(uint32_t seen, int64_t spin_ns);

 private:
  alignas(128) std::atomic<uint32_t> number_{0};
  alignas(128) std::atomic<int32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// The calling thread and `num_threads - 1` others. One `run` at a time.
class ThreadPool {
 public:
  using Function = void (*)(void* argument, int thread);

  explicit ThreadPool(int num_threads);  // throws std::system_error if a thread cannot be made
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }
  // Calls function(argument, i) on every thread; returns when all are done.
  void run(Function function, void* argument);
  // Within `run`: waits for all threads. The last to come calls `last` first, while the others still wait.
  template <class F>
  void barrier(F&& last) {
    if (num_threads_ == 1) {
      last();
      return;
    }
    const uint32_t seen = barrier_.now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      last();
      barrier_.open();
    } else {
      barrier_.wait(seen, kBarrierSpin);
    }
  }

 private:
  static const int64_t kBarrierSpin;
  static const int64_t kIdleSpin;

  void loop(int thread);

  const int num_threads_;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  bool stop_ = false;
  Gate start_;
  Gate barrier_;
  alignas(128) std::atomic<int> arrived_{0};
  std::vector<std::thread> threads_;
};

}  // namespace pelton
