// Packing of weights, on loading.
#pragma once

#include <cstdint>

#include "ops/panels.h"
#include "runtime/kernel.h"

namespace pelton {

// Rows [n, k] of a weight: either float32, or, for int4 only, in four bits. Filled by Python: keep in step with
// ops/cpu/library.py.
struct SourceRows {
  const float* floats;       // null for rows in four bits
  const uint8_t* values;     // [n, k], 0 to 15
  const uint16_t* scales;    // [n, ceil(k / 32)], float16
  const uint16_t* minimums;  // like scales
  int64_t n;
  int64_t k;
};

// Where they go: row i becomes column first_column + i of the packed weight `target`, whose memory is zero before.
// Panel j of these columns is stored as panel j * panel_stride + panel_offset. Filled by Python, too.
struct PanelPlace {
  void* target;
  int64_t first_column;
  int64_t panel_stride;
  int64_t panel_offset;
};

// Packs rows [first, last) of the source. Threads may pack disjoint ranges of rows at once. Rounds to nearest, even on
// ties. -> whether the format can hold all numbers: bfloat16 and float32 always do, int8 what is finite, and int4 what
// has finite scales and minimums in float16.
bool pack_panels(DType format, const SourceRows& source, const PanelPlace& place, int64_t first, int64_t last);

}  // namespace pelton
