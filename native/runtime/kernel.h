// What a kernel is: the interface between the replayer of programs and the operators.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pelton {

// Of an array's elements; kInt8 and kInt4 are formats of packed weights only.
enum class DType : int32_t { kFloat32, kBFloat16, kInt32, kInt64, kUInt32, kUInt64, kInt8, kInt4 };

// One argument of a launch, as it is in this step: an array, a number, or nothing.
struct Arg {
  void* data = nullptr;  // of an array; null for an argument that is None
  int64_t rows = 0;      // the array's first dimension
  int64_t cols = 1;      // the product of the others
  int64_t integer = 0;   // an integer, or an index into a list of names
  double real = 0.0;
  DType dtype = DType::kFloat32;

  bool is_none() const { return data == nullptr; }
  bool is_bf16() const { return dtype == DType::kBFloat16; }

  // The array's elements, row after row without gaps.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t index) const {
    return static_cast<T*>(data) + index * cols;
  }
};

// One thread's part in a pass of a launch. The threads that come share out its items by claiming them; the pass is
// complete when all who came have returned. Who computes an item must not matter to its bits.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }  // of the threads that may come
  int pass() const { return pass_; }
  // Whether a thread was in the pass before this one.
  bool took_part(int thread) const;

  // Claims `num` items of this pass. -> the first of them; past the end when nothing is left.
  int64_t claim(int64_t num = 1);
  // Claims the next item of a thread's own range in this pass, or of another's. -> 0, 1, 2 ...
  int64_t claim_of(int owner);
  // Memory of this thread alone, 64-byte aligned, valid until the next call. Its content is undefined.
  std::byte* scratch(size_t num_bytes);
  // The launch's memory for all threads and passes, as large as its plan said. Its content is undefined at first.
  std::byte* shared() const { return shared_; }
  // Ends the step after this pass; the first message (a literal) becomes the error. What is written is void.
  void fail(const char* message);

 private:
  friend class Replay;
  int index_ = 0;
  int count_ = 1;
  int pass_ = 0;
  int64_t pass_index_ = 0;       // of all passes in the step
  int64_t parts_[2] = {-1, -1};  // the last pass of an even index, and of an odd one, that this thread was in
  class Replay* replay_ = nullptr;
  std::byte* shared_ = nullptr;
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

// Runs `work(first, last)` for this thread's share of `num_items`, claimed `chunk` at a time.
template <class F>
void for_claimed(Worker& worker, int64_t num_items, int64_t chunk, F&& work) {
  for (int64_t first = worker.claim(chunk); first < num_items; first = worker.claim(chunk)) {
    const int64_t last = first + chunk < num_items ? first + chunk : num_items;
    work(first, last);
  }
}

// Runs `work(first, last)` for all items, up to `chunk` at a time. Each thread begins with a range of its own, in
// order, so that it reads one run of memory; whoever is done helps others with what is left of theirs. Items that are
// rows are the same thread's in one launch after the other, as far as it goes: what lies in its core's caches stays
// there. Items
// that are one chunk are not shared out.
template <class F>
void for_own_first(Worker& worker, int64_t num_items, int64_t chunk, F&& work) {
  if (num_items <= chunk) {
    if (num_items > 0 && worker.claim_of(0) == 0) work(int64_t(0), num_items);
    return;
  }
  for (int i = 0; i < worker.count(); ++i) {
    const int owner = (worker.index() + i) % worker.count();
    const int64_t begin = num_items * owner / worker.count(), end = num_items * (owner + 1) / worker.count();
    for (int64_t first = begin + worker.claim_of(owner) * chunk; first < end;
         first = begin + worker.claim_of(owner) * chunk) {
      work(first, first + chunk < end ? first + chunk : end);
    }
  }
}

// What a launch needs beyond its arguments.
struct Plan {
  size_t shared_bytes = 0;  // of memory that the threads share during the launch
  int num_passes = 1;       // a pass begins when the one before it is complete
};

// An operator of one instruction-set level.
struct Kernel {
  const char* name;  // as in the operator table
  int num_args;      // inputs, weights and attributes, then outputs
  // One thread's part in a pass. It returns only when all items of the pass are claimed.
  void (*run)(const Arg* args, Worker& worker);
  Plan (*plan)(const Arg* args, int num_threads) = nullptr;  // null: one pass, no shared memory
};

}  // namespace pelton
