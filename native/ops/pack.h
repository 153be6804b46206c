// Packing of weights, on loading.
#pragma once

#include <cstdint>

#include "ops/panels.h"
#include "runtime/kernel.h"

namespace pelton {

// Rows [first_source_row, last_source_row) of source [n, k] become columns first_column + row of the packed weight
// `target`, whose memory is zero before. Panel i of these columns is stored as panel i * panel_stride + panel_offset.
// Threads may pack disjoint ranges of rows at once. bfloat16 rounds to nearest, even on ties.
void pack_panels(DType format, const float* source, int64_t n, int64_t k, void* target, int64_t first_column,
                 int64_t panel_stride, int64_t panel_offset, int64_t first_source_row, int64_t last_source_row);

}  // namespace pelton
