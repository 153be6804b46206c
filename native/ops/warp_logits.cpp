// The logits whose softmax the sampler draws from.

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/candidates.h"
#include "ops/kernels.h"
#include "ops/vocabulary.h"

namespace pelton {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();

// The candidates' scores, divided by the temperature; where the highest quotient would overflow, all are shifted to
// make it 0. A candidate gets kLowest at least, unless its score is minus infinity; others get minus infinity.
void warp(const Scores& scores, const Bounds& bounds, float* warped) {
  const F32 shift = broadcast(std::isfinite(scores.highest / scores.temperature) ? 0.0f : scores.highest);
  const F32 temperature = broadcast(scores.temperature), none = broadcast(-kInfinity);
  for_vectors(scores.row, 0, scores.size, [&](int64_t id, F32 x, Mask lanes) {
    Mask admitted = bounds.admit_scores(x) & (none < x);
    if (any(admitted)) admitted = admitted & bounds.admit_weights(id, scores.weigh(x));
    const F32 quotients = max((x - shift) / temperature, broadcast(kLowest));
    store(warped + id, select(admitted, quotients, none), lanes);
  });
}

void run(const Arg* args, Worker& worker) {
  const Arg &logits = args[0], &edited = args[1], &edit_index = args[2], &warpers = args[3], &num_logprobs = args[4];
  const Arg& warped = args[5];
  for_claimed(worker, logits.rows, 1, [&](int64_t row, int64_t) {
    if (num_logprobs.as<int32_t>()[row] < 0) return;
    const Warper warper(warpers.row<float>(row));
    const float* source = (edit_index.as<int32_t>()[row] >= 0 ? edited : logits).row<float>(row);
    const float highest = highest_of(source, logits.cols);
    if (warper.temperature == 0.0f || !std::isfinite(highest)) {
      std::memcpy(warped.row<float>(row), source, logits.cols * sizeof(float));
      return;
    }
    const Scores scores{source, logits.cols, highest, warper.temperature};
    warp(scores, Candidates(scores, warper, worker).bounds(), warped.row<float>(row));
  });
}

}  // namespace

// logits [L, V], edited [L, V], edit_index [L], warpers [L, 4], num_logprobs [L] -> warped [L, V]
const Kernel kWarpLogits = {"warp_logits", 6, run};

}  // namespace pelton
