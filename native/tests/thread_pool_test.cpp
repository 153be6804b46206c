// The thread pool: every thread passes every barrier together, with numbers of threads that change, and asleep.
// Meant to be compiled with -fsanitize=thread, too.
#include "runtime/thread_pool.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kThreads = 5;
constexpr int kBarriers = 40;

struct Work {
  pelton::ThreadPool* pool;
  int num_threads;
  int written[kThreads];  // by each thread, without any lock: only barriers keep it consistent
  int num_last;
  bool is_wrong;
};

void run(void* argument, int thread) {
  Work& work = *static_cast<Work*>(argument);
  for (int i = 1; i <= kBarriers; ++i) {
    work.written[thread] = i;
    work.pool->barrier(thread, [&] {
      ++work.num_last;
      for (int other = 0; other < work.num_threads; ++other) work.is_wrong |= work.written[other] != i;
    });
  }
}

void expect(bool is_right, const char* what, int round) {
  if (is_right) return;
  std::printf("thread_pool_test: %s in round %d\n", what, round);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  pelton::ThreadPool pool(kThreads);
  for (int round = 0; round < rounds; ++round) {
    Work work = {&pool, 1 + (round * 7) % kThreads, {}, 0, false};
    const int64_t stalled = pool.run(work.num_threads, run, &work);
    expect(!work.is_wrong, "a thread went ahead", round);
    expect(work.num_last == kBarriers, "the last thread's part was not done once", round);
    for (int thread = 0; thread < kThreads; ++thread) {
      expect(work.written[thread] == (thread < work.num_threads ? kBarriers : 0), "wrong threads ran", round);
    }
    expect(stalled >= 0, "negative time", round);
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // all fall asleep
  }
  pelton::ThreadPool unused(3);  // ends without a run
  return 0;
}
