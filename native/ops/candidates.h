// The tokens that a row may be sampled from, and their weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "ops/ranking.h"
#include "ops/vocabulary.h"
#include "runtime/kernel.h"

namespace pelton {

struct Warper {
  explicit Warper(const float* warper)
      : temperature(warper[0]), top_k(int64_t(warper[1])), top_p(warper[2]), min_p(warper[3]) {}

  float temperature;  // 0: greedy
  int64_t top_k;      // 1 to V - 1, others: off
  float top_p;        // 1: off
  float min_p;        // 0: off
};

// A row of scores without NaN, of which `highest` is the finite maximum.
struct Scores {
  const float* row;
  int64_t size;
  float highest;
  float temperature;  // above 0

  // A token's probability, unscaled: 1 for the best.
  F32 weigh(F32 scores) const { return exp((scores - broadcast(highest)) / broadcast(temperature)); }
};

// Vectors with a weight that matters, in order of id. Weights that top-k or min-p rules out are 0.
struct Heavy {
  float* weights;  // room for one more than there can be, see `collect`
  int32_t* ids;    // of lane 0
  int64_t count = 0;
};

// Which tokens are candidates: those with a score of at least `kth`, and a weight above `least`, or equal to it and an
// id up to `last`.
struct Bounds {
  float kth = -kInfinity;
  float least = 0.0f;
  int64_t last;

  explicit Bounds(int64_t size) : last(size) {}
  Mask admit_weights(int64_t id, F32 weights) const {
    const Mask lanes = first_lanes(std::clamp<int64_t>(last - id + 1, 0, kLanes));
    return (broadcast(least) < weights) | ((weights == broadcast(least)) & lanes);
  }
  Mask admit_scores(F32 scores) const { return broadcast(kth) <= scores; }
};

// Finds them as in the reference (`find_candidates`): top-k, temperature, min-p, and top-p, without sorting more than a
// few numbers. For top-p the scores are read once, mostly; weights that are too light to matter are only summed. Its
// target's share of the sum is exact to float32's rounding, so a token that ends the nucleus that closely may be one
// off.
class Candidates {
 public:
  // Uses this thread's scratch memory.
  Candidates(const Scores& scores, const Warper& warper, Worker& worker);

  const Bounds& bounds() const { return bounds_; }
  // One of them: the first at which the sum of the weights exceeds `uniform` times the sum of all.
  int32_t draw(double uniform) const;

 private:
  double collect(float cutoff);
  float find_kth(int64_t k);
  void find_nucleus(float top_p, float min_p);
  double sum_heavy(float cutoff, Range& range) const;
  void pick_few(double target, const Range& range);
  void pick_equal(double target, const Range& range);
  template <class WeightsOf>
  int64_t find_lane(double uniform, int64_t num_vectors, WeightsOf&& weights_of) const;

  // Vectors whose weights are summed before they are added to those before.
  static constexpr int64_t kBlock = 64;
  // Numbers that are sorted rather than looked at in another pass over all.
  static constexpr int64_t kFew = 64;
  // Top-k up to this part of the vocabulary is collected; for more the k-th score's range is narrowed, which takes
  // about as long here: k = 768 of 49,152, 2,600 to 4,100 of 262,144.
  static constexpr int64_t kCollectedPart = 64;
  // Of SmolLM2's next tokens for six texts (temperature 0.8) some 250 have a weight of at least this, in 200 vectors of
  // 16, and 0.95 of all weight was always theirs; with temperature 1 and top-p 0.99 it was in 9 of 10 cases.
  static constexpr float kCutoff = 0x1p-16f;

  const Scores scores_;
  Bounds bounds_;
  bool has_nucleus_;
  Heavy heavy_;
  uint64_t* keys_;
  double* sums_;  // of blocks of vectors
};

inline Candidates::Candidates(const Scores& scores, const Warper& warper, Worker& worker)
    : scores_(scores), bounds_(scores.size), has_nucleus_(warper.top_p < 1.0f) {
  const bool has_top_k = 0 < warper.top_k && warper.top_k < scores.size;
  const int64_t num_vectors = (scores.size + kLanes - 1) / kLanes;
  const int64_t num_heavy = has_nucleus_ ? num_vectors + 1 : 0;
  const int64_t most_collected = has_top_k ? std::min(warper.top_k, scores.size / kCollectedPart) : 0;
  const int64_t num_sorted = std::max(kFew, num_keys(scores.size, most_collected));
  const int64_t num_sums = (num_vectors + kBlock - 1) / kBlock;
  Pieces pieces(worker.scratch(Pieces::bytes<float>(num_heavy * kLanes) + Pieces::bytes<int32_t>(num_heavy) +
                               Pieces::bytes<uint64_t>(num_sorted) + Pieces::bytes<double>(num_sums)));
  heavy_.weights = pieces.take<float>(num_heavy * kLanes);
  heavy_.ids = pieces.take<int32_t>(num_heavy);
  keys_ = pieces.take<uint64_t>(num_sorted);
  sums_ = pieces.take<double>(num_sums);
  if (has_top_k) bounds_.kth = find_kth(warper.top_k);
  bounds_.least = warper.min_p;
  if (has_nucleus_) find_nucleus(warper.top_p, warper.min_p);
}

// Weighs all tokens, and keeps the vectors that have a weight of at least `cutoff`. -> the sum of all weights that
// top-k and min-p leave.
inline double Candidates::collect(float cutoff) {
  LaneSums total;
  int64_t count = 0;
  // Each vector is stored, and stays if it counts: a branch would be hard to predict.
  const auto add = [&](int64_t id, F32 weights) {
    total.add(weights);
    store(heavy_.weights + count * kLanes, weights);
    heavy_.ids[count] = int32_t(id);
    count += any(broadcast(cutoff) <= weights);
  };
  if (bounds_.kth == -kInfinity && bounds_.least == 0.0f) {
    for_vectors(scores_.row, 0, scores_.size, [&](int64_t id, F32 x, Mask) { add(id, scores_.weigh(x)); });
  } else {
    const F32 least = broadcast(bounds_.least);
    for_vectors(scores_.row, 0, scores_.size, [&](int64_t id, F32 x, Mask) {
      const Mask admitted = bounds_.admit_scores(x);
      if (!any(admitted)) return;
      const F32 weights = scores_.weigh(x);
      add(id, select(admitted & (least <= weights), weights, zero()));
    });
  }
  heavy_.count = count;
  return total.total();
}

// Top-p. Looks at weights of at least kCutoff first; only if they do not suffice, at all that may count.
inline void Candidates::find_nucleus(float top_p, float min_p) {
  float cutoff = std::max(min_p, kCutoff);
  const double total = collect(cutoff);
  const double target = double(top_p) * total;
  Range range;
  double mass = sum_heavy(cutoff, range);
  if (mass < target) {
    // All lighter weights together are less than what may be left out.
    cutoff = std::max(min_p, float(0.999 * (1.0 - double(top_p)) * total / double(scores_.size)));
    collect(cutoff);
    mass = sum_heavy(cutoff, range);
  }
  if (mass < target) {  // by the sums' rounding
    bounds_.least = cutoff;
    return;
  }
  narrow(heavy_.weights, heavy_.count * kLanes, target, kFew, range, [](F32 weights) { return weights; });
  if (range.count <= kFew) {
    pick_few(target, range);
  } else {
    pick_equal(target, range);
  }
}

// The sum of the weights of at least `cutoff`, and their range.
inline double Candidates::sum_heavy(float cutoff, Range& range) const {
  LaneSums sums;
  F32 least = broadcast(1.0f);
  int64_t count = 0;
  for (int64_t i = 0; i < heavy_.count; ++i) {
    const F32 weights = load(heavy_.weights + i * kLanes);
    const Mask is_heavy = broadcast(cutoff) <= weights;
    sums.add(select(is_heavy, weights, zero()));
    least = min(least, select(is_heavy, weights, least));
    count += pelton::count(is_heavy);
  }
  range = {order_of(-reduce_max(zero() - least)), order_of(1.0f) + 1, count};
  return sums.total();
}

// The k-th highest score. 1 <= k < V.
inline float Candidates::find_kth(int64_t k) {
  if (k <= scores_.size / kCollectedPart) {
    select_largest(scores_.row, scores_.size, k, keys_);
    return number_of_key(keys_[k - 1]);
  }
  F32 lowest = broadcast(scores_.highest);
  int64_t count = 0;
  for_vectors(scores_.row, 0, scores_.size, [&](int64_t, F32 x, Mask) {
    const Mask is_finite = broadcast(-kInfinity) < x;
    lowest = min(lowest, select(is_finite, x, lowest));
    count += pelton::count(is_finite);
  });
  if (count < k) return -kInfinity;
  Range range{order_of(-reduce_max(zero() - lowest)), order_of(scores_.highest) + 1, count};
  narrow(scores_.row, scores_.size, double(k), kFew, range, [](F32) { return broadcast(1.0f); });
  if (range.count > kFew) return number_of(range.low);
  const F32 low = broadcast(number_of(range.low)), high = broadcast(number_of(range.high));
  int64_t num_keys = 0;
  for_vectors(scores_.row, 0, scores_.size, [&](int64_t id, F32 x, Mask) {
    for (uint32_t rest = bits((low <= x) & (x < high)); rest != 0; rest &= rest - 1) {
      const int64_t found = id + __builtin_ctz(rest);
      keys_[num_keys++] = rank_key(scores_.row[found], found);
    }
  });
  const int64_t rank = k - 1 - int64_t(range.above);
  std::nth_element(keys_, keys_ + rank, keys_ + num_keys, std::greater<uint64_t>());
  return number_of_key(keys_[rank]);
}

// Takes the nucleus's last from weights that are few.
inline void Candidates::pick_few(double target, const Range& range) {
  const F32 low = broadcast(number_of(range.low)), high = broadcast(number_of(range.high));
  int64_t num_keys = 0;
  for (int64_t i = 0; i < heavy_.count; ++i) {
    const F32 weights = load(heavy_.weights + i * kLanes);
    for (uint32_t rest = bits((low <= weights) & (weights < high)); rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      keys_[num_keys++] = rank_key(heavy_.weights[i * kLanes + lane], heavy_.ids[i] + lane);
    }
  }
  std::sort(keys_, keys_ + num_keys, std::greater<uint64_t>());
  bounds_.least = number_of(range.high);  // if there are none, by the sums' rounding
  double sum = range.above;
  for (int64_t i = 0; i < num_keys && sum < target; ++i) {
    bounds_.least = number_of_key(keys_[i]);
    bounds_.last = id_of_key(keys_[i]);
    sum += double(bounds_.least);
  }
}

// Takes the nucleus's last from weights that are equal: those of the lowest ids are in it.
inline void Candidates::pick_equal(double target, const Range& range) {
  bounds_.least = number_of(range.low);
  const double wanted = std::ceil((target - range.above) / double(bounds_.least));
  int64_t needed = std::clamp<int64_t>(int64_t(wanted), 1, range.count);
  for (int64_t i = 0; i < heavy_.count; ++i) {
    uint32_t equal = bits(load(heavy_.weights + i * kLanes) == broadcast(bounds_.least));
    const int num = __builtin_popcount(equal);
    if (needed <= num) {
      for (; needed > 1; --needed) equal &= equal - 1;
      bounds_.last = heavy_.ids[i] + __builtin_ctz(equal);
      return;
    }
    needed -= num;
  }
}

inline int32_t Candidates::draw(double uniform) const {
  if (has_nucleus_) {
    const int64_t lane = find_lane(uniform, heavy_.count, [&](int64_t i) {
      const F32 weights = load(heavy_.weights + i * kLanes);
      return select(bounds_.admit_weights(heavy_.ids[i], weights), weights, zero());
    });
    return heavy_.ids[lane / kLanes] + int32_t(lane % kLanes);
  }
  const int64_t num_vectors = (scores_.size + kLanes - 1) / kLanes;
  // Only a nucleus tells equal weights apart.
  return int32_t(find_lane(uniform, num_vectors, [&](int64_t i) {
    F32 weights = zero();
    for_vectors(scores_.row, i * kLanes, std::min((i + 1) * kLanes, scores_.size), [&](int64_t, F32 x, Mask) {
      const Mask admitted = bounds_.admit_scores(x);
      if (!any(admitted)) return;
      weights = scores_.weigh(x);
      weights = select(admitted & (broadcast(bounds_.least) <= weights), weights, zero());
    });
    return weights;
  }));
}

// Inverts the cumulative distribution of `num_vectors` vectors' weights. -> the lane's number among all. The target is
// kept strictly below the total, so that a lane is found that has a weight whatever the product rounds to.
template <class WeightsOf>
int64_t Candidates::find_lane(double uniform, int64_t num_vectors, WeightsOf&& weights_of) const {
  const int64_t num_blocks = (num_vectors + kBlock - 1) / kBlock;
  double total = 0.0;
  for (int64_t block = 0; block < num_blocks; ++block) {
    LaneSums sums;
    for (int64_t i = block * kBlock; i < std::min((block + 1) * kBlock, num_vectors); ++i) sums.add(weights_of(i));
    total += sums.total();
    sums_[block] = total;  // with those before
  }
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  const int64_t block = std::upper_bound(sums_, sums_ + num_blocks, target) - sums_;
  double sum = block > 0 ? sums_[block - 1] : 0.0;
  int64_t found = 0;  // the last with a weight, if the sum in this order stays below the block's
  for (int64_t i = block * kBlock; i < std::min((block + 1) * kBlock, num_vectors); ++i) {
    float weights[kLanes];
    store(weights, weights_of(i));
    for (int lane = 0; lane < kLanes; ++lane) {
      if (weights[lane] == 0.0f) continue;
      found = i * kLanes + lane;
      sum += double(weights[lane]);
      if (sum > target) return found;
    }
  }
  return found;
}

}  // namespace pelton
