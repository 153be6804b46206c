// Products of rows with packed weights: the part that linear, gated_linear and logits share.
//
// Every output element is one chain of multiply-adds over k, in ascending order, whatever the tile around it. So the
// bits of a row depend on nothing but the row and the weight.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ops/panels.h"
#include "runtime/kernel.h"
#include "vec/vec.h"

namespace pelton {

// Formats of weights. A step along k takes kStep elements; `kVectors` of a panel's vectors are computed at a time, for
// up to `kRows` rows, as many as the registers hold. Measured: AVX-512 with 4 rows takes a quarter longer at 8 rows;
// other shapes take 8 to 50 % longer on AVX2, and up to twice as long on the portable level.
struct Float32Format {
  using Element = float;
  using Vector = F32;
  static constexpr int kStep = 1;
  static constexpr int kVectors = 3;
  static constexpr int kRows = kLanes == 16 ? 8 : 4;
  static Vector load_weights(const Element* p) { return load(p); }
  static Vector broadcast_x(const Element* p) { return broadcast(*p); }
  static F32 multiply_add(F32 sum, Vector x, Vector weights) { return fma(x, weights, sum); }
};

struct BFloat16Format {
  using Element = uint16_t;
  using Vector = Pairs;
  static constexpr int kStep = 2;
  static constexpr int kVectors = kLanes == 8 ? 2 : 3;
  static constexpr int kRows = kLanes == 16 ? 8 : kLanes == 8 ? 4 : 2;
  static Vector load_weights(const Element* p) { return load_pairs(p); }
  static Vector broadcast_x(const Element* p) { return broadcast_pair(p); }
  static F32 multiply_add(F32 sum, Vector x, Vector weights) { return dot(sum, x, weights); }
};

// Cache lines to fetch ahead of use, while a tile is computed: some at each step, `stride` bytes further each time.
struct Ahead {
  const char* first;
  int64_t stride;
};

// x [kRows, k] times kVectors vectors of a panel's columns -> sums, rows kPanel apart.
template <class Format, int kRows, int kVectors, int kPrefetches>
void multiply_tile(const typename Format::Element* x, int64_t k, const typename Format::Element* panel, Ahead ahead,
                   float* sums) {
  using Element = typename Format::Element;
  constexpr int64_t kPanelStep = kPanel * Format::kStep;
  constexpr int kVectorStep = kLanes * Format::kStep;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) sum[row][i] = zero();
  }
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
#pragma GCC unroll 16
    for (int i = 0; i < kPrefetches; ++i) prefetch(ahead.first + 64 * i);
    ahead.first += ahead.stride;
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
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) store(sums + row * kPanel + i * kLanes, sum[row][i]);
  }
}

template <class Format>
using TileFunction = void (*)(const typename Format::Element*, int64_t, const typename Format::Element*, Ahead, float*);

template <class Format, int kVectors, int kPrefetches, int... kRowsLessOne>
constexpr std::array<TileFunction<Format>, sizeof...(kRowsLessOne)> tiles_of_rows(
    std::integer_sequence<int, kRowsLessOne...>) {
  return {multiply_tile<Format, kRowsLessOne + 1, kVectors, kPrefetches>...};
}

// -> the function for tiles of `num_rows` rows, 1 to Format::kRows.
template <class Format, int kVectors, int kPrefetches>
TileFunction<Format> tile_function(int64_t num_rows) {
  static constexpr auto kFunctions =
      tiles_of_rows<Format, kVectors, kPrefetches>(std::make_integer_sequence<int, Format::kRows>());
  return kFunctions[num_rows - 1];
}

// x [num_rows, k] times the first `num_columns` columns of a panel -> sums [num_rows][kPanel]. Further columns:
// undefined.
template <class Format, int kPrefetches>
void multiply_panel(const typename Format::Element* x, int64_t num_rows, int64_t k,
                    const typename Format::Element* panel, int64_t num_columns, Ahead ahead, float* sums) {
  constexpr int kWhole = Format::kVectors;
  constexpr int kVectorsOfPanel = kPanel / kLanes;
  static_assert(kPanel % (kWhole * kLanes) == 0);
  const int num_vectors = static_cast<int>((num_columns + kLanes - 1) / kLanes);
  if constexpr (kWhole == kVectorsOfPanel && kWhole == 3) {
    if (num_vectors == 1) return tile_function<Format, 1, 0>(num_rows)(x, k, panel, ahead, sums);
    if (num_vectors == 2) return tile_function<Format, 2, 0>(num_rows)(x, k, panel, ahead, sums);
  }
  constexpr int kManyVectors = 12;  // of sums that fit 16 registers; for so few rows, latency counts
  if constexpr (kWhole < kVectorsOfPanel) {
    if (num_rows == 1) return multiply_tile<Format, 1, kVectorsOfPanel, kPrefetches>(x, k, panel, ahead, sums);
    if constexpr (2 * kVectorsOfPanel <= kManyVectors) {
      if (num_rows == 2) return multiply_tile<Format, 2, kVectorsOfPanel, kPrefetches>(x, k, panel, ahead, sums);
    }
  }
  tile_function<Format, kWhole, kPrefetches>(num_rows)(x, k, panel, ahead, sums);
  for (int i = kWhole; i < num_vectors; i += kWhole) {
    tile_function<Format, kWhole, 0>(num_rows)(x, k, panel + i * kLanes * Format::kStep, ahead, sums + i * kLanes);
  }
}

// Fetches what the next panel's tile will use of a row of floats, `at` being where this panel's is. With many rows the
// hardware does not foresee it, and it costs up to 8 % of the time.
inline void prefetch_next_panel(const float* at) {
  for (int64_t i = 0; i < kPanel; i += 64 / static_cast<int64_t>(sizeof(float))) prefetch(at + kPanel + i);
}

// Tiles of sums, [row][column], one for each weight of the same output columns.
template <class Format, int kParts>
struct Tiles {
  alignas(64) float sums[kParts][Format::kRows * kPanel];
  int64_t first_row;
  int64_t num_rows;
  int64_t first_column;
  int64_t num_columns;

  const float* row(int part, int64_t index) const { return sums[part] + index * kPanel; }
  float* row(int part, int64_t index) { return sums[part] + index * kPanel; }
};

// How the rows and panels of a product are cut.
struct Cut {
  int64_t num_blocks;  // of rows
  int64_t num_rows;    // of a block
  int64_t num_panels;  // or groups of interleaved panels

  Cut(int64_t rows, int64_t row_bytes, int64_t panels) : num_panels(panels) {
    constexpr int64_t kBlockBytes = 384 << 10;  // of x: stays in a second-level cache of 1 MiB beside two panels
    const int64_t most = std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(row_bytes, 1) / 8 * 8, 32, 128);
    num_blocks = (rows + most - 1) / most;
    num_rows = num_blocks == 0 ? 0 : ((rows + num_blocks - 1) / num_blocks + 7) / 8 * 8;
  }
  int64_t num_units() const { return num_blocks * num_panels; }
};

// x [m, k] times a packed weight with n output columns (of each of kParts weights, interleaved). `finish` gets each
// thread's tiles, for each row in ascending order of columns.
template <class Format, int kParts, class Finish>
void multiply(const Arg& x, const void* weight, int64_t n, Worker& worker, Finish&& finish) {
  using Element = typename Format::Element;
  const int64_t k = x.cols;
  const int64_t steps = (k + Format::kStep - 1) / Format::kStep;
  const int64_t panel_elements = steps * Format::kStep * kPanel;
  const int64_t unit_bytes = kParts * panel_elements * static_cast<int64_t>(sizeof(Element));
  const Cut cut(x.rows, k * static_cast<int64_t>(sizeof(Element)), num_panels(n));
  Tiles<Format, kParts> tiles;

  const auto compute_unit = [&](int64_t unit, bool is_last) {
    const int64_t block = unit / cut.num_panels;
    const int64_t index = unit % cut.num_panels;
    const int64_t first_row = block * cut.num_rows;
    const int64_t num_rows = std::min(cut.num_rows, x.rows - first_row);
    const int64_t num_tiles = (num_rows + Format::kRows - 1) / Format::kRows;
    const Element* panels = static_cast<const Element*>(weight) + index * kParts * panel_elements;
    tiles.first_column = index * kPanel;
    tiles.num_columns = std::min(kPanel, n - tiles.first_column);
    for (int64_t i = 0; i < num_tiles; ++i) {
      tiles.first_row = first_row + i * num_rows / num_tiles;
      tiles.num_rows = first_row + (i + 1) * num_rows / num_tiles - tiles.first_row;
      const Element* x_rows = x.row<Element>(tiles.first_row);
      for (int part = 0; part < kParts; ++part) {
        const Element* panel = panels + part * panel_elements;
        float* sums = tiles.sums[part];
        if (num_tiles == 1) {
          // Measured with weights in memory, best of 512 to 49152 bytes: few rows wait for memory, more for the
          // registers.
          const Ahead ahead = {reinterpret_cast<const char*>(panel) + (num_rows <= 5 ? 1024 : 12288), 192};
          multiply_panel<Format, 3>(x_rows, tiles.num_rows, k, panel, tiles.num_columns, ahead, sums);
          continue;
        }
        const int64_t share = unit_bytes / (num_tiles * kParts);
        Ahead ahead = {reinterpret_cast<const char*>(panels) + unit_bytes + (i * kParts + part) * share, share / steps};
        if (is_last) ahead = {reinterpret_cast<const char*>(panel), 0};
        if (num_tiles == 2) {
          multiply_panel<Format, 2>(x_rows, tiles.num_rows, k, panel, tiles.num_columns, ahead, sums);
        } else {
          multiply_panel<Format, 1>(x_rows, tiles.num_rows, k, panel, tiles.num_columns, ahead, sums);
        }
      }
      finish(tiles);
    }
  };
  const int64_t num_units = cut.num_units();
  // Then a launch takes some 2 us on one thread, and sharing it costs more than it gains.
  const bool is_small = unit_bytes * num_panels(n) * ((x.rows + 7) / 8) < (64 << 10);
  if (is_small) {
    if (worker.claim() == 0) {
      for (int64_t unit = 0; unit < num_units; ++unit) compute_unit(unit, unit + 1 == num_units);
    }
    return;
  }
  for_own_first(worker, num_units, [&](int64_t unit) { compute_unit(unit, unit + 1 == num_units); });
}

}  // namespace pelton
