// Rows with one number per token of the vocabulary: their vectors, sums, and highest number.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "vec/vec.h"

namespace pelton {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Instead of a token id: the row has a NaN or plus infinity, or nothing but minus infinity.
inline constexpr int32_t kInvalidLogits = -1;
inline constexpr int32_t kNoCandidate = -2;

// Calls work(id, scores, lanes) for the vectors of row[first, last), in order; `id` is that of lane 0. Lanes past the
// end are minus infinity, and not in `lanes`.
template <class F>
inline void for_vectors(const float* row, int64_t first, int64_t last, F&& work) {
  int64_t id = first;
  for (; id + kLanes <= last; id += kLanes) work(id, load(row + id), first_lanes(kLanes));
  if (id < last) {
    const Mask lanes = first_lanes(last - id);
    work(id, select(lanes, load(row + id, lanes), broadcast(-kInfinity)), lanes);
  }
}

// Sums in float64, one for each lane.
class LaneSums {
 public:
  void add(F32 x) {
    FloatAll narrow;
    std::memcpy(&narrow, &x, sizeof(narrow));
    const DoubleAll wide = __builtin_convertvector(narrow, DoubleAll);
    DoubleHalf halves[2];
    std::memcpy(halves, &wide, sizeof(halves));
    low_ += halves[0];
    high_ += halves[1];
  }
  double total() const {
    const DoubleHalf both = low_ + high_;
    double sum = 0.0;
    for (int i = 0; i < kLanes / 2; ++i) sum += both[i];
    return sum;
  }

 private:
  typedef float FloatAll __attribute__((vector_size(4 * kLanes)));
  typedef double DoubleAll __attribute__((vector_size(8 * kLanes)));
  typedef double DoubleHalf __attribute__((vector_size(4 * kLanes)));  // a whole register: two stay in registers
  DoubleHalf low_ = {}, high_ = {};
};

// The highest of a row's numbers; NaN if there is one.
inline float highest_of(const float* row, int64_t size) {
  F32 highest = broadcast(-kInfinity);
  Mask nans = first_lanes(0);
  for_vectors(row, 0, size, [&](int64_t, F32 x, Mask) {
    highest = max(x, highest);
    nans = nans | is_nan(x);
  });
  return any(nans) ? kNaN : reduce_max(highest);
}

// A thread's memory, handed out piece by piece.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(int64_t num) {
    T* piece = reinterpret_cast<T*>(memory_);
    memory_ += bytes<T>(num);
    return piece;
  }
  // What a piece takes: whole cache lines.
  template <class T>
  static size_t bytes(int64_t num) {
    return (size_t(num) * sizeof(T) + 63) / 64 * 64;
  }

 private:
  std::byte* memory_;
};

}  // namespace pelton
