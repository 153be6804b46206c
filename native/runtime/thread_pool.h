// Threads that share out the steps of a task, and wait for each other between them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/os_thread.h"

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

// What the threads of a pool do together: steps, one after the other.
class Work {
 public:
  // One thread's part in a step. It returns only when nothing of the step is left to begin, so that the step is
  // complete when all who began it have returned: nobody waits for a thread that has not come.
  virtual void take_part(int thread, int64_t step) noexcept = 0;
  // A step is complete, and nobody is in it or in the next. -> whether to go on.
  virtual bool complete(int64_t step) noexcept = 0;

 protected:
  ~Work() = default;
};

// The calling thread, number 0, and `num_threads - 1` others. One `run` at a time.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // throws std::system_error if a thread cannot be made
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }
  // Runs steps 0 to num_steps - 1 on all threads, as they come; returns when the last is complete.
  void run(int64_t num_steps, Work& work);

 private:
  struct Member {
    alignas(128) Gate start;
    alignas(128) std::atomic<bool> is_inside{false};
    OsThread thread;
  };

  void loop(int thread);
  void stop();
  void work_off(int thread);
  // Waits until a step can be entered, or the run is over. -> the state.
  uint64_t wait(int thread);
  void advance(uint64_t state);
  // A thread that is in the step but not on a processor; null if there is none, or the turn has come.
  const OsThread* find_off(int thread, uint32_t seen) const;

  const int num_threads_;
  // How many threads are in the current step, kClosed once it cannot be entered any more, kOver between runs; above
  // them the step's number since the pool was made.
  alignas(128) std::atomic<uint64_t> state_{0};
  Gate turn_;  // opens whenever a step is complete
  Work* work_ = nullptr;
  int64_t num_steps_ = 0;
  uint64_t first_step_ = 0;  // the number of this run's step 0
  std::atomic<bool> is_stopping_{false};
  std::atomic_flag is_trading_ = ATOMIC_FLAG_INIT;  // a thread gives its processor to another
  std::unique_ptr<Member[]> members_;
  std::vector<std::thread> threads_;
};

}  // namespace pelton
