#include "ops/pack.h"

#include <algorithm>
#include <cstring>

#include "vec/vec.h"

namespace pelton {
namespace {

constexpr int64_t kBlock =
    64;  // along k: the part of a panel that is being written, 6 or 12 KiB, stays in the L1 cache

// k values of one row -> one column of a panel.
void pack_block(const float* source, int64_t k, float* column) {
  for (int64_t i = 0; i < k; ++i) column[i * kPanel] = source[i];
}

void pack_block(const float* source, int64_t k, uint16_t* column) {
  uint16_t rounded[kBlock + kLanes] = {};
  for (int64_t i = 0; i < k; i += kLanes) store_bf16(rounded + i, load(source + i, first_lanes(k - i)));
  for (int64_t i = 0; i < k; i += 2) std::memcpy(column + i * kPanel, rounded + i, 2 * sizeof(uint16_t));
}

// Rows [first, last) of source, all of one panel -> the columns of that panel from `column` on. The next block is
// fetched ahead, on both sides: the hardware does not follow 48 rows at once, and this takes half the time.
template <class Element>
void pack_columns(const float* source, int64_t k, int64_t first, int64_t last, Element* panel, int64_t column) {
  constexpr int64_t kStep = sizeof(float) / sizeof(Element);
  constexpr int64_t kLine = 64;
  constexpr int64_t kBlockBytes = kBlock * static_cast<int64_t>(sizeof(Element));  // of one column
  for (int64_t at = 0; at < k; at += kBlock) {
    for (int64_t row = first; row < last; ++row) {
      const float* from = source + row * k + at;
      const char* next_source = reinterpret_cast<const char*>(from + kBlock);
      for (int64_t i = 0; i < kBlock * static_cast<int64_t>(sizeof(float)); i += kLine) prefetch(next_source + i);
      const char* next_target = reinterpret_cast<const char*>(panel + (at + kBlock) * kPanel);
      for (int64_t i = 0; i < kBlockBytes; i += kLine) prefetch(next_target + (row - first) * kBlockBytes + i);
      pack_block(from, std::min(kBlock, k - at), panel + at * kPanel + (column + row - first) * kStep);
    }
  }
}

template <class Element>
void pack(const float* source, int64_t k, int64_t size, Element* target, int64_t first_column, int64_t panel_stride,
          int64_t panel_offset, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row;) {
    const int64_t column = first_column + row;
    const int64_t last = std::min(last_row, row + kPanel - column % kPanel);
    Element* panel = target + (column / kPanel * panel_stride + panel_offset) * size;
    pack_columns(source, k, row, last, panel, column % kPanel);
    row = last;
  }
}

}  // namespace

void pack_panels(DType format, const float* source, int64_t n, int64_t k, void* target, int64_t first_column,
                 int64_t panel_stride, int64_t panel_offset, int64_t first_source_row, int64_t last_source_row) {
  const int64_t last = std::min(last_source_row, n);
  const int64_t size = panel_size(format, k);
  if (format == DType::kBFloat16) {
    pack(source, k, size, static_cast<uint16_t*>(target), first_column, panel_stride, panel_offset, first_source_row,
         last);
  } else {
    pack(source, k, size, static_cast<float*>(target), first_column, panel_stride, panel_offset, first_source_row,
         last);
  }
}

}  // namespace pelton
