// Rows of activations in eight bits, for products of integers.
//
// x is cut into groups along k. A group becomes q = round(x * (127 / max |x|)), to even on ties, and a scale
// max |x| / 127. If a number of the group is infinite or NaN, the scale is NaN, and so is every sum of the row; if all
// are below 2^-100, they count as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/panels.h"
#include "vec/vec.h"

namespace pelton {

struct GroupScale {
  float scale;
  int32_t sum;  // of q
};

// Where things are in a quantized row: q of all groups, the last one filled up with zeros, then a GroupScale for each.
struct QuantizedLayout {
  int64_t num_groups;
  int64_t scales_at;  // bytes
  int64_t row_bytes;  // whole cache lines

  QuantizedLayout(int64_t k, int64_t group)
      : num_groups(pelton::num_groups(k, group)),
        scales_at(num_groups * group),
        row_bytes((scales_at + num_groups * static_cast<int64_t>(sizeof(GroupScale)) + 63) / 64 * 64) {}
};

// kGroup numbers in bfloat16 -> q.
template <int kGroup>
GroupScale quantize_group(const uint16_t* x, std::byte* q) {
  constexpr int kPairs = kGroup / 2 / kLanes;
  // Without their signs, numbers are in the order of their bits, infinity and NaN above all others. The lower half of a
  // pair does not matter, but between pairs of equal upper halves.
  I32 bits = broadcast_int(0);
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i) {
    const I32 sizes = load_words(x + 2 * i * kLanes) & broadcast_int(0x7fff7fff);
    bits = max(bits, max(sizes, shift_left<16>(sizes)));
  }
  const uint32_t largest_bits = static_cast<uint32_t>(reduce_max(bits)) & 0xffff0000u;
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  if (!(largest >= kSmallest && largest < __builtin_inff())) {
    std::memset(q, 0, kGroup);
    return {largest < kSmallest ? 0.0f : __builtin_nanf(""), 0};
  }
  const F32 factor = broadcast(127.0f / largest);
  I32 sum = broadcast_int(0);
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i) {
    const Pairs pairs = load_pairs(x + 2 * i * kLanes);
    const I32 even = to_int(low_elements(pairs) * factor), odd = to_int(high_elements(pairs) * factor);
    sum = sum + (even + odd);
    store_low_halves(q + 2 * i * kLanes, (even & broadcast_int(0xff)) | shift_left<8>(odd));
  }
  return {largest / 127.0f, reduce_add(sum)};
}

// A row of k bfloat16 numbers -> `row`, laid out as above.
template <int kGroup>
void quantize_row(const uint16_t* x, int64_t k, std::byte* row) {
  const QuantizedLayout layout(k, kGroup);
  auto* scales = reinterpret_cast<GroupScale*>(row + layout.scales_at);
  int64_t at = 0;
  for (; at + kGroup <= k; at += kGroup) *scales++ = quantize_group<kGroup>(x + at, row + at);
  if (at < k) {
    uint16_t rest[kGroup] = {};
    std::memcpy(rest, x + at, static_cast<size_t>(k - at) * sizeof(uint16_t));
    *scales = quantize_group<kGroup>(rest, row + at);
  }
}

}  // namespace pelton
