// The inner loops of attention: scores of key tiles, softmax weights, and sums of weighted values.
//
// A row is a query of one head. The order of operations of a row never depends on the rows beside it: a score is one
// chain of multiply-adds over the head, a weighted sum one chain over the positions, both ascending.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/kv_cache.h"
#include "vec/vec.h"

namespace pelton {

// Keys are cut into partitions of this many positions, counted from position 0. A partition has its own maximum; a
// row's partitions are merged in ascending order. A prefill of 512 tokens (SmolLM2's shapes, one thread) takes 75 ms
// with 128 positions, 68 with 256, 66 with 512; decoding is the same with 128 and 256, and 256 shares out a context
// more evenly than 512.
inline constexpr int kPartition = 256;
inline constexpr int kPartitionTiles = kPartition / kTile;
// Rows of scores lie this far apart: 64 bytes past a power of two, so that they do not share cache sets.
inline constexpr int kScoreStride = kPartition + 16;

inline constexpr int kTileVectors = kTile / kLanes;

// A step takes kStep elements of the head (keys), or kValueStep positions (values): all of them, be they seen or not.
// kStep is also how many lie side by side in the cache. `Operand` is the format of the copied queries and of the
// weights.
//
// Rows and vectors are summed as many at a time as the registers of the level hold. 30 rows, 256 keys of 64: with
// AVX2 6 x 2 take 19.6 us (float32) and 22.1 (bfloat16), 4 x 2 22.7 and 24.1, 3 x 4 21.2 and 28.5.
struct Float32Cache {
  using Element = float;
  using Operand = float;
  using Vector = F32;
  static constexpr int kStep = 1;
  static constexpr int kValueStep = 1;
  static constexpr int kExpDegree = 6;
  static constexpr int kMaxRows = 6;
  static constexpr int max_vectors(int) { return 4; }
  static Operand widen(Element x) { return x; }
  static Vector load_vector(const Element* p) { return load(p); }
  static Vector load_vector(const Element* p, Mask mask) { return load(p, mask); }
  static Vector broadcast_step(const Operand* p) { return broadcast(*p); }
  static F32 multiply_add(F32 sum, Vector a, Vector b) { return fma(a, b, sum); }
  static F32 element(Vector x, int) { return x; }
  static void store_weights(Operand* p, F32 x) { store(p, x); }
};

// A step takes a pair of them. Keys and values are widened once for many rows; queries and weights lie there widened.
// With AVX-512 12 x 2 (4 vectors for few rows) take 12.0 us for 30 rows, 8 x 2 12.6, and `dot` with 6 x 4 18.3 on an
// Intel Xeon with AMX.
struct BFloat16Cache {
  using Element = uint16_t;
  using Operand = float;
  struct Vector {
    F32 low, high;
  };
  static constexpr int kStep = 2;
  static constexpr int kValueStep = 2;
  static constexpr int kExpDegree = 4;  // weights are rounded
  static constexpr int kMaxRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 2;
  static constexpr int max_vectors(int rows) { return kLanes == 16 && rows <= 5 ? 4 : 2; }
  static Operand widen(Element x) {
    const uint32_t word = uint32_t(x) << 16;
    float wide;
    std::memcpy(&wide, &word, sizeof(wide));
    return wide;
  }
  static Vector load_vector(const Element* p) { return split(load_pairs(p)); }
  static Vector load_vector(const Element* p, Mask mask) { return split(load_pairs(p, mask)); }
  static Vector broadcast_step(const Operand* p) { return {broadcast(p[0]), broadcast(p[1])}; }
  static F32 multiply_add(F32 sum, Vector a, Vector b) { return fma(a.low, b.low, fma(a.high, b.high, sum)); }
  static F32 element(Vector x, int i) { return i == 0 ? x.low : x.high; }
  static void store_weights(Operand* p, F32 x) { store(p, round_to_bf16(x)); }

 private:
  static Vector split(Pairs x) { return {low_elements(x), high_elements(x)}; }
};

// The same bits by the level's instruction for pairs, where it has one (kHasDot).
struct BFloat16DotCache {
  using Element = uint16_t;
  using Operand = uint16_t;
  using Vector = Pairs;
  static constexpr int kStep = 2;
  static constexpr int kValueStep = 2;
  static constexpr int kExpDegree = 4;
  static constexpr int kMaxRows = kLanes == 4 ? 2 : 6;
  static constexpr int max_vectors(int) { return kLanes == 16 ? 4 : 2; }
  static Operand widen(Element x) { return x; }
  static Vector load_vector(const Element* p) { return load_pairs(p); }
  static Vector load_vector(const Element* p, Mask mask) { return load_pairs(p, mask); }
  static Vector broadcast_step(const Operand* p) { return broadcast_pair(p); }
  static F32 multiply_add(F32 sum, Vector a, Vector b) { return dot(sum, a, b); }
  static F32 element(Vector x, int i) { return i == 0 ? low_elements(x) : high_elements(x); }
  static void store_weights(Operand* p, F32 x) { store_bf16(p, x); }
};

// What the rows of a block see of a partition: the positions [low, high), which only move up from row to row.
struct Sight {
  int group;  // rows of a position
  int first_low;
  int first_high;

  Sight after(int num_rows) const { return {group, first_low + num_rows / group, first_high + num_rows / group}; }
  int low(int row) const { return std::max(first_low + row / group, 0); }
  int high(int row) const { return std::min(first_high + row / group, kPartition); }
};

// Calls f(std::integral_constant<int, n>) for 1 <= n <= kMax.
template <int kMax, class F>
void with_constant(int n, F&& f) {
  if constexpr (kMax > 1) {
    if (n < kMax) return with_constant<kMax - 1>(n, f);
  }
  f(std::integral_constant<int, kMax>());
}

// Rows of a group, of those that are summed at a time: groups are nearly equal.
template <class Cache>
int group_rows(int num_rows) {
  const int num_groups = (num_rows + Cache::kMaxRows - 1) / Cache::kMaxRows;
  return (num_rows + num_groups - 1) / num_groups;
}

// Scores of kRows queries, `head_size` apart, and kTiles tiles of keys -> scores, rows kScoreStride apart. Meanwhile
// fetches the tiles `ahead`, if kAhead, step by step.
template <class Cache, int kRows, int kTiles, bool kAhead>
void score_block(const typename Cache::Operand* queries, int64_t head_size, const typename Cache::Element* const* keys,
                 const typename Cache::Element* const* ahead, float* scores) {
  constexpr int kVectors = kTiles * kTileVectors;
  constexpr int kStep = Cache::kStep;
  F32 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) sums[row][i] = zero();
  }
#pragma GCC unroll 1
  for (int64_t at = 0; at < head_size; at += kStep) {
    typename Cache::Vector key[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      key[i] = Cache::load_vector(keys[i / kTileVectors] + at * kTile + i % kTileVectors * kLanes * kStep);
    }
    if constexpr (kAhead) {
#pragma GCC unroll 16
      for (int i = 0; i < kTiles; ++i) prefetch(ahead[i] + at * kTile);
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto query = Cache::broadcast_step(queries + row * head_size + at);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sums[row][i] = Cache::multiply_add(sums[row][i], query, key[i]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store(scores + row * kScoreStride + i * kLanes, sums[row][i]);
  }
}

// Scores of all rows and the tiles [first, last) of a partition, as far as rows see them. Where `ahead` is given, these
// tiles are fetched meanwhile, one for each tile.
template <class Cache>
void score_tiles(const typename Cache::Operand* queries, int num_rows, int64_t head_size,
                 const typename Cache::Element* const* keys, const typename Cache::Element* const* ahead, int first,
                 int last, const Sight& sight, float* scores) {
  const int group = group_rows<Cache>(num_rows);
  with_constant<Cache::kMaxRows>(group, [&](auto group_constant) {
    constexpr int kMaxTiles = std::max(1, Cache::max_vectors(decltype(group_constant)::value) / kTileVectors);
    for (int tile = first; tile < last; tile += kMaxTiles) {
      for (int row = 0, rows = 0; row < num_rows; row += rows) {
        rows = std::min(num_rows - row, group);
        const bool is_fetching = ahead != nullptr && row == 0;
        int end = std::min(tile + kMaxTiles, last);
        if (!is_fetching) end = std::min(end, (sight.high(row + rows - 1) + kTile - 1) / kTile);
        if (tile >= end || sight.low(row) >= end * kTile) continue;
        const auto* q = queries + row * head_size;
        float* target = scores + row * kScoreStride + tile * kTile;
        with_constant<decltype(group_constant)::value>(rows, [&](auto row_constant) {
          with_constant<kMaxTiles>(end - tile, [&](auto constant) {
            constexpr int kRows = decltype(row_constant)::value, kTiles = decltype(constant)::value;
            if (is_fetching) {
              score_block<Cache, kRows, kTiles, true>(q, head_size, keys + tile, ahead + tile - first, target);
            } else {
              score_block<Cache, kRows, kTiles, false>(q, head_size, keys + tile, nullptr, target);
            }
          });
        });
      }
    }
  });
}

// Adds weights * values of the steps [first, last) of a partition to the sums: kRows rows, kVectors vectors from
// `column` on, of the last of which only the lanes of `mask` exist if kMasked. Meanwhile fetches the tiles `ahead`, if
// kAhead, one for each tile of values.
template <class Cache, int kRows, int kVectors, bool kMasked, bool kAhead>
void add_values_block(const typename Cache::Operand* weights, const typename Cache::Element* const* values,
                      const typename Cache::Element* const* ahead, int first, int last, int64_t head_size,
                      int64_t column, Mask mask, float* sums, int64_t stride) {
  constexpr int kStep = Cache::kStep;
  constexpr int kWeightStride = kScoreStride;
  constexpr int kTileSteps = kTile / kStep;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) sum[row][i] = load(sums + row * stride + column + i * kLanes);
  }
  for (int step = first; step < last;) {
    const int tile = step / kTileSteps;
    const int64_t offset = (step - tile * kTileSteps) * head_size * kStep + column * kStep;
    const auto* value = values[tile] + offset;
    const auto* fetched = kAhead ? *ahead++ + offset : nullptr;
    const auto* weight = weights + step * kStep;
    const auto* end = weights + std::min(last, (tile + 1) * kTileSteps) * kStep;
    step = (tile + 1) * kTileSteps;
#pragma GCC unroll 1
    for (; weight < end; weight += kStep, value += head_size * kStep) {
      typename Cache::Vector v[kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kMasked) {
          v[i] = Cache::load_vector(value + i * kLanes * kStep, mask);
        } else {
          v[i] = Cache::load_vector(value + i * kLanes * kStep);
        }
      }
      if constexpr (kAhead) {
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; i += kTileVectors) prefetch(fetched + i * kLanes * kStep);
        fetched += head_size * kStep;
      }
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const auto w = Cache::broadcast_step(weight + row * kWeightStride);
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) sum[row][i] = Cache::multiply_add(sum[row][i], w, v[i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store(sums + row * stride + column + i * kLanes, sum[row][i]);
  }
}

// The same for all rows, as far as they see the steps, and the whole head; `ahead` may be null.
template <class Cache>
void add_values(const typename Cache::Operand* weights, int num_rows, const typename Cache::Element* const* values,
                const typename Cache::Element* const* ahead, int first, int last, const Sight& sight, int64_t head_size,
                float* sums, int64_t stride) {
  constexpr int kStep = Cache::kValueStep;
  const int64_t num_whole = head_size / kLanes;
  const int group = group_rows<Cache>(num_rows);
  for (int row = 0, rows = 0; row < num_rows; row += rows) {
    rows = std::min(num_rows - row, group);
    const bool is_fetching = ahead != nullptr && row == 0;
    int begin = first, end = last;
    if (!is_fetching) {
      begin = std::max(begin, sight.low(row) / kStep);
      end = std::min(end, (sight.high(row + rows - 1) + kStep - 1) / kStep);
    }
    if (begin >= end) continue;
    with_constant<Cache::kMaxRows>(rows, [&](auto row_constant) {
      constexpr int kRows = decltype(row_constant)::value, kMaxVectors = Cache::max_vectors(kRows);
      const auto* w = weights + row * kScoreStride;
      float* s = sums + row * stride;
      const auto add = [&](int64_t i, auto num, auto is_masked, Mask mask) {
        constexpr int kVectors = decltype(num)::value;
        constexpr bool kMasked = decltype(is_masked)::value;
        if (is_fetching) {
          add_values_block<Cache, kRows, kVectors, kMasked, true>(w, values, ahead, begin, end, head_size, i, mask, s,
                                                                  stride);
        } else {
          add_values_block<Cache, kRows, kVectors, kMasked, false>(w, values, nullptr, begin, end, head_size, i, mask,
                                                                   s, stride);
        }
      };
      for (int64_t i = 0, num = 0; i < num_whole; i += num) {
        num = std::min<int64_t>(num_whole - i, kMaxVectors);
        with_constant<kMaxVectors>(int(num),
                                   [&](auto constant) { add(i * kLanes, constant, std::false_type(), Mask()); });
      }
      if (num_whole * kLanes < head_size) {
        add(num_whole * kLanes, std::integral_constant<int, 1>(), std::true_type(),
            first_lanes(head_size - num_whole * kLanes));
      }
    });
  }
}

// The highest of a row's scores of the positions [low, high) of a partition, times `scale`. If cap > 0, all become
// cap * tanh(scale * score). Hidden scores in the same vectors become what is lowest in the end.
inline float prepare_scores(float* scores, int low, int high, float scale, float cap) {
  const int first = low / kLanes * kLanes, last = (high - 1) / kLanes * kLanes;  // the last vector
  if (cap > 0.0f) {
    for (int at = first; at <= last; at += kLanes) {
      store(scores + at, broadcast(cap) * tanh(load(scores + at) * broadcast(scale)));
    }
    scale = 1.0f;
  }
  const F32 factor = broadcast(scale), hidden = broadcast(scale < 0.0f ? __builtin_inff() : -__builtin_inff());
  if (low != first) store(scores + first, select(first_lanes(low - first), hidden, load(scores + first)));
  if (high != last + kLanes) store(scores + last, select(first_lanes(high - last), load(scores + last), hidden));
  F32 highest = load(scores + last) * factor;
  for (int at = first; at < last; at += kLanes) highest = max(highest, load(scores + at) * factor);
  return reduce_max(highest);
}

// Softmax weights of a row's prepared scores, times `scale` -> their sum. (Not by `fma`: the highest has weight 1.)
// Weights of hidden positions in [start, stop) are 0.
template <class Cache>
float soften(const float* scores, int low, int high, int start, int stop, float scale, float max_score,
             typename Cache::Operand* weights) {
  const F32 factor = broadcast(scale), shift = broadcast(max_score);
  F32 sum = zero();
  int at = start / kLanes * kLanes;
  for (; at + kLanes <= low; at += kLanes) Cache::store_weights(weights + at, zero());
  for (; at < high; at += kLanes) {
    const F32 weight = exp2<Cache::kExpDegree>(load(scores + at) * factor - shift);
    sum = sum + weight;
    Cache::store_weights(weights + at, weight);
  }
  for (; at < stop; at += kLanes) Cache::store_weights(weights + at, zero());
  return reduce_add(sum);
}

// Whether the values at the positions [first, last) of a partition have neither infinities nor NaN.
template <class Cache>
bool are_finite(const typename Cache::Element* const* values, int first, int last, int64_t head_size) {
  constexpr int kStep = Cache::kStep;
  F32 check = zero();
  for (int position = first; position < last; ++position) {
    const auto* row = values[position / kTile] + position % kTile / kStep * kStep * head_size;
    for (int64_t i = 0; i < head_size; i += kLanes) {
      const F32 x = Cache::element(Cache::load_vector(row + i * kStep, first_lanes(head_size - i)), position % kStep);
      check = check + (x - x);
    }
  }
  return !any(is_nan(check));
}

}  // namespace pelton
