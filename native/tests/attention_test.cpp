// Checks that attention over bfloat16 has the same bits by `dot` as by two `fma`: a processor uses the faster one. For
// a level with an instruction for `dot`. The exit status is the number of failed checks, 100 at most.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "ops/attention_kernels.h"

namespace pelton {
namespace {

constexpr float kScale = 0.2f;

struct Case {
  int num_rows;
  int64_t head_size;
  Sight sight;
  std::vector<uint16_t> queries, keys, values;
};

// Elements of all sizes, denormal ones too.
std::vector<uint16_t> random_elements(std::mt19937& random, size_t num, int max_exponent) {
  std::vector<uint16_t> elements(num);
  for (uint16_t& element : elements) {
    const uint32_t bits = uint32_t(random()), exponent = random() % 4 == 0 ? bits % 3 : max_exponent - bits % 9;
    element = uint16_t((bits >> 16 & 0x807f) | exponent << 7);
  }
  return elements;
}

Case random_case(std::mt19937& random) {
  const int group = 1 + int(random() % 4), num_rows = group * (1 + int(random() % 10));
  const int64_t head_size = 8 << random() % 5;
  const int first_high = 1 + int(random() % kPartition), window = random() % 2 == 0 ? 4 * kPartition : 40;
  const size_t num_elements = size_t(kPartition) * size_t(head_size);
  return {num_rows,
          head_size,
          {group, first_high - window, first_high},
          random_elements(random, size_t(num_rows) * size_t(head_size), 129),
          random_elements(random, num_elements, 129),
          random_elements(random, num_elements, random() % 2 == 0 ? 129 : 12)};
}

// -> maxima, totals and sums of all rows.
template <class Cache>
std::vector<float> attend(const Case& item) {
  const int num_rows = item.num_rows;
  const int64_t size = item.head_size, stride = (size + kLanes - 1) / kLanes * kLanes;
  const uint16_t *keys[kPartitionTiles], *values[kPartitionTiles];
  for (int i = 0; i < kPartitionTiles; ++i) {
    keys[i] = item.keys.data() + i * kTile * size;
    values[i] = item.values.data() + i * kTile * size;
  }
  std::vector<typename Cache::Operand> queries(item.queries.size()), weights(size_t(num_rows) * kScoreStride);
  std::transform(item.queries.begin(), item.queries.end(), queries.begin(), Cache::widen);
  std::vector<float> scores(size_t(num_rows) * kScoreStride), results(size_t(num_rows) * size_t(2 + stride));
  const int low = item.sight.low(0), high = item.sight.high(num_rows - 1), last_tile = (high + kTile - 1) / kTile;
  score_tiles<Cache>(queries.data(), num_rows, size, keys, nullptr, low / kTile, last_tile, item.sight, scores.data());
  for (int row = 0; row < num_rows; ++row) {
    const int row_low = item.sight.low(row), row_high = item.sight.high(row);
    float *max_score = &results[size_t(2 * row)], *total = max_score + 1, *of_row = &scores[size_t(row) * kScoreStride];
    *max_score = prepare_scores(of_row, row_low, row_high, kScale, 0.0f);
    *total =
        soften<Cache>(of_row, row_low, row_high, low, high, kScale, *max_score, &weights[size_t(row) * kScoreStride]);
  }
  add_values<Cache>(weights.data(), num_rows, values, nullptr, low / 2, (high + 1) / 2, item.sight, size,
                    &results[size_t(2 * num_rows)], stride);
  for (float& x : results) x += 0.0f;  // as attention does: signs of zeros depend on the rows that are summed together
  return results;
}

int run() {
  const FlushDenormals flushing;
  std::mt19937 random(7);
  int num_failures = 0, num_finite = 0;
  for (int i = 0; i < 2000; ++i) {
    const Case item = random_case(random);
    const std::vector<float> a = attend<BFloat16Cache>(item), b = attend<BFloat16DotCache>(item);
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) ++num_failures;
    num_finite += std::any_of(a.begin(), a.end(), [](float x) { return x != 0.0f && std::isfinite(x); });
  }
  std::printf("%d of 2000 differ, %d have finite results\n", num_failures, num_finite);
  return std::min(num_failures + (num_finite < 1900), 100);
}

}  // namespace
}  // namespace pelton

int main() { return pelton::run(); }
