// float16 numbers one at a time, in integer arithmetic: the same on every level.
#pragma once

#include <cstdint>
#include <cstring>

namespace pelton {

inline bool is_finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Of a finite number.
inline float half_to_float(uint16_t half) {
  const uint32_t size = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  uint32_t word = (size << 13) + ((127u - 15u) << 23);
  float value = static_cast<float>(size) * 0x1p-24f;
  if (size < 0x400) std::memcpy(&word, &value, sizeof(word));
  word |= sign;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// To nearest, even on ties; infinite from 65520 on. Not of NaN.
inline uint16_t to_half(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof(word));
  const uint32_t sign = word >> 16 & 0x8000u, size = word & 0x7fffffffu;
  if (size >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65536 on
  // What is dropped: 13 bits, or more where the result is a denormal number.
  const uint32_t exponent = size >> 23;
  const uint32_t num_bits = exponent > 112 ? 13 : 126 - exponent;
  if (num_bits > 24) return static_cast<uint16_t>(sign);
  const uint32_t whole = exponent > 112 ? size - (112u << 23) : (size & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (num_bits - 1), odd = whole >> num_bits & 1u;
  return static_cast<uint16_t>(sign | ((whole + half - 1u + odd) >> num_bits));
}

}  // namespace pelton
