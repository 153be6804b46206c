// The packed layout of weights: panels of kPanel output columns, each one contiguous run of memory in the order of use.
//
// float32: [num_panels(n)][k][kPanel]. bfloat16: [num_panels(n)][ceil(k / 2)][kPanel][2], where two neighbours along k
// lie side by side. What is past the last column, or past an odd k, is zero. Layers with several weights for the same
// output columns (gate and up) interleave their panels.
#pragma once

#include <cstdint>

#include "runtime/kernel.h"

namespace pelton {

inline constexpr int64_t kPanel = 48;  // 3 vectors of 16 floats: 8 rows of accumulators then fill the 32 registers

inline int64_t num_panels(int64_t n) { return (n + kPanel - 1) / kPanel; }

// Elements of one panel, padding included.
inline int64_t panel_size(DType format, int64_t k) {
  return format == DType::kBFloat16 ? (k + 1) / 2 * 2 * kPanel : k * kPanel;
}

}  // namespace pelton
