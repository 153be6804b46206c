#include "ops/pack.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "vec/half.h"
#include "vec/vec.h"

namespace pelton {
namespace {

// Along k: the part of a panel that is being written, 3 to 12 KiB, stays in the first-level cache.
constexpr int64_t kBlock = 64;
constexpr int64_t kLine = 64;

// Some rows of a source, all of one panel, whose columns they become from `column` on.
struct Piece {
  const SourceRows& source;
  int64_t first;  // row
  int64_t last;
  std::byte* panel;
  int64_t column;
};

int64_t column_of(const Piece& piece, int64_t row) { return piece.column + row - piece.first; }

// Calls pack_block(row, at, count) for blocks of `count` numbers from `at` on along k, of all rows block after block.
// The next block is fetched ahead, on both sides: the hardware does not follow 48 rows at once, and this takes half the
// time. `panel_bits` are those of one number in the panel.
template <class PackBlock>
void for_blocks(const Piece& piece, int64_t panel_bits, PackBlock&& pack_block) {
  const int64_t k = piece.source.k, block_bytes = kBlock * panel_bits / 8;
  for (int64_t at = 0; at < k; at += kBlock) {
    for (int64_t row = piece.first; row < piece.last; ++row) {
      if (piece.source.floats != nullptr) {
        const auto* next_source = reinterpret_cast<const char*>(piece.source.floats + row * k + at + kBlock);
        for (int64_t i = 0; i < kBlock * static_cast<int64_t>(sizeof(float)); i += kLine) prefetch(next_source + i);
      }
      const std::byte* next_target = piece.panel + (at + kBlock) * kPanel * panel_bits / 8;
      for (int64_t i = 0; i < block_bytes; i += kLine) prefetch(next_target + (row - piece.first) * block_bytes + i);
      pack_block(row, at, std::min(kBlock, k - at));
    }
  }
}

bool pack_float32(const Piece& piece) {
  for_blocks(piece, 32, [&](int64_t row, int64_t at, int64_t count) {
    const float* from = piece.source.floats + row * piece.source.k + at;
    float* to = reinterpret_cast<float*>(piece.panel) + at * kPanel + column_of(piece, row);
    for (int64_t i = 0; i < count; ++i) to[i * kPanel] = from[i];
  });
  return true;
}

bool pack_bfloat16(const Piece& piece) {
  for_blocks(piece, 16, [&](int64_t row, int64_t at, int64_t count) {
    const float* from = piece.source.floats + row * piece.source.k + at;
    uint16_t* to = reinterpret_cast<uint16_t*>(piece.panel) + at * kPanel + 2 * column_of(piece, row);
    uint16_t rounded[kBlock + kLanes] = {};
    for (int64_t i = 0; i < count; i += kLanes) store_bf16(rounded + i, load(from + i, first_lanes(count - i)));
    for (int64_t i = 0; i < count; i += 2) std::memcpy(to + i * kPanel, rounded + i, 2 * sizeof(uint16_t));
  });
  return true;
}

// The least and the largest number of some.
struct Range {
  float least;
  float most;
  bool is_finite;
};

Range range_of(const float* x, int64_t count) {
  const F32 infinity = broadcast(__builtin_inff());
  F32 least = infinity, most = zero() - infinity;
  Mask is_finite = from_bits((1u << kLanes) - 1u);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Mask mask = first_lanes(count - i);
    const F32 part = load(x + i, mask);
    is_finite = is_finite & (part < infinity) & (zero() - infinity < part);
    least = min(least, select(mask, part, infinity));
    most = max(most, select(mask, part, zero() - infinity));
  }
  return {-reduce_max(zero() - least), reduce_max(most), !any(~is_finite)};
}

bool pack_int8(const Piece& piece) {
  bool fits = true;
  static_assert(kBlock == kInt8Group);  // the last block is filled up
  for_blocks(piece, 8, [&](int64_t row, int64_t at, int64_t count) {
    const float* from = piece.source.floats + row * piece.source.k + at;
    const Range range = range_of(from, count);
    if (!range.is_finite) {
      fits = false;
      return;
    }
    const float most = std::max(-range.least, range.most);
    const F32 factor = broadcast(most < kSmallest ? 0.0f : 127.0f / most);
    std::byte* group = piece.panel + at / kInt8Group * kInt8Bytes;
    auto* scales = reinterpret_cast<float*>(group + kInt8Values);
    scales[column_of(piece, row)] = most < kSmallest ? 0.0f : most / 127.0f;
    int32_t q[kBlock];
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      store_words(q + i, to_int(load(from + i, first_lanes(std::max<int64_t>(count - i, 0))) * factor));
    }
    std::byte* to = group + 4 * column_of(piece, row);
    for (int64_t i = 0; i < kBlock; i += 4) {
      uint8_t bytes[4];
      for (int64_t j = 0; j < 4; ++j) bytes[j] = static_cast<uint8_t>(q[i + j] + 128);
      std::memcpy(to + i * kPanel, bytes, sizeof(bytes));
    }
  });
  return fits;
}

// A group of one row of an int4 weight.
struct Int4Column {
  uint8_t values[kInt4Group];
  uint16_t scale;
  uint16_t minimum;
};

// -> false if float16 cannot hold the scale or the minimum.
bool quantize_int4(const float* x, int64_t count, Int4Column& group) {
  const Range range = range_of(x, count);
  group.scale = to_half((range.most - range.least) / 15.0f);
  group.minimum = to_half(range.least);
  if (!range.is_finite || !is_finite_half(group.scale) || !is_finite_half(group.minimum)) return false;
  const float scale = half_to_float(group.scale);
  const F32 minimum = broadcast(half_to_float(group.minimum)), divisor = broadcast(scale == 0.0f ? 1.0f : scale);
  const F32 most = broadcast(scale == 0.0f ? 0.0f : 15.0f);
  for (int64_t i = 0; i < kInt4Group; i += kLanes) {
    const Mask mask = first_lanes(std::max<int64_t>(count - i, 0));
    const F32 q = max(zero(), min(most, (load(x + i, mask) - minimum) / divisor));
    int32_t words[kLanes];
    store_words(words, to_int(select(mask, q, zero())));
    for (int lane = 0; lane < kLanes; ++lane) group.values[i + lane] = static_cast<uint8_t>(words[lane]);
  }
  return true;
}

void copy_int4(const SourceRows& source, int64_t row, int64_t at, int64_t count, Int4Column& group) {
  const int64_t index = row * num_groups(source.k, kInt4Group) + at / kInt4Group;
  std::memset(group.values, 0, sizeof(group.values));
  std::memcpy(group.values, source.values + row * source.k + at, static_cast<size_t>(count));
  group.scale = source.scales[index];
  group.minimum = source.minimums[index];
}

// `group` is where the panel's group begins.
void store_int4(const Int4Column& column, int64_t index, std::byte* group) {
  for (int64_t i = 0; i < kInt4Group / 2; i += 4) {
    uint8_t bytes[4];
    for (int64_t j = 0; j < 4; ++j) {
      bytes[j] = static_cast<uint8_t>(column.values[i + j] | column.values[kInt4Group / 2 + i + j] << 4);
    }
    std::memcpy(group + i * kPanel + 4 * index, bytes, sizeof(bytes));
  }
  auto* scales = reinterpret_cast<uint16_t*>(group + kInt4Values);
  scales[index] = column.scale;
  scales[kPanel + index] = column.minimum;
}

bool pack_int4(const Piece& piece) {
  bool fits = true;
  for_blocks(piece, 5, [&](int64_t row, int64_t first, int64_t block_count) {
    for (int64_t at = first; at < first + block_count; at += kInt4Group) {
      const int64_t count = std::min(kInt4Group, first + block_count - at);
      Int4Column column;
      if (piece.source.floats == nullptr) {
        copy_int4(piece.source, row, at, count, column);
        fits = fits && is_finite_half(column.scale) && is_finite_half(column.minimum);
      } else if (!quantize_int4(piece.source.floats + row * piece.source.k + at, count, column)) {
        fits = false;
        continue;
      }
      store_int4(column, column_of(piece, row), piece.panel + at / kInt4Group * kInt4Bytes);
    }
  });
  return fits;
}

bool pack_piece(DType format, const Piece& piece) {
  switch (format) {
    case DType::kBFloat16:
      return pack_bfloat16(piece);
    case DType::kInt8:
      return pack_int8(piece);
    case DType::kInt4:
      return pack_int4(piece);
    default:
      return pack_float32(piece);
  }
}

}  // namespace

bool pack_panels(DType format, const SourceRows& source, const PanelPlace& place, int64_t first, int64_t last) {
  bool fits = true;
  for (int64_t row = first; row < last;) {
    const int64_t column = place.first_column + row;
    const int64_t end = std::min(last, row + kPanel - column % kPanel);
    const int64_t panel = column / kPanel * place.panel_stride + place.panel_offset;
    std::byte* at = static_cast<std::byte*>(place.target) + panel * panel_bytes(format, source.k);
    fits = pack_piece(format, {source, row, end, at, column % kPanel}) && fits;
    row = end;
  }
  return fits;
}

}  // namespace pelton
