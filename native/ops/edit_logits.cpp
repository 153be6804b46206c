// What a request's parameters change in its logits: mask, biases, penalties.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "ops/vocabulary.h"

namespace pelton {
namespace {

// NaN stays NaN.
float saturated(float x) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
}

// Copies a row, minus infinity where the mask has a 0; all NaN if there is a NaN or plus infinity. `mask` may be null.
void copy_allowed(const float* source, int64_t size, const uint32_t* mask, float* target) {
  F32 highest = broadcast(-kInfinity);
  Mask nans = first_lanes(0);
  for_vectors(source, 0, size, [&](int64_t id, F32 x, Mask lanes) {
    highest = max(x, highest);
    nans = nans | is_nan(x);
    if (mask != nullptr) x = select(from_bits(mask[id / 32] >> (id % 32)), x, broadcast(-kInfinity));
    store(target + id, x, lanes);
  });
  if (any(nans) || reduce_max(highest) == kInfinity) std::fill_n(target, size, kNaN);
}

float penalized(float score, int32_t count, float repetition, float frequency, float presence) {
  score = saturated(score > 0.0f ? score / repetition : score * repetition);
  score = saturated(score - frequency * float(count));
  return saturated(score - (count > 0 ? presence : 0.0f));
}

bool is_in(int64_t index, int64_t size) { return index >= 0 && index < size; }

void run(const Arg* args, Worker& worker) {
  const Arg &logits = args[0], &edit_index = args[1], &mask_index = args[2], &masks = args[3];
  const int32_t *bias_start = args[4].as<int32_t>(), *bias_ids = args[5].as<int32_t>();
  const float* bias = args[6].as<float>();
  const int32_t *penalty_start = args[7].as<int32_t>(), *penalty_ids = args[8].as<int32_t>();
  const int32_t* penalty_counts = args[9].as<int32_t>();
  const Arg &penalties = args[10], &edited = args[11];
  for_claimed(worker, logits.rows, 1, [&](int64_t row, int64_t) {
    const int32_t entry = edit_index.as<int32_t>()[row];
    if (entry < 0) return;
    float* scores = edited.row<float>(row);
    if (entry >= mask_index.rows) {
      worker.fail("edit_logits: an edit index is outside the edits");
      return;
    }
    const int32_t mask = mask_index.as<int32_t>()[entry];
    if (mask >= masks.rows) {
      worker.fail("edit_logits: a mask index is outside the masks");
      return;
    }
    copy_allowed(logits.row<float>(row), logits.cols, mask < 0 ? nullptr : masks.row<uint32_t>(mask), scores);
    for (int32_t i = bias_start[entry]; i < bias_start[entry + 1]; ++i) {
      if (!is_in(bias_ids[i], logits.cols)) {
        worker.fail("edit_logits: the token id of a bias is outside the vocabulary");
        return;
      }
      float& score = scores[bias_ids[i]];
      if (score != -kInfinity) score = saturated(score + bias[i]);
    }
    const float* by = penalties.row<float>(entry);
    for (int32_t i = penalty_start[entry]; i < penalty_start[entry + 1]; ++i) {
      if (!is_in(penalty_ids[i], logits.cols)) {
        worker.fail("edit_logits: the token id of a penalty is outside the vocabulary");
        return;
      }
      float& score = scores[penalty_ids[i]];
      if (score != -kInfinity) score = penalized(score, penalty_counts[i], by[0], by[1], by[2]);
    }
  });
}

}  // namespace

// logits [L, V], edit_index [L], mask_index [C], masks [M, ceil(V / 32)], bias_start [C + 1], bias_ids [B], bias [B],
// penalty_start [C + 1], penalty_ids [P], penalty_counts [P], penalties [C, 3] -> edited [L, V]
const Kernel kEditLogits = {"edit_logits", 12, run};

}  // namespace pelton
