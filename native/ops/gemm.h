// Products of rows with packed weights: the part that linear, gated_linear and logits share.
//
// Every output element is one chain of multiply-adds over k, in ascending order, whatever the tile around it (with
// matrices of bfloat16, a chain of steps along k). So the bits of a row depend on nothing but the row and the weight.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/formats.h"
#include "ops/panels.h"
#include "ops/quantize.h"
#include "runtime/kernel.h"
#include "vec/vec.h"
#if defined(PELTON_LEVEL_AMX)
#include "ops/matrix_formats.h"
#endif

namespace pelton {

#if defined(PELTON_LEVEL_AMX)
using BFloat16OfLevel = BFloat16Matrices;
using Int8OfLevel = Int8WithMatrices;
using Int4OfLevel = Int4WithMatrices;
#else
using BFloat16OfLevel = BFloat16Format;
using Int8OfLevel = Int8Format;
using Int4OfLevel = Int4Format;
#endif

// Calls `use` with the format of a packed weight.
template <class F>
void with_format(DType format, F&& use) {
  switch (format) {
    case DType::kBFloat16:
      return use(BFloat16OfLevel());
    case DType::kInt8:
      return use(Int8OfLevel());
    case DType::kInt4:
      return use(Int4OfLevel());
    default:
      return use(Float32Format());
  }
}

using TileFunction = void (*)(const Rows& rows, const std::byte* panel, int64_t column, Ahead ahead, float* sums);

template <class Format, int kVectors, int kPrefetches, int... kRowsLessOne>
constexpr std::array<TileFunction, sizeof...(kRowsLessOne)> tiles_of_rows(std::integer_sequence<int, kRowsLessOne...>) {
  return {Format::template multiply_tile<kRowsLessOne + 1, kVectors, kPrefetches>...};
}

// -> the function for tiles of `num_rows` rows, 1 to Format::kRows.
template <class Format, int kVectors, int kPrefetches>
TileFunction tile_function(int64_t num_rows) {
  static constexpr auto kFunctions =
      tiles_of_rows<Format, kVectors, kPrefetches>(std::make_integer_sequence<int, Format::kRows>());
  return kFunctions[num_rows - 1];
}

// Rows times the first `num_columns` columns of a panel -> sums [num_rows][kPanel]. Further columns: undefined.
template <class Format, int kPrefetches>
void multiply_panel(const Rows& rows, int64_t num_rows, const std::byte* panel, int64_t num_columns, Ahead ahead,
                    float* sums) {
  constexpr int kWhole = Format::kVectors;
  constexpr int kVectorsOfPanel = kPanel / kLanes;
  static_assert(kPanel % (kWhole * kLanes) == 0);
  const int num_vectors = static_cast<int>((num_columns + kLanes - 1) / kLanes);
  if constexpr (kWhole == kVectorsOfPanel && kWhole == 3) {
    if (num_vectors == 1) return tile_function<Format, 1, 0>(num_rows)(rows, panel, 0, ahead, sums);
    if (num_vectors == 2) return tile_function<Format, 2, 0>(num_rows)(rows, panel, 0, ahead, sums);
  }
  constexpr int kManyVectors = 12;  // of sums that fit 16 registers; for so few rows, latency counts
  if constexpr (kWhole < kVectorsOfPanel) {
    if (num_rows == 1) {
      return Format::template multiply_tile<1, kVectorsOfPanel, kPrefetches>(rows, panel, 0, ahead, sums);
    }
    if constexpr (2 * kVectorsOfPanel <= kManyVectors && Format::kGroup == 0) {
      if (num_rows == 2) {
        return Format::template multiply_tile<2, kVectorsOfPanel, kPrefetches>(rows, panel, 0, ahead, sums);
      }
    }
  }
  tile_function<Format, kWhole, kPrefetches>(num_rows)(rows, panel, 0, ahead, sums);
  for (int i = kWhole; i < num_vectors; i += kWhole) {
    tile_function<Format, kWhole, 0>(num_rows)(rows, panel, i * kLanes, ahead, sums + i * kLanes);
  }
}

// Fetches what the next panel's tile will use of a row of floats, `at` being where this panel's is. With many rows the
// hardware does not foresee it, and it costs up to 8 % of the time.
inline void prefetch_next_panel(const float* at) {
  for (int64_t i = 0; i < kPanel; i += 64 / static_cast<int64_t>(sizeof(float))) prefetch(at + kPanel + i);
}

template <class Format>
inline constexpr bool kIsMatrix = std::is_base_of_v<MatrixFormat, Format>;

// Tiles of sums, [row][column], one for each weight of the same output columns.
template <class Format, int kParts>
struct Tiles {
  float* sums[kParts];
  int64_t first_row;
  int64_t num_rows;
  int64_t first_column;
  int64_t num_columns;

  const float* row(int part, int64_t index) const { return sums[part] + index * kPanel; }
  float* row(int part, int64_t index) { return sums[part] + index * kPanel; }
};

// How the rows and panels of a product are cut.
struct Cut {
  int64_t num_blocks;    // of rows
  int64_t num_rows = 0;  // of a block
  int64_t num_panels;    // or groups of interleaved panels

  // Each thread gets rows of its own if that leaves blocks of `min_rows`.
  Cut(int64_t rows, int64_t row_bytes, int64_t panels, int num_threads, int64_t min_rows) : num_panels(panels) {
    constexpr int64_t kBlockBytes = 384 << 10;  // of x: stays in a second-level cache of 1 MiB beside two panels
    const int64_t most = std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(row_bytes, 1) / 8 * 8, 32, 128);
    num_blocks = (rows + most - 1) / most;
    const int64_t of_all = (num_blocks + num_threads - 1) / num_threads * num_threads;
    if (rows >= min_rows * of_all) num_blocks = of_all;
    if (num_blocks == 0) return;
    num_rows = ((rows + num_blocks - 1) / num_blocks + 7) / 8 * 8;
    num_blocks = (rows + num_rows - 1) / num_rows;  // none is empty
  }
  int64_t num_units() const { return num_blocks * num_panels; }
};

// Up to so many rows every thread quantizes all of them for itself; more are shared out, in a pass of their own.
// Measured with two threads: for 8 rows of 576 or 1536 numbers the pass takes 10 % longer, from 12 on it does not.
inline constexpr int64_t kFewRows = 8;

// What the product of x with a packed weight needs: shared memory, and passes, in the last of which it multiplies.
inline Plan plan_product(const Arg& x, const Arg& weight) {
  Plan plan;
  with_format(weight.dtype, [&](auto format) {
    constexpr int kGroup = decltype(format)::kGroup;
    if constexpr (kGroup != 0) {
      if (x.rows > kFewRows) {
        plan = {static_cast<size_t>(x.rows * QuantizedLayout(x.cols, kGroup).row_bytes), 2};
      }
    }
  });
  return plan;
}

// The product of rows x, [m, k], with a packed weight of n output columns, or with kParts weights whose panels are
// interleaved.
template <class Format, int kParts>
class Product {
 public:
  Product(const Arg& x, const Arg& weight, Worker& worker)
      : x_(x),
        panels_(weight.as<std::byte>()),
        n_(weight.rows / kParts),
        panel_bytes_(panel_bytes(Format::kDType, x.cols)),
        cut_(x.rows, row_bytes(), num_panels(n_), worker.count(), kMinRows),
        worker_(worker) {}

  // This thread's part in a pass. `finish` gets its tiles in the last one, for each row in ascending order of columns.
  template <class Finish>
  void run(Finish&& finish) {
    if (kIsQuantized && x_.rows > kFewRows && worker_.pass() == 0) return quantize_shared();
    const int64_t num_units = cut_.num_units();
    // Then a launch takes some 2 us on one thread, and sharing it costs more than it gains.
    const bool is_small = unit_bytes() * num_panels(n_) * ((x_.rows + 7) / 8) < (64 << 10);
    if (is_small && worker_.claim() != 0) return;
    take_memory();
    if (is_small) {
      for (int64_t unit = 0; unit < num_units; ++unit) compute_unit(unit, finish);
    } else {
      for_own_first(worker_, num_units, 1, [&](int64_t unit, int64_t) { compute_unit(unit, finish); });
    }
  }

 private:
  static constexpr bool kIsQuantized = Format::kGroup != 0;
  static constexpr bool kHasMany = !std::is_same_v<typename Format::Many, Format>;
  static constexpr bool kUnpacks = Format::kUnpacks;
  // What a row's thread has made and the same thread reads next need not move between cores, which takes longer than to
  // read a weight twice: 64 rows of SmolLM2 in int8 take 20.5 ms in all instead of 22.0, where the threads wait 400 ns
  // for each other. To unpack a panel twice costs more.
  static constexpr int64_t kMinRows = kUnpacks ? 64 : 32;

  int64_t unit_bytes() const { return kParts * panel_bytes_; }

  int64_t row_bytes() const {
    if constexpr (kIsQuantized) {
      return QuantizedLayout(x_.cols, Format::kGroup).row_bytes;
    } else {
      return x_.cols * static_cast<int64_t>(sizeof(typename Format::Element));
    }
  }

  // Quantizes rows of x into `rows`, one behind the other.
  void quantize(int64_t first, int64_t last, std::byte* rows) const {
    if constexpr (kIsQuantized) {
      for (int64_t row = first; row < last; ++row) {
        quantize_row<Format::kGroup>(x_.row<uint16_t>(row), x_.cols, rows + row * row_bytes());
      }
    }
  }

  void quantize_shared() {
    constexpr int64_t kChunkElements = 4096;  // some 0.5 us
    const int64_t chunk = std::max<int64_t>(kChunkElements / x_.cols, 1);
    for_own_first(worker_, x_.rows, chunk,
                  [&](int64_t first, int64_t last) { quantize(first, last, worker_.shared()); });
  }

  // Finds the rows to multiply, and memory for what is unpacked.
  void take_memory() {
    rows_ = {x_.as<std::byte>(), row_bytes(), x_.cols};
    if constexpr (kIsQuantized) {
      const int64_t own_bytes = x_.rows <= kFewRows ? x_.rows * row_bytes() : 0;
      int64_t num_bytes = own_bytes;
      if constexpr (kUnpacks) num_bytes += kParts * Format::Many::panel_bytes(x_.cols);
      std::byte* scratch = worker_.scratch(static_cast<size_t>(num_bytes));
      unpacked_ = scratch + own_bytes;
      if (own_bytes != 0) quantize(0, x_.rows, scratch);
      rows_.first = own_bytes != 0 ? scratch : worker_.shared();
    }
  }

  template <class Finish>
  void compute_unit(int64_t unit, Finish&& finish) {
    const int64_t index = unit % cut_.num_panels;
    const Block block = {unit / cut_.num_panels * cut_.num_rows, panels_ + index * unit_bytes(),
                         unit + 1 == cut_.num_units()};
    tiles_.first_column = index * kPanel;
    tiles_.num_columns = std::min(kPanel, n_ - tiles_.first_column);
    const int64_t num_rows = std::min(cut_.num_rows, x_.rows - block.first_row);
    if constexpr (kHasMany) {
      if (num_rows >= Format::kManyRows) {
        if constexpr (kUnpacks) {
          const int64_t bytes = Format::Many::panel_bytes(x_.cols);
          for (int part = 0; part < kParts; ++part) {
            Format::Many::unpack(block.panels + part * panel_bytes_, x_.cols, unpacked_ + part * bytes);
          }
          return compute_tiles<typename Format::Many>(block, num_rows, unpacked_, bytes, finish);
        } else {
          return compute_tiles<typename Format::Many>(block, num_rows, block.panels, panel_bytes_, finish);
        }
      }
    }
    compute_tiles<Format>(block, num_rows, block.panels, panel_bytes_, finish);
  }

  struct Block {
    int64_t first_row;
    const std::byte* panels;  // in the weight
    bool is_last;
  };

  // The rows of a block times `panels`, which are those of the weight, or what they were unpacked to.
  template <class Tile, class Finish>
  void compute_tiles(const Block& block, int64_t num_rows, const std::byte* panels, int64_t bytes, Finish&& finish) {
    const int64_t num_tiles = (num_rows + Tile::kRows - 1) / Tile::kRows;
    const int64_t most_rows = (num_rows + num_tiles - 1) / num_tiles;
    constexpr int64_t kRowsOfFew = kIsMatrix<Tile> ? MatrixFormat::kHalfRows : Tile::kRows;
    if constexpr (kIsMatrix<Tile>) Tile::set_shapes(shapes_, most_rows);
    const bool is_by_part = kParts > 1 && !kIsMatrix<Tile> && num_rows <= kRowsByPart;
    for (int64_t step = 0; step < num_tiles * kParts; ++step) {
      const int part = static_cast<int>(is_by_part ? step / num_tiles : step % kParts);
      const int64_t tile = is_by_part ? step % num_tiles : step / kParts;
      const int64_t first_row = tile * num_rows / num_tiles;
      tiles_.first_row = block.first_row + first_row;
      tiles_.num_rows = (tile + 1) * num_rows / num_tiles - first_row;
      for (int i = 0; i < kParts; ++i) tiles_.sums[i] = sums_[i] + (is_by_part ? first_row * kPanel : 0);
      const std::byte* panel = panels + part * bytes;
      Ahead ahead = {reinterpret_cast<const char*>(panel), 0};
      if (num_rows <= kRowsOfFew) {
        ahead = {reinterpret_cast<const char*>(panel) + ahead_of_few<Tile>(num_rows), 64 * Tile::kLines};
      } else if (!block.is_last) {
        const int64_t share = unit_bytes() / (num_tiles * kParts);
        ahead = {reinterpret_cast<const char*>(block.panels) + unit_bytes() + step * share,
                 share / Tile::num_steps(x_.cols)};
      }
      if (num_tiles == 1) {
        multiply<Tile, Tile::kLines>(part, panel, most_rows, ahead);
      } else if (num_tiles == 2) {
        multiply<Tile, (Tile::kLines + 1) / 2>(part, panel, most_rows, ahead);
      } else {
        multiply<Tile, (Tile::kLines + 2) / 3>(part, panel, most_rows, ahead);
      }
      if (part == kParts - 1) finish(tiles_);
    }
  }

  // How far ahead a panel is fetched for few rows, in bytes. Measured with weights in memory, best of 512 to 49152: few
  // rows wait for memory, more for the registers. Integers always take the larger one: up to 12 % less time for four
  // rows, no more for one.
  template <class Tile>
  static int64_t ahead_of_few(int64_t num_rows) {
    if (kIsMatrix<Tile>) return 1536;
    return kIsQuantized || num_rows > 5 ? 12288 : 1024;
  }

  // The rows of `tiles_` times a panel.
  template <class Tile, int kPrefetches>
  void multiply(int part, const std::byte* panel, [[maybe_unused]] int64_t most_rows, Ahead ahead) {
    const Rows rows = rows_.from(tiles_.first_row);
    float* sums = tiles_.sums[part];
    if constexpr (kIsMatrix<Tile>) {
      const int64_t half = Tile::half_rows(most_rows);
      Tile::template multiply_rows<kPrefetches>(rows, tiles_.num_rows, half, panel, ahead, sums);
    } else {
      multiply_panel<Tile, kPrefetches>(rows, tiles_.num_rows, panel, tiles_.num_columns, ahead, sums);
    }
  }

  const Arg& x_;
  const std::byte* panels_;
  const int64_t n_;
  const int64_t panel_bytes_;
  const Cut cut_;
  Worker& worker_;
  Rows rows_ = {};
  std::byte* unpacked_ = nullptr;
  Tiles<Format, kParts> tiles_;
  // Up to so many rows, all tiles of a block are multiplied with one part's panel, then with the other's: both do not
  // stay in a first-level cache, from which each is read again and again. 64 rows of SmolLM2 in int8 take 19.4 ms
  // instead of 20.4; of more, the sums do not stay either.
  static constexpr int64_t kRowsByPart = 64;
  static constexpr int64_t kTileRows = std::max<int>(Format::kRows, Format::Many::kRows);
  static constexpr int64_t kSumsRows = kParts > 1 ? std::max(kRowsByPart, kTileRows) : kTileRows;
  alignas(64) float sums_[kParts][kSumsRows * kPanel];
  MatrixShapes shapes_;
};

}  // namespace pelton
