// Angles of the rotary position embedding (Su et al. 2021, arXiv:2104.09864).
#include "ops/kernels.h"
#include "vec/vec.h"

namespace pelton {
namespace {

// Angles in one item: some 2 us at about 10 ns for a cosine.
constexpr int64_t kItemAngles = 128;

void run(const Arg* args, Worker& worker) {
  const Arg &positions = args[0], &frequencies = args[1], &cos = args[3], &sin = args[4];
  const float factor = float(args[2].real);
  const int64_t width = cos.cols, chunk = width < kItemAngles ? kItemAngles / width : 1;
  for_claimed(worker, positions.rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      // A product of float32 numbers, as models were trained with; a more exact angle would be a different one.
      const float position = float(positions.as<int32_t>()[row]);
      float *cos_row = cos.row<float>(row), *sin_row = sin.row<float>(row);
      for (int64_t i = 0; i < width; ++i) {
        const float angle = position * frequencies.as<float>()[i];
        const SinCos of_angle = sin_cos(angle);
        cos_row[i] = of_angle.cos * factor;
        sin_row[i] = of_angle.sin * factor;
      }
    }
  });
}

}  // namespace

// positions [T], frequencies [D / 2], factor -> cos [T, D / 2], sin [T, D / 2]
const Kernel kRotary = {"rotary", 5, run};

}  // namespace pelton
