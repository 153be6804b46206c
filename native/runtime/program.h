// Recorded programs, and their replay on the thread pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/thread_pool.h"

namespace pelton {

// How an argument of a launch is found in a step. Filled by Python: keep in step with ops/cpu/library.py.
struct ArgSpec {
  enum Kind : int32_t { kAbsent, kMemory, kInput, kNumber };
  int32_t kind;
  DType dtype;
  int32_t dim;       // named dimension that gives the rows; -1 if their number is fixed
  int32_t is_tiled;  // rows count from the start of the tile
  int64_t rows;      // fixed number of rows, or what is added to the dimension's size
  int64_t cols;
  int64_t row_bytes;
  int64_t value;  // address of kMemory, index of kInput, kNumber as an integer
  double real;    // kNumber
};

struct LaunchSpec {
  const char* kernel;
  int32_t num_args;
  const ArgSpec* args;
};

class Program {
 public:
  // Throws std::invalid_argument for an unknown kernel or a wrong number of arguments.
  Program(const LaunchSpec* launches, int num_launches);

 private:
  friend class Replay;
  struct Launch {
    const Kernel* kernel;
    int first_arg;
  };
  std::vector<Launch> launches_;
  std::vector<ArgSpec> args_;
};

// Some launches of a program, in one step. Filled by Python.
struct Run {
  const Program* program;
  const int64_t* sizes;   // of the named dimensions; of the tile for the tiled one
  const int64_t* inputs;  // addresses
  int64_t tile_start;
  int32_t first;  // launches [first, last)
  int32_t last;
};

// A step: runs, one after the other, on all threads.
class Replay final : private Work {
 public:
  explicit Replay(int num_threads);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Returns null, or what went wrong.
  const char* run(const Run* runs, int num_runs);
  ThreadPool& pool() { return pool_; }
  // Whether a call is under way. Calls set it; a second one at the same time is refused.
  std::atomic<bool>& is_busy() { return is_busy_; }

 private:
  friend class Worker;
  struct Pass {
    const Kernel* kernel;
    size_t first_arg;
    int index;  // within the launch
  };
  struct Counter {
    alignas(128) std::atomic<int64_t> next{0};
  };

  void resolve(const Run& run);
  void take_part(int thread, int64_t index) noexcept override;
  bool complete(int64_t index) noexcept override;

  std::atomic<bool> is_busy_{false};
  ThreadPool pool_;
  std::vector<Worker> workers_;
  std::vector<Pass> passes_;
  std::vector<Arg> args_;
  std::byte* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  std::atomic<const char*> error_{nullptr};
  // Of a pass: one for all, then one for each thread's own range.
  std::vector<Counter> counters_;
};

}  // namespace pelton
