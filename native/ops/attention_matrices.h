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

// As many rows as there are registers for: one half, or two, the second from `second` on. Of the tiles, those that any
// of the rows sees, or all of them while others are fetched.
struct MatrixRows {
  int first;
  int second;
  int first_tile;
  int last_tile;
  bool is_fetching;
};

// Calls f(MatrixRows, whether there are two halves as a constant) for all rows, with their shapes set.
template <class F>
void for_matrix_rows(int num_rows, int depth, int first_tile, int last_tile, const Sight& sight, bool is_fetching,
                     F&& f) {
  MatrixShapes shapes;
  for (int row = 0; row < num_rows; row += MatrixFormat::kRows) {
    const int num = std::min(num_rows - row, int(MatrixFormat::kRows));
    const int half = int(MatrixFormat::half_rows(num));
    MatrixRows rows = {row, row + num - half, first_tile, last_tile, is_fetching && row == 0};
    if (!rows.is_fetching) {
      rows.first_tile = std::max(first_tile, sight.low(row) / kTile);
      rows.last_tile = std::min(last_tile, (sight.high(row + num - 1) + kTile - 1) / kTile);
    }
    shapes.set(num > half, half, depth);
    if (num > half) {
      f(rows, std::true_type());
    } else {
      f(rows, std::false_type());
    }
  }
}

template <>
inline void score_tiles<BFloat16MatrixCache>(const uint16_t* queries, int num_rows, int64_t head_size,
                                             const uint16_t* const* keys, const uint16_t* const* ahead, int first,
                                             int last, const Sight& sight, float* scores) {
  constexpr int64_t kStep = BFloat16MatrixCache::kHeadStep;
  const auto score = [&](const MatrixRows& rows, auto has_two_halves) {
    const auto *x = queries + rows.first * head_size, *second = queries + rows.second * head_size;
    for (int tile = rows.first_tile, num = 0; tile < rows.last_tile; tile += num) {
      num = std::min(3, rows.last_tile - tile);
      with_constant<3>(num, [&](auto num_columns) {
        using OfTiles = MatrixSums<has_two_halves, num_columns>;
        OfTiles::clear();
        for (int64_t at = 0; at < head_size; at += kStep) {
          OfTiles::add(
              bytes(x + at), bytes(second + at), head_size * 2, [&](int i) { return keys[tile + i] + at * kTile; },
              kRowBytes,
              [&](int i) {
                if (rows.is_fetching) prefetch_lines<kStep / 2>(ahead[tile - first + i] + at * kTile);
              });
        }
        float* target = scores + tile * kTile;
        OfTiles::store(target + rows.first * kScoreStride, target + rows.second * kScoreStride, kScoreStride * 4);
      });
    }
  };
  for_matrix_rows(num_rows, kStep / 2, first, last, sight, ahead != nullptr, score);
}

template <>
inline void add_values<BFloat16MatrixCache>(const uint16_t* weights, int num_rows, const uint16_t* const* values,
                                            const uint16_t* const* ahead, int first, int last, const Sight& sight,
                                            int64_t head_size, float* sums, int64_t stride) {
  const int num_columns = int(head_size / 16), num_groups = (num_columns + 2) / 3;
  const auto add = [&](const MatrixRows& rows, auto has_two_halves) {
    const auto *x = weights + rows.first * kScoreStride, *second = weights + rows.second * kScoreStride;
    for (int column = 0, num = 0; column < num_columns; column += num) {
      num = std::min((num_columns + num_groups - 1) / num_groups, num_columns - column);
      with_constant<3>(num, [&](auto num_constant) {
        using OfColumns = MatrixSums<has_two_halves, num_constant>;
        float* target = sums + rows.first * stride + column * 16;
        float* second_target = sums + rows.second * stride + column * 16;
        OfColumns::load(target, second_target, stride * 4);
        for (int tile = rows.first_tile; tile < rows.last_tile; ++tile) {
          OfColumns::add(
              bytes(x + tile * kTile), bytes(second + tile * kTile), kScoreStride * 2,
              [&](int i) { return values[tile] + (column + i) * 32; }, head_size * 4,
              [&](int i) {
                if (rows.is_fetching) prefetch_lines<kTile / 2>(ahead[tile - first] + (column + i) * 16 * kTile);
              });
        }
        OfColumns::store(target, second_target, stride * 4);
      });
    }
  };
  for_matrix_rows(num_rows, kTile / 2, first, last, sight, ahead != nullptr, add);
}

}  // namespace pelton
