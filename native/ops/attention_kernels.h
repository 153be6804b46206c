// The inner loops of attention: scores of key tiles, softmax weights, and sums of weighted values.
//
// A row is a query of one head. The order of operations of a row never depends on the rows beside it: a score is one
// chain of multiply-adds over the head, a weighted sum one chain over the positions, both ascending.
#pragma once

#include <algorithm>
#include <cstdint>
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
// Rows and vectors that are summed at a time, as many as the registers of the level hold.
inline constexpr int kMaxRows = kLanes == 16 ? 6 : kLanes == 8 ? 4 : 2;
inline constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;
inline constexpr int kMaxTiles = std::max(1, kMaxVectors / kTileVectors);

// A step takes one element of the head (keys) or one position (values).
struct Float32Cache {
  using Element = float;
  using Vector = F32;
  static constexpr int kStep = 1;
  static Vector load_vector(const Element* p) { return load(p); }
  static Vector load_vector(const Element* p, Mask mask) { return load(p, mask); }
  static Vector broadcast_step(const Element* p) { return broadcast(*p); }
  static F32 multiply_add(F32 sum, Vector a, Vector b) { return fma(a, b, sum); }
  static F32 element(Vector x, int) { return x; }
};

// A step takes a pair of them.
struct BFloat16Cache {
  using Element = uint16_t;
  using Vector = Pairs;
  static constexpr int kStep = 2;
  static Vector load_vector(const Element* p) { return load_pairs(p); }
  static Vector load_vector(const Element* p, Mask mask) { return load_pairs(p, mask); }
  static Vector broadcast_step(const Element* p) { return broadcast_pair(p); }
  static F32 multiply_add(F32 sum, Vector a, Vector b) { return dot(sum, a, b); }
  static F32 element(Vector x, int i) { return i == 0 ? low_elements(x) : high_elements(x); }
};

// Calls f(std::integral_constant<int, n>) for 1 <= n <= kMax.
template <int kMax, class F>
void with_constant(int n, F&& f) {
  if constexpr (kMax > 1) {
    if (n < kMax) return with_constant<kMax - 1>(n, f);
  }
  f(std::integral_constant<int, kMax>());
}

// Scores of kRows queries, `head_size` apart, and kTiles tiles of keys -> scores, rows kScoreStride apart. Meanwhile
// fetches the tiles `ahead`, if kAhead, step by step.
template <class Cache, int kRows, int kTiles, bool kAhead>
void score_block(const typename Cache::Element* queries, int64_t head_size, const typename Cache::Element* const* keys,
                 const typename Cache::Element* const* ahead, float scale, float* scores) {
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
    for (int i = 0; i < kVectors; ++i) store(scores + row * kScoreStride + i * kLanes, sums[row][i] * broadcast(scale));
  }
}

// Scores of all rows and some tiles. Where `ahead` is given, these tiles are fetched meanwhile.
template <class Cache>
void score_tiles(const typename Cache::Element* queries, int num_rows, int64_t head_size,
                 const typename Cache::Element* const* keys, const typename Cache::Element* const* ahead, int num_tiles,
                 float scale, float* scores) {
  for (int tile = 0, num = 0; tile < num_tiles; tile += num) {
    num = std::min(num_tiles - tile, kMaxTiles);
    for (int row = 0, rows = 0; row < num_rows; row += rows) {
      rows = std::min(num_rows - row, kMaxRows);
      with_constant<kMaxRows>(rows, [&](auto row_constant) {
        with_constant<kMaxTiles>(num, [&](auto constant) {
          constexpr int kRows = decltype(row_constant)::value, kTiles = decltype(constant)::value;
          const auto* q = queries + row * head_size;
          float* target = scores + row * kScoreStride + tile * kTile;
          if (ahead != nullptr && row == 0) {
            score_block<Cache, kRows, kTiles, true>(q, head_size, keys + tile, ahead + tile, scale, target);
          } else {
            score_block<Cache, kRows, kTiles, false>(q, head_size, keys + tile, nullptr, scale, target);
          }
        });
      });
    }
  }
}

// Adds weights * values of the steps [first, last) of a partition to the sums: kRows rows, kVectors vectors from
// `column` on, of the last of which only the lanes of `mask` exist if kMasked. Meanwhile fetches the tiles `ahead`, if
// kAhead, one for each tile of values.
template <class Cache, int kRows, int kVectors, bool kMasked, bool kAhead>
void add_values_block(const typename Cache::Element* weights, const typename Cache::Element* const* values,
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

// The same for all rows and the whole head; `ahead` may be null.
template <class Cache>
void add_values(const typename Cache::Element* weights, int num_rows, const typename Cache::Element* const* values,
                const typename Cache::Element* const* ahead, int first, int last, int64_t head_size, float* sums,
                int64_t stride) {
  if (first >= last) return;
  const int64_t num_whole = head_size / kLanes;
  for (int row = 0, rows = 0; row < num_rows; row += rows) {
    rows = std::min(num_rows - row, kMaxRows);
    with_constant<kMaxRows>(rows, [&](auto row_constant) {
      constexpr int kRows = decltype(row_constant)::value;
      const auto* w = weights + row * kScoreStride;
      float* s = sums + row * stride;
      const auto add = [&](int64_t i, auto num, auto is_masked, Mask mask) {
        constexpr int kVectors = decltype(num)::value;
        constexpr bool kMasked = decltype(is_masked)::value;
        if (ahead != nullptr && row == 0) {
          add_values_block<Cache, kRows, kVectors, kMasked, true>(w, values, ahead, first, last, head_size, i, mask, s,
                                                                  stride);
        } else {
          add_values_block<Cache, kRows, kVectors, kMasked, false>(w, values, nullptr, first, last, head_size, i, mask,
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

// The highest of a row's scores of the positions [low, high) of a partition, capped if cap > 0. Hidden scores in the
// same vectors become minus infinity.
inline float prepare_scores(float* scores, int low, int high, float cap) {
  const int first = low / kLanes * kLanes, last = (high - 1) / kLanes * kLanes;  // the last vector
  if (cap > 0.0f) {
    for (int at = first; at <= last; at += kLanes) store(scores + at, broadcast(cap) * tanh(load(scores + at)));
  }
  const F32 hidden = broadcast(-__builtin_inff());
  store(scores + first, select(first_lanes(low - first), hidden, load(scores + first)));
  F32 highest = select(first_lanes(high - last), load(scores + last), hidden);
  store(scores + last, highest);
  for (int at = first; at < last; at += kLanes) highest = max(highest, load(scores + at));
  return reduce_max(highest);
}

// Softmax weights of a row's prepared scores -> their sum. Weights of hidden positions in [start, stop) are 0.
template <class Cache>
float soften(const float* scores, int low, int high, int start, int stop, float max_score,
             typename Cache::Element* weights) {
  const F32 shift = broadcast(max_score);
  F32 sum = zero();
  int at = start / kLanes * kLanes;
  for (; at + kLanes <= low; at += kLanes) store_as(weights + at, zero());
  for (; at < high; at += kLanes) {
    const F32 weight = exp(load(scores + at) - shift);
    sum = sum + weight;
    store_as(weights + at, weight);
  }
  for (; at < stop; at += kLanes) store_as(weights + at, zero());
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
