// Selected rows of a matrix.
#include <cstring>

#include "ops/kernels.h"

namespace pelton {
namespace {

// Bytes in one item: some 2 us, copied at about 10 GB/s.
constexpr int64_t kItemBytes = 16384;

void run(const Arg* args, Worker& worker) {
  const Arg &x = args[0], &rows = args[1], &out = args[2];
  const int64_t row_bytes = x.cols * (x.is_bf16() ? 2 : 4), chunk = row_bytes < kItemBytes ? kItemBytes / row_bytes : 1;
  for_claimed(worker, rows.rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = rows.as<int32_t>()[i];
      if (row < 0 || row >= x.rows) {
        worker.fail("gather_rows: a row does not exist");
        return;
      }
      std::memcpy(out.as<char>() + i * row_bytes, x.as<char>() + row * row_bytes, size_t(row_bytes));
    }
  });
}

}  // namespace

// x, rows -> gathered
const Kernel kGatherRows = {"gather_rows", 3, run};

}  // namespace pelton
