// Rows of the embedding table, which is a packed weight: a row of the table is a column of a panel.
#include "ops/kernels.h"
#include "ops/panels.h"
#include "vec/vec.h"

namespace pelton {
namespace {

// Elements of a row in one item: at least 2 us when the table comes from memory, and a row of a small model still has
// items for both of two threads. Even, so that no pair is parted.
constexpr int64_t kChunk = 512;
// The elements of a table row lie in cache lines of their own, and the processor follows such a stride within a page
// only. With reads 96 lines ahead, a row of 2048 took 9 us in float32 and 3.1 us in bfloat16 on Zen 4; without, 13 us
// and 7 us.
constexpr int64_t kAhead = 96;

// out[first..last) = scale * those elements of the table row that starts at `column`.
void copy_float32(const float* column, float scale, int64_t first, int64_t last, float* out) {
  for (int64_t k = first; k < last; ++k) {
    prefetch(column + (k + kAhead) * kPanel);
    out[k] = column[k * kPanel] * scale;
  }
}

float widened(uint32_t upper) {
  const uint32_t word = upper << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// `first` is even; `column` is the row's first pair.
void copy_bfloat16(const uint16_t* column, float scale, int64_t first, int64_t last, float* out) {
  for (int64_t k = first; k < last; k += 2) {
    const uint16_t* pair = column + k * kPanel;
    prefetch(pair + 2 * kAhead * kPanel);
    out[k] = widened(pair[0]) * scale;
    if (k + 1 < last) out[k + 1] = widened(pair[1]) * scale;
  }
}

void run(const Arg* args, Worker& worker) {
  const Arg &token_ids = args[0], &table = args[1], &out = args[4];
  const float scale = float(args[3].real);
  const int64_t width = table.cols, num_chunks = (width + kChunk - 1) / kChunk;
  for_claimed(worker, token_ids.rows * num_chunks, 1, [&](int64_t item, int64_t) {
    const int64_t row = item / num_chunks, id = token_ids.as<int32_t>()[row];
    if (id < 0 || id >= table.rows) {
      worker.fail("embed: a token id is outside the vocabulary");
      return;
    }
    const int64_t start = id / kPanel * panel_size(table.dtype, width), lane = id % kPanel;
    const int64_t first = item % num_chunks * kChunk, last = first + kChunk < width ? first + kChunk : width;
    if (table.is_bf16()) {
      copy_bfloat16(table.as<uint16_t>() + start + 2 * lane, scale, first, last, out.row<float>(row));
    } else {
      copy_float32(table.as<float>() + start + lane, scale, first, last, out.row<float>(row));
    }
  });
}

}  // namespace

// token_ids, table, (no bias), scale -> x
const Kernel kEmbed = {"embed", 5, run};

}  // namespace pelton
