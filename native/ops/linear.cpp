// A linear layer over a packed weight, with bias and residual connection as its epilogue.
#include "ops/gemm.h"
#include "ops/kernels.h"

namespace pelton {
namespace {

struct Operands {
  const Arg& x;
  const Arg& weight;
  const Arg& bias;
  const Arg& residual;
  const Arg& y;
};

template <class Format>
void run_format(const Operands& op, Worker& worker) {
  Product<Format, 1>(op.x, op.weight, worker).run([&](const Tiles<Format, 1>& tiles) {
    for (int64_t row = tiles.first_row; row < tiles.first_row + tiles.num_rows; ++row) {
      prefetch_next_panel(op.y.row<float>(row) + tiles.first_column);
      if (!op.residual.is_none()) prefetch_next_panel(op.residual.row<float>(row) + tiles.first_column);
    }
    for (int64_t column = 0; column < tiles.num_columns; column += kLanes) {
      const Mask mask = first_lanes(tiles.num_columns - column);
      const int64_t at = tiles.first_column + column;
      const F32 bias = op.bias.is_none() ? zero() : load(op.bias.as<float>() + at, mask);
      for (int64_t row = 0; row < tiles.num_rows; ++row) {
        F32 y = load(tiles.row(0, row) + column);
        if (!op.bias.is_none()) y = y + bias;
        const int64_t y_row = tiles.first_row + row;
        if (!op.residual.is_none()) y = y + load(op.residual.row<float>(y_row) + at, mask);
        store(op.y.row<float>(y_row) + at, y, mask);
      }
    }
  });
}

void run(const Arg* args, Worker& worker) {
  const Operands op = {args[0], args[1], args[2], args[3], args[4]};
  with_format(op.weight.dtype, [&](auto format) { run_format<decltype(format)>(op, worker); });
}

Plan plan(const Arg* args, int) { return plan_product(args[0], args[1]); }

}  // namespace

// x [T, K], weight [N, K] packed, bias [N] or none, residual [T, N] or none -> y [T, N]
const Kernel kLinear = {"linear", 5, run, plan};

}  // namespace pelton
