// The inner loops of attention over bfloat16 by matrix instructions (AMX).
//
// A step takes 32 elements of the head, or a whole tile of positions. A row's bits do not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/attention_kernels.h"
#include "ops/formats.h"
#include "ops/kv_cache.h"
#include "ops/matrix_sums.h"
#include "vec/vec.h"

namespace pelton {

struct BFloat16MatrixCache : BFloat16DotCache {
  static constexpr int kHeadStep = 32;
  static constexpr int kValueStep = kTile;

  // Other sizes of heads are left to vectors.
  static bool takes(int64_t head_size) { return head_size % kHeadStep == 0; }
};

inline const std::byte* bytes(const uint16_t* p) { return reinterpret_cast<const std::byte*>(p); }

template <int64_t kLines>
void prefetch_lines(const uint16_t* p) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLines; ++i) prefetch(p + i * 32);
}

// Calls f(first row, number of rows, rows of a half, whether there are two as a constant) for as many rows at a time as
// there are registers for, with their shapes set.
template <class F>
void for_matrix_rows(int num_rows, int depth, F&& f) {
  MatrixShapes shapes;
  for (int row = 0; row < num_rows; row += MatrixFormat::kRows) {
    const int rows = std::min(num_rows - row, int(MatrixFormat::kRows));
    const int half = int(MatrixFormat::half_rows(rows));
    shapes.set(rows > half, half, depth);
    if (rows > half) {
      f(row, rows, half, std::true_type());
    } else {
      f(row, rows, half, std::false_type());
    }
  }
}

template <>
inline void score_tiles<BFloat16MatrixCache>(const uint16_t* queries, int num_rows, int64_t head_size,
                                             const uint16_t* const* keys, const uint16_t* const* ahead, int first,
                                             int last, const Sight& sight, float* scores) {
  constexpr int64_t kStep = BFloat16MatrixCache::kHeadStep;
  for_matrix_rows(num_rows, kStep / 2, [&](int row, int rows, int half, auto has_two_halves) {
    const bool is_fetching = ahead != nullptr && row == 0;
    int tile = first, end = last;
    if (!is_fetching) {
      tile = std::max(tile, sight.low(row) / kTile);
      end = std::min(end, (sight.high(row + rows - 1) + kTile - 1) / kTile);
    }
    const auto* x = queries + row * head_size;
    const auto* second = x + (rows - half) * head_size;
    float* target = scores + row * kScoreStride;
    for (int num = 0; tile < end; tile += num) {
      num = std::min(3, end - tile);
      with_constant<3>(num, [&](auto num_columns) {
        using OfTiles = MatrixSums<has_two_halves, num_columns>;
        OfTiles::clear();
        for (int64_t at = 0; at < head_size; at += kStep) {
          OfTiles::add(
              bytes(x + at), bytes(second + at), head_size * 2, [&](int i) { return keys[tile + i] + at * kTile; },
              kRowBytes,
              [&](int i) {
                if (is_fetching) prefetch_lines<kStep / 2>(ahead[tile - first + i] + at * kTile);
              });
        }
        OfTiles::store(target + tile * kTile, target + (rows - half) * kScoreStride + tile * kTile, kScoreStride * 4);
      });
    }
  });
}

template <>
inline void add_values<BFloat16MatrixCache>(const uint16_t* weights, int num_rows, const uint16_t* const* values,
                                            const uint16_t* const* ahead, int first, int last, const Sight& sight,
                                            int64_t head_size, float* sums, int64_t stride) {
  const int num_columns = int(head_size / 16), num_groups = (num_columns + 2) / 3;
  for_matrix_rows(num_rows, kTile / 2, [&](int row, int rows, int half, auto has_two_halves) {
    const bool is_fetching = ahead != nullptr && row == 0;
    int begin = first, end = last;
    if (!is_fetching) {
      begin = std::max(begin, sight.low(row) / kTile);
      end = std::min(end, (sight.high(row + rows - 1) + kTile - 1) / kTile);
    }
    const auto* x = weights + row * kScoreStride;
    const auto* second = x + (rows - half) * kScoreStride;
    for (int column = 0, num = 0; column < num_columns; column += num) {
      num = std::min((num_columns + num_groups - 1) / num_groups, num_columns - column);
      with_constant<3>(num, [&](auto num_constant) {
        using OfColumns = MatrixSums<has_two_halves, num_constant>;
        float* target = sums + row * stride + column * 16;
        float* second_target = target + (rows - half) * stride;
        OfColumns::load(target, second_target, stride * 4);
        for (int tile = begin; tile < end; ++tile) {
          OfColumns::add(
              bytes(x + tile * kTile), bytes(second + tile * kTile), kScoreStride * 2,
              [&](int i) { return values[tile] + (column + i) * 32; }, head_size * 4,
              [&](int i) {
                if (is_fetching) prefetch_lines<kTile / 2>(ahead[tile - first] + (column + i) * 16 * kTile);
              });
        }
        OfColumns::store(target, second_target, stride * 4);
      });
    }
  });
}

}  // namespace pelton
