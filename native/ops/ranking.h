// The order of numbers by size, and what is found by it without sorting a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "ops/vocabulary.h"

namespace pelton {

// Numbers that are not NaN, as whole numbers in the same order; -0 counts as 0.
inline uint32_t order_of(float number) {
  const float positive_zero = number + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &positive_zero, 4);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}
inline float number_of(uint32_t order) {
  const uint32_t bits = order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu);
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

// A number and its id in one: the larger, the higher the number, and among equals the lower the id.
inline uint64_t rank_key(float number, int64_t id) {
  return uint64_t{order_of(number)} << 32 | uint32_t(~uint32_t(id));
}
inline float number_of_key(uint64_t key) { return number_of(uint32_t(key >> 32)); }
inline int32_t id_of_key(uint64_t key) { return int32_t(~uint32_t(key)); }

// How many keys `select_largest` needs memory for. Others are collected besides the k largest so far until there is no
// room, so that the work on each is constant on average, in whatever order the numbers come.
inline int64_t num_keys(int64_t size, int64_t k) { return std::min(size, 2 * std::max<int64_t>(k, 64)); }

// The rank keys of the k largest numbers of a row without NaN: keys[0, k), the least of them last, the others in any
// order. 1 <= k <= size.
inline void select_largest(const float* row, int64_t size, int64_t k, uint64_t* keys) {
  const int64_t capacity = num_keys(size, k);
  int64_t count = capacity;
  float kth = 0.0f;
  const auto drop_others = [&] {
    std::nth_element(keys, keys + (k - 1), keys + count, std::greater<uint64_t>());
    kth = number_of_key(keys[k - 1]);
    count = k;
  };
  for (int64_t id = 0; id < capacity; ++id) keys[id] = rank_key(row[id], id);
  drop_others();
  for_vectors(row, capacity, size, [&](int64_t id, F32 x, Mask) {
    const Mask higher = broadcast(kth) < x;
    if (!any(higher)) return;
    if (count + kLanes > capacity) drop_others();
    for (uint32_t rest = bits(higher); rest != 0; rest &= rest - 1) {
      const int64_t found = id + __builtin_ctz(rest);
      keys[count++] = rank_key(row[found], found);
    }
  });
  drop_others();
}

// Where a number lies: from `low` on, and below `high`, both by order.
struct Range {
  uint32_t low;
  uint32_t high;
  int64_t count;       // of the numbers in it
  double above = 0.0;  // what the numbers from `high` on add up to

  bool is_one_number() const { return high - low == 1; }
};

// Looks for the highest number such that what it and all larger ones add up to reaches `target`; value_of(numbers) says
// what each adds. Those from range.low on must reach it. Narrows the range, to a quarter in each pass, until it has
// `few` numbers or only equal ones.
template <class ValueOf>
void narrow(const float* numbers, int64_t size, double target, int64_t few, Range& range, ValueOf&& value_of) {
  constexpr int kParts = 4;
  // Vectors whose values are added in float32, which is as exact as the values are.
  constexpr int64_t kBlock = 16 * kLanes;
  while (range.count > few && !range.is_one_number()) {
    uint32_t starts[kParts + 1];
    F32 bounds[kParts + 1];
    for (int part = 0; part <= kParts; ++part) {
      starts[part] = range.low + uint32_t(uint64_t{range.high - range.low} * part / kParts);
      bounds[part] = broadcast(number_of(starts[part]));
    }
    LaneSums sums[kParts];
    int64_t counts[kParts + 1] = {range.count};
    for (int64_t first = 0; first < size; first += kBlock) {
      F32 block[kParts] = {zero(), zero(), zero(), zero()};
      for_vectors(numbers, first, std::min(first + kBlock, size), [&](int64_t, F32 x, Mask) {
        const Mask is_below = x < bounds[kParts];
        const F32 values = value_of(x);
        for (int part = 1; part < kParts; ++part) {
          const Mask is_in = is_below & (bounds[part] <= x);
          block[part] = select(is_in, block[part] + values, block[part]);
          counts[part] += count(is_in);
        }
      });
      for (int part = 1; part < kParts; ++part) sums[part].add(block[part]);
    }
    int part = kParts - 1;
    while (part > 0 && range.above + sums[part].total() < target) --part;
    range.low = starts[part];
    range.count = counts[part] - counts[part + 1];
    if (part + 1 < kParts) {
      range.high = starts[part + 1];
      range.above += sums[part + 1].total();
    }
  }
}

}  // namespace pelton
