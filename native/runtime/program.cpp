#include "runtime/program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "ops/kernels.h"

namespace pelton {
namespace {

const Kernel& find_kernel(const char* name) {
  for (const Kernel* kernel : kKernels) {
    if (std::strcmp(kernel->name, name) == 0) return *kernel;
  }
  throw std::invalid_argument(std::string("there is no kernel ") + name);
}

std::byte* allocate(size_t num_bytes) {
  constexpr size_t kAlignment = 64;
  void* memory = std::aligned_alloc(kAlignment, (num_bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

Program::Program(const LaunchSpec* launches, int num_launches) {
  for (int i = 0; i < num_launches; ++i) {
    if (launches[i].kernel == nullptr) {  // Python runs it
      launches_.push_back({nullptr, 0});
      continue;
    }
    const Kernel& kernel = find_kernel(launches[i].kernel);
    if (kernel.num_args != launches[i].num_args) {
      throw std::invalid_argument(std::string(kernel.name) + " takes " + std::to_string(kernel.num_args) +
                                  " arguments, got " + std::to_string(launches[i].num_args));
    }
    launches_.push_back({&kernel, static_cast<int>(args_.size())});
    args_.insert(args_.end(), launches[i].args, launches[i].args + launches[i].num_args);
  }
}

bool Worker::took_part(int thread) const {
  const int64_t before = pass_index_ - 1;
  return replay_->workers_[thread].parts_[before & 1] == before;
}

int64_t Worker::claim(int64_t num) { return replay_->counters_[0].next.fetch_add(num, std::memory_order_relaxed); }

int64_t Worker::claim_of(int owner) {
  return replay_->counters_[1 + owner].next.fetch_add(1, std::memory_order_relaxed);
}

std::byte* Worker::scratch(size_t num_bytes) {
  if (num_bytes > scratch_bytes_) {
    std::free(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = allocate(num_bytes);
    scratch_bytes_ = num_bytes;
  }
  return scratch_;
}

void Worker::fail(const char* message) {
  const char* none = nullptr;
  replay_->error_.compare_exchange_strong(none, message);
}

Replay::Replay(int num_threads) : pool_(num_threads), workers_(num_threads), counters_(1 + num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    workers_[i].index_ = i;
    workers_[i].count_ = num_threads;
    workers_[i].replay_ = this;
  }
}

Replay::~Replay() {
  for (Worker& worker : workers_) std::free(worker.scratch_);
  std::free(shared_);
}

const char* Replay::run(const Run* runs, int num_runs) {
  passes_.clear();
  args_.clear();
  for (Worker& worker : workers_) worker.parts_[0] = worker.parts_[1] = -1;
  for (int i = 0; i < num_runs; ++i) resolve(runs[i]);
  error_ = nullptr;
  pool_.run(static_cast<int64_t>(passes_.size()), *this);
  return error_;
}

void Replay::resolve(const Run& run) {
  size_t shared_bytes = 0;
  for (int i = run.first; i < run.last; ++i) {
    const Program::Launch& launch = run.program->launches_[i];
    const size_t first_arg = args_.size();
    for (int j = 0; j < launch.kernel->num_args; ++j) {
      const ArgSpec& spec = run.program->args_[launch.first_arg + j];
      Arg arg;
      arg.dtype = spec.dtype;
      arg.real = spec.real;
      if (spec.kind == ArgSpec::kNumber) arg.integer = spec.value;
      if (spec.kind == ArgSpec::kMemory || spec.kind == ArgSpec::kInput) {
        const int64_t address = spec.kind == ArgSpec::kInput ? run.inputs[spec.value] : spec.value;
        arg.data = reinterpret_cast<void*>(address + (spec.is_tiled ? run.tile_start * spec.row_bytes : 0));
        arg.rows = spec.rows + (spec.dim >= 0 ? run.sizes[spec.dim] : 0);
        arg.cols = spec.cols;
      }
      args_.push_back(arg);
    }
    Plan plan;
    if (launch.kernel->plan != nullptr) plan = launch.kernel->plan(&args_[first_arg], pool_.size());
    for (int pass = 0; pass < plan.num_passes; ++pass) passes_.push_back({launch.kernel, first_arg, pass});
    shared_bytes = std::max(shared_bytes, plan.shared_bytes);
  }
  if (shared_bytes > shared_bytes_) {
    std::free(shared_);
    shared_ = nullptr;
    shared_bytes_ = 0;
    shared_ = allocate(shared_bytes);
    shared_bytes_ = shared_bytes;
  }
}

void Replay::take_part(int thread, int64_t index) noexcept {
  const Pass& pass = passes_[index];
  Worker& worker = workers_[thread];
  worker.pass_ = pass.index;
  worker.pass_index_ = index;
  worker.parts_[index & 1] = index;
  worker.shared_ = shared_;
  pass.kernel->run(&args_[pass.first_arg], worker);
}

bool Replay::complete(int64_t) noexcept {
  for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
  return error_.load(std::memory_order_relaxed) == nullptr;
}

}  // namespace pelton
