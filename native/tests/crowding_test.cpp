// Crowding: down by one after a run that stalled, up by one after a trial that did not, trials further and further
// apart.
#include "runtime/crowding.h"

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int64_t kMs = 1'000'000;

void expect(int line, int64_t actual, int64_t expected) {
  if (actual == expected) return;
  std::printf("crowding_test.cpp:%d: got %lld, expected %lld\n", line, static_cast<long long>(actual),
              static_cast<long long>(expected));
  std::exit(1);
}

#define EXPECT(actual, expected) expect(__LINE__, actual, expected)

// One run of 10 ms that stalls for `stalled` of it. -> its number of threads.
int run(pelton::Crowding& crowding, int64_t& now, int64_t stalled) {
  const int num = crowding.num_threads(now);
  now += 10 * kMs;
  if (num > 1) crowding.record(now, 10 * kMs, stalled);
  return num;
}

void test_quiet() {
  pelton::Crowding crowding(4);
  int64_t now = 0;
  for (int i = 0; i < 100; ++i) EXPECT(run(crowding, now, 1 * kMs), 4);
}

void test_down_and_up() {
  pelton::Crowding crowding(4);
  int64_t now = 0;
  EXPECT(run(crowding, now, 5 * kMs), 4);
  EXPECT(run(crowding, now, 5 * kMs), 3);
  for (int i = 0; i < 9; ++i) EXPECT(run(crowding, now, 0), 2);  // until 100 ms have passed
  EXPECT(run(crowding, now, 0), 2);
  EXPECT(run(crowding, now, 0), 3);  // a trial that goes well
  for (int i = 0; i < 10; ++i) EXPECT(run(crowding, now, 0), 3);
  EXPECT(run(crowding, now, 0), 4);
  for (int i = 0; i < 100; ++i) EXPECT(run(crowding, now, 0), 4);
}

// -> how many runs of 2 threads there are until `end`, each of which stalls.
int count_trials(pelton::Crowding& crowding, int64_t& now, int64_t end) {
  int trials = 0;
  while (now < end) trials += run(crowding, now, 9 * kMs) == 2;
  return trials;
}

void test_trials_get_rare() {
  pelton::Crowding crowding(2);
  int64_t now = 0;
  EXPECT(run(crowding, now, 9 * kMs), 2);
  const int first = count_trials(crowding, now, 1000 * kMs);
  EXPECT(first >= 2 && first <= 4, 1);
  count_trials(crowding, now, 20'000 * kMs);
  const int later = count_trials(crowding, now, 52'000 * kMs);
  EXPECT(later >= 9 && later <= 11, 1);  // every 3.2 s
}

void test_repeated_runs_of_a_trial() {
  pelton::Crowding crowding(2);
  int64_t now = 0;
  EXPECT(run(crowding, now, 9 * kMs), 2);
  now += 200 * kMs;
  EXPECT(crowding.num_threads(now), 2);
  for (int i = 0; i < 3; ++i) crowding.record(now += kMs, kMs, 0);
  EXPECT(crowding.num_threads(now), 2);
}

void test_one_thread_stays() {
  pelton::Crowding crowding(1);
  for (int64_t now = 0; now < 10'000 * kMs; now += 100 * kMs) EXPECT(crowding.num_threads(now), 1);
}

}  // namespace

int main() {
  test_quiet();
  test_down_and_up();
  test_trials_get_rare();
  test_repeated_runs_of_a_trial();
  test_one_thread_stays();
  return 0;
}
