// Formats of weights, and the product of some rows with one panel in each of them: the place for tiles of another kind.
//
// A format has
//   Element       of the activations that it is multiplied with
//   kVectors      vectors of a panel that are computed at a time, for up to kRows rows, as many as registers hold
//   kGroup        consecutive k of a row that are quantized together; 0 if rows are used as they are
//   kDType        its number
//   Many          the tiles of kManyRows rows and more; or the format itself
//   kUnpacks      whether those take panels that Many::unpack made, of Many::panel_bytes
//   num_steps     how often a tile can fetch ahead
//   kLines        cache lines of a panel, at most, for each step
//   multiply_tile rows times kVectors vectors of a panel's columns, from `column` on -> sums, rows kPanel apart
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/panels.h"
#include "ops/quantize.h"
#include "vec/vec.h"

namespace pelton {

// Rows that are multiplied with a weight, as its format takes them: quantized or not.
struct Rows {
  const std::byte* first;
  int64_t row_bytes;
  int64_t k;

  Rows from(int64_t row) const { return {first + row * row_bytes, row_bytes, k}; }
};

// Cache lines to fetch ahead of use, while a tile is computed: some at each step, `stride` bytes further each time.
struct Ahead {
  const char* first;
  int64_t stride;

  template <int kPrefetches>
  void fetch() {
#pragma GCC unroll 16
    for (int i = 0; i < kPrefetches; ++i) prefetch(first + 64 * i);
    first += stride;
  }
};

// What formats have in common whose rows are multiplied by matrix instructions. The rows of a tile are one half of up
// to 16 rows, or two equal halves, the second of which ends at the last row: so the halves overlap where their number
// is odd, or one less than in the tiles beside.
struct MatrixFormat {
  static constexpr int64_t kHalfRows = 16;
  static constexpr int kRows = 2 * kHalfRows;
  static int64_t half_rows(int64_t num_rows) { return num_rows > kHalfRows ? (num_rows + 1) / 2 : num_rows; }
};

template <int kRows, int kVectors>
void clear(F32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) sums[row][i] = zero();
  }
}

// Rows of sums -> `to`, kPanel apart.
template <int kRows, int kVectors>
void store_sums(const F32 (&sums)[kRows][kVectors], float* to) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store(to + row * kPanel + i * kLanes, sums[row][i]);
  }
}

// Products of floating-point numbers, a step of Format::kStep elements along k at a time.
template <class Format, int kRows, int kVectors, int kPrefetches>
void multiply_floats(const Rows& rows, const std::byte* first_panel, int64_t column, Ahead ahead, float* sums) {
  using Element = typename Format::Element;
  constexpr int64_t kPanelStep = kPanel * Format::kStep;
  constexpr int kVectorStep = kLanes * Format::kStep;
  const auto* x = reinterpret_cast<const Element*>(rows.first);
  const auto* panel = reinterpret_cast<const Element*>(first_panel) + column * Format::kStep;
  const int64_t k = rows.k;
  F32 sum[kRows][kVectors];
  clear(sum);
  const auto step = [&](const Element* at_row, int64_t x_stride) {
    typename Format::Vector weights[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) weights[i] = Format::load_weights(panel + i * kVectorStep);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto x_row = Format::broadcast_x(at_row + row * x_stride);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sum[row][i] = Format::multiply_add(sum[row][i], x_row, weights[i]);
    }
    ahead.fetch<kPrefetches>();
    panel += kPanelStep;
  };
  int64_t at = 0;
#pragma GCC unroll 1
  for (; at + Format::kStep <= k; at += Format::kStep) step(x + at, k);
  if constexpr (Format::kStep > 1) {
    if (at < k) {  // what follows the row in memory is not its own, and may be NaN
      Element last[kRows][Format::kStep] = {};
      for (int row = 0; row < kRows; ++row) {
        for (int64_t i = at; i < k; ++i) last[row][i - at] = x[row * k + i];
      }
      step(last[0], Format::kStep);
    }
  }
  store_sums(sum, sums);
}

// Measured: AVX-512 with 4 rows takes a quarter longer at 8 rows; other shapes take 8 to 50 % longer on AVX2, and up to
// twice as long on the portable level.
struct Float32Format {
  using Element = float;
  using Many = Float32Format;
  static constexpr int kLines = 3;
  using Vector = F32;
  static constexpr int kStep = 1;
  static constexpr int kVectors = 3;
  static constexpr int kRows = kLanes == 16 ? 8 : 4;
  static constexpr bool kUnpacks = false;
  static constexpr int kGroup = 0;
  static constexpr DType kDType = DType::kFloat32;
  static Vector load_weights(const Element* p) { return load(p); }
  static Vector broadcast_x(const Element* p) { return broadcast(*p); }
  static F32 multiply_add(F32 sum, Vector x, Vector weights) { return fma(x, weights, sum); }
  static int64_t num_steps(int64_t k) { return k; }
  template <int kRows, int kVectors, int kPrefetches>
  static void multiply_tile(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums) {
    multiply_floats<Float32Format, kRows, kVectors, kPrefetches>(rows, panel, column, ahead, sums);
  }
};

struct BFloat16Format {
  using Element = uint16_t;
  using Many = BFloat16Format;
  static constexpr int kLines = 3;
  using Vector = Pairs;
  static constexpr int kStep = 2;
  static constexpr int kVectors = kLanes == 8 ? 2 : 3;
  static constexpr int kRows = kLanes == 16 ? 8 : kLanes == 8 ? 4 : 2;
  static constexpr bool kUnpacks = false;
  static constexpr int kGroup = 0;
  static constexpr DType kDType = DType::kBFloat16;
  static Vector load_weights(const Element* p) { return load_pairs(p); }
  static Vector broadcast_x(const Element* p) { return broadcast_pair(p); }
  static F32 multiply_add(F32 sum, Vector x, Vector weights) { return dot(sum, x, weights); }
  static int64_t num_steps(int64_t k) { return (k + 1) / 2; }
  template <int kRows, int kVectors, int kPrefetches>
  static void multiply_tile(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums) {
    multiply_floats<BFloat16Format, kRows, kVectors, kPrefetches>(rows, panel, column, ahead, sums);
  }
};

// Sums of products of integers, for a tile: exact, whatever their order. `Numbers` are Bytes or Nibbles.
template <class Numbers, int kRows, int kVectors>
struct Dots {
  typename Numbers::Sums at[kRows][kVectors];

  // Begins a group: every sum of a row is `offset` times the sum of the row's numbers.
  void begin(int offset, const std::byte* scales, int64_t stride) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto first = Numbers::start(offset * reinterpret_cast<const GroupScale*>(scales + row * stride)->sum);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) at[row][i] = first;
    }
  }

  // Adds the products of four consecutive k of each row with those of each column.
  void add(const I32 (&words)[kVectors], const std::byte* x, int64_t stride) {
    typename Numbers::Unsigned weights[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) weights[i] = Numbers::split(words[i]);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto x_row = Numbers::broadcast(x + row * stride);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) at[row][i] = Numbers::add(at[row][i], weights[i], x_row);
    }
  }

  F32 total(int row, int i) const { return to_float(Numbers::total(at[row][i])); }
};

template <int kVectors>
void load_vectors(const std::byte* p, I32 (&words)[kVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) words[i] = load_words(p + 4 * i * kLanes);
}

// Tiles of integers. On AVX-512, 12 sums of integers and 12 of floats fill the registers, and larger tiles spill.
// Measured at K = 576: AVX2 with 4 x 2 takes 5 % longer, with 2 x 2 4 to 12 %; the portable level with 4 x 2 13 %.
inline constexpr int kIntegerVectors = kLanes == 8 ? 2 : 3;
inline constexpr int kIntegerRows = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 2;

// A group adds scale of the row * (scale of the column * sum of products).
// Weights are q + 128, so a group begins at -128 times the sum of the row's numbers.
struct Int8Format {
  using Element = uint16_t;
  using Many = Int8Format;
  static constexpr int kLines = 3;
  static constexpr int kVectors = kIntegerVectors;
  static constexpr int kRows = kIntegerRows;
  static constexpr bool kUnpacks = false;
  static constexpr int kGroup = kInt8Group;
  static constexpr DType kDType = DType::kInt8;
  static int64_t num_steps(int64_t k) { return num_groups(k, kGroup) * kGroup / 4; }

  template <int kRows, int kVectors, int kPrefetches>
  static void multiply_tile(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums) {
    const QuantizedLayout layout(rows.k, kGroup);
    const int64_t stride = rows.row_bytes;
    const std::byte *x = rows.first, *scales = x + layout.scales_at, *weights = panel + 4 * column;
    F32 sum[kRows][kVectors];
    clear(sum);
#pragma GCC unroll 1
    for (int64_t group = 0; group < layout.num_groups; ++group, scales += sizeof(GroupScale)) {
      Dots<Bytes, kRows, kVectors> dots;
      dots.begin(-128, scales, stride);
#pragma GCC unroll 1
      for (int step = 0; step < kGroup / 4; ++step, x += 4, weights += kBytesStep) {
        I32 words[kVectors];
        load_vectors(weights, words);
        dots.add(words, x, stride);
        ahead.fetch<kPrefetches>();
      }
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        // `weights` has moved on by the group's values, and is `column` words into what follows.
        const F32 column_scale = load(reinterpret_cast<const float*>(weights) + i * kLanes);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          const F32 row_scale = broadcast(reinterpret_cast<const GroupScale*>(scales + row * stride)->scale);
          sum[row][i] = fma(dots.total(row, i) * column_scale, row_scale, sum[row][i]);
        }
      }
      weights += kInt8Bytes - kInt8Values;
    }
    store_sums(sum, sums);
  }
};

// Each group adds scale of the row * (scale * sum of products + minimum * sum of the row's numbers).
template <int kRows, int kVectors>
void add_int4_group(const Dots<Nibbles, kRows, kVectors>& dots, const F32 (&scales)[kVectors],
                    const F32 (&minimums)[kVectors], const std::byte* x_scales, int64_t stride,
                    F32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    const auto& own = *reinterpret_cast<const GroupScale*>(x_scales + row * stride);
    const F32 scale = broadcast(own.scale), sum = broadcast(static_cast<float>(own.sum));
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i] = fma(scale, fma(scales[i], dots.total(row, i), minimums[i] * sum), sums[row][i]);
    }
  }
}

// Panels of int4 that were unpacked, for many rows: for each group, [8][kPanel][4] bytes, then float32 scales and
// minimums. The arithmetic is that of Int4Format.
struct UnpackedInt4 {
  static constexpr int kLines = 3;
  static constexpr int kVectors = kIntegerVectors;
  static constexpr int kRows = kIntegerRows;
  static constexpr int kGroup = kInt4Group;
  static constexpr int64_t kValues = 2 * kInt4Values;
  static constexpr int64_t kBytes = kValues + 8 * kPanel;
  static int64_t num_steps(int64_t k) { return num_groups(k, kGroup) * kGroup / 4; }
  static int64_t panel_bytes(int64_t k) { return num_groups(k, kGroup) * kBytes; }

  static void unpack(const std::byte* panel, int64_t k, std::byte* unpacked) {
    const I32 nibbles = broadcast_int(0x0f0f0f0f);
    for (int64_t group = 0; group < num_groups(k, kGroup); ++group, panel += kInt4Bytes, unpacked += kBytes) {
#pragma GCC unroll 4
      for (int64_t at = 0; at < kInt4Values; at += 4 * kLanes) {
        const I32 words = load_words(panel + at);
        store_words(unpacked + at, words & nibbles);
        store_words(unpacked + kInt4Values + at, shift_right<4>(words) & nibbles);
      }
      const auto* scales = reinterpret_cast<const uint16_t*>(panel + kInt4Values);  // and minimums
      auto* wide = reinterpret_cast<float*>(unpacked + kValues);
      for (int64_t i = 0; i < 2 * kPanel; i += kLanes) store(wide + i, load_half(scales + i));
    }
  }

  template <int kRows, int kVectors, int kPrefetches>
  static void multiply_tile(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums) {
    const QuantizedLayout layout(rows.k, kGroup);
    const int64_t stride = rows.row_bytes;
    const std::byte *x = rows.first, *x_scales = x + layout.scales_at;
    F32 sum[kRows][kVectors];
    clear(sum);
#pragma GCC unroll 1
    for (int64_t group = 0; group < layout.num_groups; ++group, x_scales += sizeof(GroupScale), panel += kBytes) {
      Dots<Nibbles, kRows, kVectors> dots;
      dots.begin(0, x_scales, stride);
      const std::byte* weights = panel + 4 * column;
#pragma GCC unroll 1
      for (int step = 0; step < kGroup / 4; ++step, x += 4, weights += kBytesStep) {
        I32 words[kVectors];
        load_vectors(weights, words);
        dots.add(words, x, stride);
        ahead.fetch<kPrefetches>();
      }
      const auto* wide = reinterpret_cast<const float*>(panel + kValues) + column;
      F32 scales[kVectors], minimums[kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        scales[i] = load(wide + i * kLanes);
        minimums[i] = load(wide + kPanel + i * kLanes);
      }
      add_int4_group(dots, scales, minimums, x_scales, stride, sum);
    }
    store_sums(sum, sums);
  }
};

struct Int4Format {
  using Element = uint16_t;
  using Many = UnpackedInt4;
  static constexpr int kLines = 3;
  // Measured at K = 576, unpacking first takes the same time at 17 rows on AVX-512, 28 on AVX2 and 3 on the portable
  // level; at 64 rows it saves 12, 3 and 22 %.
  static constexpr int64_t kManyRows = kLanes == 4 ? 4 : 24;
  static constexpr int kVectors = kIntegerVectors;
  static constexpr int kRows = kIntegerRows;
  static constexpr bool kUnpacks = true;
  static constexpr int kGroup = kInt4Group;
  static constexpr DType kDType = DType::kInt4;
  static int64_t num_steps(int64_t k) { return num_groups(k, kGroup) * (kInt4Bytes / kBytesStep); }

  template <int kRows, int kVectors, int kPrefetches>
  static void multiply_tile(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums) {
    const QuantizedLayout layout(rows.k, kGroup);
    const int64_t stride = rows.row_bytes;
    const std::byte *x = rows.first, *x_scales = x + layout.scales_at;
    const I32 nibbles = broadcast_int(0x0f0f0f0f);
    F32 sum[kRows][kVectors];
    clear(sum);
#pragma GCC unroll 1
    for (int64_t group = 0; group < layout.num_groups; ++group, x_scales += sizeof(GroupScale), panel += kInt4Bytes) {
      Dots<Nibbles, kRows, kVectors> dots;
      dots.begin(0, x_scales, stride);
      const std::byte* weights = panel + 4 * column;
#pragma GCC unroll 1
      for (int step = 0; step < kGroup / 8; ++step, x += 4, weights += kBytesStep) {
        I32 words[kVectors], lower[kVectors], upper[kVectors];
        load_vectors(weights, words);
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) lower[i] = words[i] & nibbles;
        dots.add(lower, x, stride);
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) upper[i] = shift_right<4>(words[i]) & nibbles;
        dots.add(upper, x + kGroup / 2, stride);
        ahead.fetch<kPrefetches>();
      }
      x += kGroup / 2;
      const auto* halves = reinterpret_cast<const uint16_t*>(panel + kInt4Values) + column;
      F32 scales[kVectors], minimums[kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) {
        scales[i] = load_half(halves + i * kLanes);
        minimums[i] = load_half(halves + kPanel + i * kLanes);
      }
      add_int4_group(dots, scales, minimums, x_scales, stride, sum);
      ahead.fetch<kPrefetches>();
    }
    store_sums(sum, sums);
  }
};

}  // namespace pelton
