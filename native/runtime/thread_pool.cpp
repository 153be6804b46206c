#include "runtime/thread_pool.h"

#include <chrono>

namespace pelton {
namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const int64_t ThreadPool::kBarrierSpin = 50'000;
const int64_t ThreadPool::kIdleSpin = 200'000;

void Gate::open() {
  // Sequentially consistent, like the counterpart in `wait`: one of the two sees what the other has written.
  number_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
  }
}

void Gate::wait(uint32_t seen, int64_t spin_ns) {
  constexpr int kPauses = 64;  // between looks at the clock
  for (int64_t start = 0;;) {
    for (int i = 0; i < kPauses; ++i) {
      if (now() != seen) return;
      pause();
    }
    const int64_t time = now_ns();
    if (start == 0) start = time;
    if (time - start > spin_ns) break;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return number_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back(&ThreadPool::loop, this, thread);
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  start_.open();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(Function function, void* argument) {
  function_ = function;
  argument_ = argument;
  start_.open();
  function(argument, 0);
  barrier([] {});
}

void ThreadPool::loop(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    start_.wait(seen, kIdleSpin);
    if (stop_) return;
    function_(argument_, thread);
    barrier([] {});
  }
}

}  // namespace pelton
