// The first half of a gated feed-forward layer: activation(x @ gate.T) * (x @ up.T).
#include "ops/gemm.h"
#include "ops/kernels.h"

namespace pelton {
namespace {

enum Activation : int64_t { kSilu, kGeluTanh };

struct Operands {
  const Arg& x;
  const Arg& weight;
  const Arg& bias;
  int64_t activation;
  const Arg& activated;
};

constexpr float kMost = 1000.0f;  // far beyond where both activations are 0 or x, and its cube does not overflow

// x / (1 + exp(-x)): x at +inf, 0 at -inf.
inline F32 silu(F32 x) {
  x = max(broadcast(-kMost), x);
  return x / (broadcast(1.0f) + exp(zero() - x));
}

// x / 2 * (1 + tanh(z)) with z = sqrt(2 / pi) * (x + 0.044715 * x^3), which is x / (1 + exp(-2 z)).
inline F32 gelu_tanh(F32 x) {
  constexpr float kSlope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  x = max(broadcast(-kMost), x);
  const F32 y = min(broadcast(kMost), x);
  const F32 factor = fma(y * y, broadcast(-kSlope * 0.044715f), broadcast(-kSlope));
  return x / (broadcast(1.0f) + exp(y * factor));
}

template <class Format, class Activate>
void run_activation(const Operands& op, Worker& worker, Activate activate) {
  const int64_t size = op.weight.rows / 2;
  Product<Format, 2>(op.x, op.weight, worker).run([&](const Tiles<Format, 2>& tiles) {
    for (int64_t column = 0; column < tiles.num_columns; column += kLanes) {
      const Mask mask = first_lanes(tiles.num_columns - column);
      const int64_t at = tiles.first_column + column;
      const bool has_bias = !op.bias.is_none();
      const F32 gate_bias = has_bias ? load(op.bias.as<float>() + at, mask) : zero();
      const F32 up_bias = has_bias ? load(op.bias.as<float>() + size + at, mask) : zero();
      for (int64_t row = 0; row < tiles.num_rows; ++row) {
        F32 gate = load(tiles.row(0, row) + column);
        F32 up = load(tiles.row(1, row) + column);
        if (has_bias) {
          gate = gate + gate_bias;
          up = up + up_bias;
        }
        store_as(op.activated.row<typename Format::Element>(tiles.first_row + row) + at, activate(gate) * up, mask);
      }
    }
  });
}

template <class Format>
void run_format(const Operands& op, Worker& worker) {
  if (op.activation == kSilu) {
    run_activation<Format>(op, worker, [](F32 x) { return silu(x); });
  } else {
    run_activation<Format>(op, worker, [](F32 x) { return gelu_tanh(x); });
  }
}

void run(const Arg* args, Worker& worker) {
  const Operands op = {args[0], args[1], args[2], args[3].integer, args[4]};
  with_format(op.weight.dtype, [&](auto format) { run_format<decltype(format)>(op, worker); });
}

Plan plan(const Arg* args, int) { return plan_product(args[0], args[1]); }

}  // namespace

// x [T, K], weight [2 I, K] in pairs of panels, bias [2 I] or none, activation -> activated [T, I] of x's dtype
const Kernel kGatedLinear = {"gated_linear", 5, run, plan};

}  // namespace pelton
