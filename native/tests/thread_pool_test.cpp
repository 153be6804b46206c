// The thread pool: steps in order, each complete before the next, also by threads that were asleep.
// Meant to be compiled with -fsanitize=thread, too.
#include "runtime/thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kThreads = 5;
constexpr int kSteps = 40;
constexpr int kItems = 12;

struct Sums final : pelton::Work {
  int64_t last_step = kSteps - 1;  // where `complete` ends the run
  std::atomic<int> next{0};
  int items[kItems] = {};  // each written by who claims it, without any lock: only steps keep it consistent
  int64_t num_complete = 0;
  bool is_wrong = false;

  void take_part(int, int64_t step) noexcept override {
    for (int i = next.fetch_add(1); i < kItems; i = next.fetch_add(1)) {
      // An item needs its neighbours' of the step before.
      items[i] += items[i] == step ? 1 : 100;
    }
  }
  bool complete(int64_t step) noexcept override {
    for (int item : items) is_wrong |= item != step + 1;
    is_wrong |= step != num_complete++;
    next = 0;
    return step < last_step;
  }
};

void expect(bool is_right, const char* what, int round) {
  if (is_right) return;
  std::printf("thread_pool_test: %s in round %d\n", what, round);
  std::exit(1);
}

// Whoever gives up its processor finds what both threads may use unchanged.
void test_trade() {
#if defined(__linux__)
  pelton::OsThread spinner;
  std::atomic<int> stage{0};
  std::thread thread([&] {
    spinner.enroll();
    stage = 1;
    while (stage != 2) {
    }
  });
  while (stage != 1) {
  }
  cpu_set_t before, after, all;
  sched_getaffinity(0, sizeof(before), &before);
  const int64_t time = spinner.processor_time();
  const bool is_traded = spinner.take_callers_processor();
  expect(is_traded == (CPU_COUNT(&before) > 1), "wrong answer from a trade", 0);
  sched_getaffinity(0, sizeof(after), &after);
  expect(CPU_EQUAL(&before, &after), "a trade changed what the caller may use", 0);
  pthread_getaffinity_np(thread.native_handle(), sizeof(all), &all);
  expect(CPU_EQUAL(&before, &all), "a trade changed what the other thread may use", 0);
  for (int i = 0; i < 1000 && spinner.processor_time() == time; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  expect(spinner.processor_time() > time, "a running thread's time stands still", 0);
  stage = 2;
  thread.join();
  expect(!pelton::OsThread().take_callers_processor(), "a thread that is not enrolled was moved", 0);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  pelton::ThreadPool pool(kThreads);
  for (int round = 0; round < rounds; ++round) {
    Sums sums;
    if (round % 3 == 0) sums.last_step = round % kSteps;
    pool.run(kSteps, sums);
    expect(!sums.is_wrong, "a step began too early or was left too early", round);
    expect(sums.num_complete == sums.last_step + 1, "wrong number of steps", round);
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // all fall asleep
  }
  test_trade();
  pelton::ThreadPool unused(3);  // ends without a run
  return 0;
}
