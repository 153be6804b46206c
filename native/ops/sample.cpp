// The sampler: one token per row of logits.

#include <cmath>
#include <cstdint>

#include "ops/candidates.h"
#include "ops/kernels.h"
#include "ops/philox.h"
#include "ops/vocabulary.h"

namespace pelton {
namespace {

// The lowest id of the highest score.
int32_t find_best(const Scores& scores) {
  for (int64_t id = 0;; id += kLanes) {
    const Mask lanes = first_lanes(scores.size - id);
    const uint32_t best = bits((load(scores.row + id, lanes) == broadcast(scores.highest)) & lanes);
    if (best != 0) return int32_t(id) + __builtin_ctz(best);
  }
}

void run(const Arg* args, Worker& worker) {
  const Arg &logits = args[0], &best_ids = args[1], &edited = args[2], &edit_index = args[3], &warpers = args[4];
  const Arg &seed = args[5], &choice = args[6], &position = args[7], &token_ids = args[8];
  for_claimed(worker, logits.rows, 1, [&](int64_t row, int64_t) {
    int32_t& token_id = token_ids.as<int32_t>()[row];
    const bool is_edited = edit_index.as<int32_t>()[row] >= 0;
    const int32_t best = best_ids.as<int32_t>()[row];
    const Warper warper(warpers.row<float>(row));
    if (!is_edited && (best < 0 || warper.temperature == 0.0f)) {
      token_id = best;
      return;
    }
    const float* source = (is_edited ? edited : logits).row<float>(row);
    const float highest = is_edited ? highest_of(source, logits.cols) : source[best];
    const Scores scores{source, logits.cols, highest, warper.temperature};
    if (!std::isfinite(highest)) {
      token_id = highest == -kInfinity ? kNoCandidate : kInvalidLogits;
    } else if (warper.temperature == 0.0f) {
      token_id = find_best(scores);
    } else {
      const Candidates candidates(scores, warper, worker);
      token_id = candidates.draw(
          uniform(seed.as<uint64_t>()[row], choice.as<int32_t>()[row], position.as<int32_t>()[row], Purpose::kSample));
    }
  });
}

}  // namespace

// logits [L, V], best_ids [L], edited [L, V], edit_index [L], warpers [L, 4], seed [L], choice [L], position [L]
// -> token_ids [L]
const Kernel kSample = {"sample", 9, run};

}  // namespace pelton
