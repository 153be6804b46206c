#include "runtime/thread_pool.h"

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

// Parts of the pool's state.
constexpr uint64_t kInside = 0xffff;
constexpr uint64_t kClosed = 1 << 16;
constexpr uint64_t kOver = 1 << 17;
constexpr int kStepShift = 18;

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

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), state_(kClosed | kOver), members_(new Member[num_threads]) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      threads_.emplace_back(&ThreadPool::loop, this, thread);
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

void ThreadPool::run(int64_t num_steps, Work& work) {
  if (num_steps == 0) return;
  // While a run is over nobody can enter, so nobody looks at these.
  work_ = &work;
  num_steps_ = num_steps;
  first_step_ = (state_.load(std::memory_order_relaxed) >> kStepShift) + 1;
  members_[0].thread.enroll();
  state_.store(first_step_ << kStepShift, std::memory_order_release);
  for (int thread = 1; thread < num_threads_; ++thread) members_[thread].start.open();
  work_off(0);
}

void ThreadPool::loop(int thread) {
  Gate& start = members_[thread].start;
  members_[thread].thread.enroll();
  for (uint32_t seen = 0;;) {
    if (!start.spin(seen, kIdleSpin)) start.sleep(seen);
    seen = start.now();  // of runs that this thread has missed, the last counts
    if (is_stopping_) return;
    work_off(thread);
  }
}

void ThreadPool::work_off(int thread) {
  for (uint64_t state = state_.load(std::memory_order_acquire);;) {
    if ((state & kOver) != 0) return;
    if ((state & kClosed) != 0) {
      state = wait(thread);
      continue;
    }
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    members_[thread].is_inside.store(true, std::memory_order_release);
    work_->take_part(thread, static_cast<int64_t>((state >> kStepShift) - first_step_));
    members_[thread].is_inside.store(false, std::memory_order_release);
    uint64_t left;
    state = state_.load(std::memory_order_relaxed);
    do {
      left = (state | kClosed) - 1;
    } while (!state_.compare_exchange_weak(state, left, std::memory_order_acq_rel, std::memory_order_relaxed));
    if ((left & kInside) == 0) advance(left);
    state = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::advance(uint64_t state) {
  const uint64_t step = state >> kStepShift;
  const auto index = static_cast<int64_t>(step - first_step_);
  const bool goes_on = work_->complete(index) && index + 1 < num_steps_;
  state_.store(goes_on ? (step + 1) << kStepShift : state | kOver, std::memory_order_seq_cst);
  turn_.open();
}

const OsThread* ThreadPool::find_off(int thread, uint32_t seen) const {
  for (int i = 0; i < num_threads_; ++i) {
    const Member& other = members_[i];
    if (i == thread || !other.is_inside.load(std::memory_order_acquire)) continue;
    const int64_t before = other.thread.processor_time();
    if (turn_.spin(seen, kStandstill)) return nullptr;
    if (other.thread.processor_time() == before) return &other.thread;  // or if nobody knows
  }
  return nullptr;
}

uint64_t ThreadPool::wait(int thread) {
  const uint32_t seen = turn_.now();
  const uint64_t state = state_.load(std::memory_order_acquire);
  if ((state & kClosed) == 0 || (state & kOver) != 0) return state;
  for (bool has_moved = false; !turn_.spin(seen, kBarrierSpin);) {
    const OsThread* off = find_off(thread, seen);
    if (off == nullptr) continue;
    // Another process has taken its processor, for milliseconds. It goes on at once on this one; the step needs it, and
    // this thread can wait elsewhere.
    if (!has_moved && !is_trading_.test_and_set(std::memory_order_acquire)) {
      has_moved = off->take_callers_processor();
      is_trading_.clear(std::memory_order_release);
      if (has_moved) continue;
    }
    turn_.sleep(seen);
    break;
  }
  return state_.load(std::memory_order_acquire);
}

}  // namespace pelton
