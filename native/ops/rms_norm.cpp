// Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).
#include <cmath>

#include "ops/kernels.h"
#include "vec/vec.h"

namespace pelton {
namespace {

// Elements in one item: about 1 us, so that small launches are not cut up.
constexpr int64_t kItemElements = 8192;
// Partial sums, enough to hide the latency of an addition (4 cycles, one or two a cycle).
constexpr int kSums = 4;

// The order of the sum depends on `width` alone.
float sum_of_squares(const float* x, int64_t width) {
  F32 sums[kSums] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kSums * kLanes <= width; i += kSums * kLanes) {
    for (int s = 0; s < kSums; ++s) {
      const F32 part = load(x + i + s * kLanes);
      sums[s] = fma(part, part, sums[s]);
    }
  }
  for (; i < width; i += kLanes) {
    const F32 part = load(x + i, first_lanes(width - i));
    sums[0] = fma(part, part, sums[0]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// out = weight * x / root_mean_square(x) + residual. `residual` is null for none.
template <class Out>
void normalize_row(const float* x, const float* weight, float eps, const float* residual, int64_t width, Out* out) {
  const F32 scale = broadcast(1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    F32 y = load(x + i) * scale * load(weight + i);
    if (residual != nullptr) y = y + load(residual + i);
    store_as(out + i, y);
  }
  if (i < width) {
    const Mask mask = first_lanes(width - i);
    F32 y = load(x + i, mask) * scale * load(weight + i, mask);
    if (residual != nullptr) y = y + load(residual + i, mask);
    store_as(out + i, y, mask);
  }
}

template <class Out>
void normalize(const Arg* args, Worker& worker) {
  const Arg &x = args[0], &weight = args[1], &residual = args[3], &out = args[5];
  const float eps = float(args[2].real);
  const int64_t width = x.cols, chunk = width < kItemElements ? kItemElements / width : 1;
  for_own_first(worker, x.rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* added = residual.is_none() ? nullptr : residual.row<float>(row);
      normalize_row(x.row<float>(row), weight.as<float>(), eps, added, width, out.row<Out>(row));
    }
  });
}

void run(const Arg* args, Worker& worker) {
  if (args[5].is_bf16()) {
    normalize<uint16_t>(args, worker);
  } else {
    normalize<float>(args, worker);
  }
}

}  // namespace

// x, weight, eps, residual or none, out_dtype -> normed
const Kernel kRmsNorm = {"rms_norm", 6, run};

}  // namespace pelton
