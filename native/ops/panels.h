// The packed layout of weights: panels of kPanel output columns, each one contiguous run of memory in the order of use.
//
// float32: [k][kPanel]. bfloat16: [ceil(k / 2)][kPanel][2], where two neighbours along k lie side by side.
// int8: for each group along k, [16][kPanel][4] bytes q + 128, then kPanel float32 scales: a weight is scale * q.
// int4: for each group along k, [4][kPanel][4] bytes, of which byte [i][column][j] holds q of k = 4 i + j in its lower
// half and q of k = 16 + 4 i + j in its upper half, then kPanel float16 scales and kPanel float16 minimums: a weight is
// scale * q + minimum. What is past the last column, or past k, is zero (q + 128 past k is 128). Layers with several
// weights for the same output columns (gate and up) interleave their panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/kernel.h"

namespace pelton {

inline constexpr int64_t kPanel = 48;  // 3 vectors of 16 floats: 8 rows of accumulators then fill the 32 registers

// Consecutive k, of an input row and of a weight, that are quantized together.
inline constexpr int64_t kInt8Group = 64;
inline constexpr int64_t kInt4Group = 32;

inline constexpr int64_t kBytesStep = 4 * kPanel;  // bytes of four consecutive k of all columns
// Bytes of a group: without its scales and minimums, and with them.
inline constexpr int64_t kInt8Values = kInt8Group * kPanel;
inline constexpr int64_t kInt8Bytes = kInt8Values + 4 * kPanel;
inline constexpr int64_t kInt4Values = kInt4Group * kPanel / 2;
inline constexpr int64_t kInt4Bytes = kInt4Values + 4 * kPanel;

// A group whose numbers are all below this, of an int8 weight or of an input row, counts as zeros.
inline constexpr float kSmallest = 0x1p-100f;

inline int64_t num_panels(int64_t n) { return (n + kPanel - 1) / kPanel; }

inline int64_t num_groups(int64_t k, int64_t group) { return (k + group - 1) / group; }

// Bytes of one panel, padding included.
inline int64_t panel_bytes(DType format, int64_t k) {
  switch (format) {
    case DType::kBFloat16:
      return (k + 1) / 2 * 2 * kPanel * 2;
    case DType::kInt8:
      return num_groups(k, kInt8Group) * kInt8Bytes;
    case DType::kInt4:
      return num_groups(k, kInt4Group) * kInt4Bytes;
    default:
      return k * kPanel * 4;
  }
}

}  // namespace pelton
