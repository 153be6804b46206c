// Log probabilities of given tokens, and of the most likely ones.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "ops/kernels.h"
#include "ops/ranking.h"
#include "ops/vocabulary.h"

namespace pelton {
namespace {

// The logarithm of the sum of exp(scores), if `highest` is finite.
double log_total(const float* scores, int64_t size, float highest) {
  LaneSums sums;
  for_vectors(scores, 0, size, [&](int64_t, F32 x, Mask) { sums.add(exp(x - broadcast(highest))); });
  return double(highest) + double(log_scalar(float(sums.total())));
}

int32_t num_higher(const float* scores, int64_t size, float score) {
  int32_t num = 0;
  for_vectors(scores, 0, size, [&](int64_t, F32 x, Mask) { num += count(broadcast(score) < x); });
  return num;
}

void run(const Arg* args, Worker& worker) {
  const Arg &logits = args[0], &token_ids = args[1], &num_logprobs = args[2];
  const int64_t max_logprobs = args[3].integer, size = logits.cols;
  const bool normalize = args[4].integer != 0;
  const Arg &sampled_logprob = args[5], &rank = args[6];
  for_claimed(worker, logits.rows, 1, [&](int64_t row, int64_t) {
    float& logprob = sampled_logprob.as<float>()[row];
    int32_t& token_rank = rank.as<int32_t>()[row];
    int32_t* ids = args[7].row<int32_t>(row);
    float* top = args[8].row<float>(row);
    logprob = 0.0f;
    token_rank = 0;
    std::fill_n(ids, max_logprobs, 0);
    std::fill_n(top, max_logprobs, 0.0f);
    const int64_t num = num_logprobs.as<int32_t>()[row];
    const int32_t token_id = token_ids.as<int32_t>()[row];
    if (num < 0 || token_id < 0) return;
    if (num > std::min(max_logprobs, size)) {
      worker.fail("logprobs: a row asks for more than there is room for");
      return;
    }
    if (token_id >= size) {
      worker.fail("logprobs: a token id is outside the vocabulary");
      return;
    }
    const float* scores = logits.row<float>(row);
    const float highest = highest_of(scores, size);
    if (!std::isfinite(highest)) {
      logprob = kNaN;
      return;
    }
    const double total = normalize ? log_total(scores, size, highest) : 0.0;
    logprob = float(double(scores[token_id]) - total);
    token_rank = 1 + num_higher(scores, size, scores[token_id]);
    if (num == 0) return;
    const int64_t room = num_keys(size, num);
    auto* keys = Pieces(worker.scratch(Pieces::bytes<uint64_t>(room))).take<uint64_t>(room);
    select_largest(scores, size, num, keys);
    std::sort(keys, keys + num, std::greater<uint64_t>());
    for (int64_t i = 0; i < num; ++i) {
      ids[i] = id_of_key(keys[i]);
      top[i] = float(double(scores[ids[i]]) - total);
    }
  });
}

}  // namespace

// logits [L, V], token_ids [L], num_logprobs [L], max_logprobs, normalize
// -> sampled_logprob [L], rank [L], top_ids [L, max_logprobs], top_logprobs [L, max_logprobs]
const Kernel kLogprobs = {"logprobs", 9, run};

}  // namespace pelton
