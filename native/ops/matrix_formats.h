// Products of rows with a panel by matrix instructions, where a level has them (AMX).
//
// All columns of a panel are computed. Instead of multiply_tile, a format has
//   set_shapes    before rows are multiplied, up to `num_rows` at a time
//   multiply_rows rows times a panel -> sums, rows kPanel apart; `half` is half_rows of what shapes were set for
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/formats.h"
#include "ops/matrix_sums.h"
#include "ops/panels.h"
#include "ops/quantize.h"
#include "vec/vec.h"

namespace pelton {

inline constexpr int64_t kSumsBytes = kPanel * 4;     // of a row of sums
inline constexpr int64_t kWeightsBytes = kBytesStep;  // from one row of a panel to the next
static_assert(kPanel * 4 == 3 * kRowBytes);

// Steps of 32 k, from 0 on. One row takes this way too, although vectors are as fast: their sums have other bits.
// Measured: a copy of x in order of use, other orders of panels, blocks along k and fetching a panel's next steps into
// the first-level cache all gain nothing.
struct BFloat16Matrices : MatrixFormat {
  using Element = uint16_t;
  using Many = BFloat16Matrices;
  static constexpr bool kUnpacks = false;
  static constexpr int kGroup = 0;
  static constexpr DType kDType = DType::kBFloat16;
  static constexpr int kLines = 16;
  static constexpr int64_t kStep = 32;
  static constexpr int64_t kStepBytes = kStep / 2 * kWeightsBytes;

  static int64_t num_steps(int64_t k) { return 3 * ((k + kStep - 1) / kStep); }

  static void set_shapes(MatrixShapes& shapes, int64_t num_rows) {
    shapes.set(num_rows > kHalfRows, half_rows(num_rows), 16);
  }

  template <int kPrefetches>
  static void multiply_rows(const Rows& rows, int64_t num_rows, int64_t half, const std::byte* panel, Ahead ahead,
                            float* sums) {
    if (num_rows > half) {
      multiply<true, kPrefetches>(rows, num_rows, half, panel, ahead, sums);
    } else {
      multiply<false, kPrefetches>(rows, num_rows, half, panel, ahead, sums);
    }
  }

 private:
  template <bool kHasTwoHalves, int kPrefetches>
  static void multiply(const Rows& rows, int64_t num_rows, int64_t half, const std::byte* panel, Ahead ahead,
                       float* sums) {
    MatrixSums<kHasTwoHalves, 3>::clear();
    const std::byte* x = rows.first;
    const std::byte* second = x + (num_rows - half) * rows.row_bytes;
    int64_t at = 0;
#pragma GCC unroll 1
    for (; at + kStep <= rows.k; at += kStep, x += 2 * kStep, second += 2 * kStep, panel += kStepBytes) {
      step<kHasTwoHalves, kPrefetches>(x, second, rows.row_bytes, panel, ahead);
    }
    if (at < rows.k) {  // what follows in memory, of x and of the panel, is not their own, and may be NaN
      alignas(64) uint16_t last[kRows][kStep] = {};
      alignas(64) std::byte weights[kStepBytes] = {};
      for (int64_t row = 0; row < num_rows; ++row) {
        std::memcpy(last[row], x + row * rows.row_bytes, static_cast<size_t>(2 * (rows.k - at)));
      }
      std::memcpy(weights, panel, static_cast<size_t>((rows.k - at + 1) / 2 * kWeightsBytes));
      step<kHasTwoHalves, kPrefetches>(reinterpret_cast<const std::byte*>(last[0]),
                                       reinterpret_cast<const std::byte*>(last[num_rows - half]), 2 * kStep, weights,
                                       ahead);
    }
    MatrixSums<kHasTwoHalves, 3>::store(sums, sums + (num_rows - half) * kPanel, kSumsBytes);
  }

  template <bool kHasTwoHalves, int kPrefetches>
  static void step(const std::byte* x, const std::byte* second, int64_t stride, const std::byte* panel, Ahead& ahead) {
    MatrixSums<kHasTwoHalves, 3>::add(
        x, second, stride, [&](int i) { return panel + i * kRowBytes; }, kWeightsBytes,
        [&](int) { ahead.fetch<kPrefetches>(); });
  }
};

// Sums of products of bytes, exact: for a group of up to 64 k, `dots` gets those of up to 16 rows.
template <int kPrefetches>
void multiply_group(const std::byte* x, int64_t stride, const std::byte* weights, Ahead& ahead, int32_t* dots) {
  clear_matrix<0>();
  clear_matrix<1>();
  clear_matrix<2>();
  load_matrix<6>(x, stride);
  load_matrix<3>(weights, kWeightsBytes);
  add_byte_products<0, 6, 3>();
  ahead.fetch<kPrefetches>();
  load_matrix<4>(weights + kRowBytes, kWeightsBytes);
  add_byte_products<1, 6, 4>();
  ahead.fetch<kPrefetches>();
  load_matrix<5>(weights + 2 * kRowBytes, kWeightsBytes);
  add_byte_products<2, 6, 5>();
  ahead.fetch<kPrefetches>();
  store_matrix<0>(dots, kSumsBytes);
  store_matrix<1>(dots + 16, kSumsBytes);
  store_matrix<2>(dots + 32, kSumsBytes);
}

// Groups of a format that is quantized, half by half of the rows. Format has
//   kGroupBytes of a panel
//   add         a group's dots -> `sums` of some rows, which are 0 before the first group
template <class Format, int kPrefetches>
void multiply_groups(const Rows& rows, int64_t num_rows, int64_t half, const std::byte* first_panel, Ahead ahead,
                     float* first_sums) {
  alignas(64) int32_t dots[Format::kHalfRows * kPanel];
  const QuantizedLayout layout(rows.k, Format::kGroup);
  const int64_t stride = rows.row_bytes;
  for (int64_t first = 0;; first = num_rows - half) {
    const std::byte *x = rows.first + first * stride, *scales = x + layout.scales_at, *panel = first_panel;
    float* sums = first_sums + first * kPanel;
    for (int64_t group = 0; group < layout.num_groups; ++group) {
      multiply_group<kPrefetches>(x, stride, panel, ahead, dots);
      if (group == 0) {
        Format::template add<true>(dots, scales, stride, panel, half, sums);
      } else {
        Format::template add<false>(dots, scales, stride, panel, half, sums);
      }
      x += Format::kGroup;
      scales += sizeof(GroupScale);
      panel += Format::kGroupBytes;
    }
    if (first + half == num_rows) return;
  }
}

// The arithmetic, and so the bits, of Int8Format.
struct Int8Matrices : MatrixFormat {
  static constexpr int kGroup = kInt8Group;
  static constexpr int kLines = 8;
  static constexpr int64_t kGroupBytes = kInt8Bytes;

  static int64_t num_steps(int64_t k) { return 6 * num_groups(k, kGroup); }  // for two halves

  static void set_shapes(MatrixShapes& shapes, int64_t num_rows) { shapes.set(false, half_rows(num_rows), kGroup / 4); }

  template <int kPrefetches>
  static void multiply_rows(const Rows& rows, int64_t num_rows, int64_t half, const std::byte* panel, Ahead ahead,
                            float* sums) {
    multiply_groups<Int8Matrices, kPrefetches>(rows, num_rows, half, panel, ahead, sums);
  }

  template <bool kIsFirst>
  static void add(const int32_t* dots, const std::byte* scales, int64_t stride, const std::byte* panel,
                  int64_t num_rows, float* sums) {
    F32 column_scales[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      column_scales[i] = load(reinterpret_cast<const float*>(panel + kInt8Values) + i * kLanes);
    }
#pragma GCC unroll 2
    for (int64_t row = 0; row < num_rows; ++row, dots += kPanel, sums += kPanel) {
      const auto& own = *reinterpret_cast<const GroupScale*>(scales + row * stride);
      const F32 scale = broadcast(own.scale);
      const I32 offset = broadcast_int(-128 * own.sum);
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        const F32 dot = to_float(load_words(dots + i * kLanes) + offset);
        const F32 sum = kIsFirst ? zero() : load(sums + i * kLanes);
        store(sums + i * kLanes, fma(dot * column_scales[i], scale, sum));
      }
    }
  }
};

// The arithmetic, and so the bits, of UnpackedInt4, over the same panels.
struct UnpackedInt4Matrices : MatrixFormat {
  static constexpr int kGroup = kInt4Group;
  static constexpr int kLines = 3;
  static constexpr int64_t kGroupBytes = UnpackedInt4::kBytes;

  static int64_t num_steps(int64_t k) { return 6 * num_groups(k, kGroup); }  // for two halves
  static int64_t panel_bytes(int64_t k) { return UnpackedInt4::panel_bytes(k); }
  static void unpack(const std::byte* panel, int64_t k, std::byte* to) { UnpackedInt4::unpack(panel, k, to); }

  static void set_shapes(MatrixShapes& shapes, int64_t num_rows) { shapes.set(false, half_rows(num_rows), kGroup / 4); }

  template <int kPrefetches>
  static void multiply_rows(const Rows& rows, int64_t num_rows, int64_t half, const std::byte* panel, Ahead ahead,
                            float* sums) {
    multiply_groups<UnpackedInt4Matrices, kPrefetches>(rows, num_rows, half, panel, ahead, sums);
  }

  template <bool kIsFirst>
  static void add(const int32_t* dots, const std::byte* x_scales, int64_t stride, const std::byte* panel,
                  int64_t num_rows, float* sums) {
    const auto* wide = reinterpret_cast<const float*>(panel + UnpackedInt4::kValues);
    F32 scales[3], minimums[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      scales[i] = load(wide + i * kLanes);
      minimums[i] = load(wide + kPanel + i * kLanes);
    }
#pragma GCC unroll 2
    for (int64_t row = 0; row < num_rows; ++row, dots += kPanel, sums += kPanel) {
      const auto& own = *reinterpret_cast<const GroupScale*>(x_scales + row * stride);
      const F32 scale = broadcast(own.scale), sum = broadcast(static_cast<float>(own.sum));
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        const F32 own_part = fma(scales[i], to_float(load_words(dots + i * kLanes)), minimums[i] * sum);
        store(sums + i * kLanes, fma(scale, own_part, kIsFirst ? zero() : load(sums + i * kLanes)));
      }
    }
  }
};

// Few rows are faster by vectors, with the same bits. Measured with the layers of a model, K = 576 and 1536, one
// thread: 17 rows of int8 take 12.1 ms by vectors and 9.4 by matrices, 64 rows 30.3 and 19.4; 20 rows of int4 take 13.1
// and 13.7, 24 rows 17.4 and 15.2, 64 rows 43.6 and 32.3. Up to 16 rows of int8 are one half, and no faster.
struct Int8WithMatrices : Int8Format {
  using Many = Int8Matrices;
  static constexpr int64_t kManyRows = 17;
};

struct Int4WithMatrices : Int4Format {
  using Many = UnpackedInt4Matrices;
};

}  // namespace pelton
