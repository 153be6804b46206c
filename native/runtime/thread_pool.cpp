#include "runtime/thread_pool.h"

#include <pthread.h>

#include "runtime/clock.h"

namespace pelton {
namespace {

// Items take up to some 100 us, so waits of this length are common, and waking up costs some 40 us.
constexpr int64_t kBarrierSpin = 100'000;
// What Python does between two steps of a large batch takes 1 to 2 ms, that of a small one 0.5 ms.
constexpr int64_t kIdleSpin = 500'000;
// A thread whose processor time stands still for so long is not running: Linux counts it in ns. Where clocks are
// coarse, a long wait looks like one for such a thread, and the waiting thread sleeps early.
constexpr int64_t kStandstill = 20'000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Gate::open() {
  // Sequentially consistent, like the counterpart in `sleep`: one of the two sees what the other has written.
  number_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
  }
}

bool Gate::spin(uint32_t seen, int64_t spin_ns) const {
  constexpr int kPauses = 64;  // between looks at the clock
  for (int64_t start = 0;;) {
    for (int i = 0; i < kPauses; ++i) {
      if (now() != seen) return true;
      pause();
    }
    const int64_t time = now_ns();
    if (start == 0) start = time;
    if (time - start > spin_ns) return false;
  }
}

void Gate::sleep(uint32_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return number_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), members_(new Member[num_threads]) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      threads_.emplace_back(&ThreadPool::loop, this, thread);
      members_[thread].clock.enroll(threads_.back().native_handle());
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  is_stopping_ = true;
  for (size_t thread = 1; thread <= threads_.size(); ++thread) members_[thread].start.open();
  for (std::thread& thread : threads_) thread.join();
}

int64_t ThreadPool::run(int num_threads, Function function, void* argument) {
  num_active_ = num_threads;
  function_ = function;
  argument_ = argument;
  members_[0].clock.enroll(pthread_self());
  stalled_.store(0, std::memory_order_relaxed);
  for (int thread = 1; thread < num_threads; ++thread) members_[thread].start.open();
  function(argument, 0);
  barrier(0, [] {});
  return num_threads > 1 ? stalled_.load(std::memory_order_relaxed) / (num_threads - 1) : 0;
}

void ThreadPool::loop(int thread) {
  Member& member = members_[thread];
  for (uint32_t seen = 0;; ++seen) {
    if (!member.start.spin(seen, kIdleSpin)) member.start.sleep(seen);
    if (is_stopping_) return;
    function_(argument_, thread);
    barrier(thread, [] {});
  }
}

bool ThreadPool::is_anyone_off(uint32_t seen, int num_active) const {
  for (int thread = 0; thread < num_active; ++thread) {
    const Member& member = members_[thread];
    if (member.arrived.load(std::memory_order_acquire) == seen + 1) continue;
    const int64_t before = member.clock.now();
    if (barrier_.spin(seen, kStandstill)) return false;
    if (before >= 0 && member.clock.now() == before) return true;
  }
  return false;
}

void ThreadPool::wait(uint32_t seen, int num_active) {
  while (!barrier_.spin(seen, kBarrierSpin)) {
    if (!is_anyone_off(seen, num_active)) continue;
    // Whoever is off may get this processor.
    const int64_t start = now_ns();
    barrier_.sleep(seen);
    stalled_.fetch_add(now_ns() - start, std::memory_order_relaxed);
    return;
  }
}

}  // namespace pelton
