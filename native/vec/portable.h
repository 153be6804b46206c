// Vectors of the compiler's own vector types: 4 lanes, one register of SSE2 or NEON. Wider ones than the machine's
// registers would live in memory.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace pelton {

inline constexpr int kLanes = 4;

typedef float FloatVector __attribute__((vector_size(16)));
typedef int32_t IntVector __attribute__((vector_size(16)));
typedef uint32_t UIntVector __attribute__((vector_size(16)));
typedef uint16_t HalfVector __attribute__((vector_size(8)));

struct F32 {
  FloatVector v;
};
struct I32 {
  IntVector v;
};
struct Mask {
  IntVector m = {};  // all bits of a lane are set, or none
};

// The first n lanes, 0 <= n; all of them from kLanes on.
inline Mask first_lanes(int64_t n) {
  const int32_t end = n >= kLanes ? kLanes : int32_t(n);
  return {IntVector{0, 1, 2, 3} < IntVector{end, end, end, end}};
}

inline F32 zero() { return {FloatVector{}}; }
inline F32 broadcast(float x) { return {FloatVector{x, x, x, x}}; }
inline F32 load(const float* p) {
  F32 x;
  std::memcpy(&x.v, p, sizeof(x.v));
  return x;
}
inline F32 load(const float* p, Mask mask) {  // other lanes: 0, not read
  F32 x = zero();
  for (int i = 0; i < kLanes; ++i) {
    if (mask.m[i] != 0) x.v[i] = p[i];
  }
  return x;
}
inline void store(float* p, F32 x) { std::memcpy(p, &x.v, sizeof(x.v)); }
inline void store(float* p, F32 x, Mask mask) {
  for (int i = 0; i < kLanes; ++i) {
    if (mask.m[i] != 0) p[i] = x.v[i];
  }
}
inline float first_lane(F32 a) { return a.v[0]; }

inline I32 broadcast_int(int32_t x) { return {IntVector{x, x, x, x}}; }
inline I32 load_words(const void* p) {
  I32 a;
  std::memcpy(&a.v, p, sizeof(a.v));
  return a;
}
inline void store_words(void* p, I32 a) { std::memcpy(p, &a.v, sizeof(a.v)); }
// The lower halves of the lanes.
inline void store_low_halves(void* p, I32 a) {
  const HalfVector halves = __builtin_convertvector(UIntVector(a.v) & 0xffff, HalfVector);
  std::memcpy(p, &halves, sizeof(halves));
}
inline I32 operator+(I32 a, I32 b) { return {IntVector(UIntVector(a.v) + UIntVector(b.v))}; }
inline I32 operator-(I32 a, I32 b) { return {IntVector(UIntVector(a.v) - UIntVector(b.v))}; }
inline I32 operator&(I32 a, I32 b) { return {a.v & b.v}; }
inline I32 operator|(I32 a, I32 b) { return {a.v | b.v}; }
template <int N>
I32 shift_left(I32 a) {
  return {IntVector(UIntVector(a.v) << N)};
}
template <int N>
I32 shift_right(I32 a) {  // arithmetic
  return {a.v >> N};
}
inline I32 as_int(F32 a) { return {IntVector(a.v)}; }
inline F32 as_float(I32 a) { return {FloatVector(a.v)}; }

inline Mask operator<(F32 a, F32 b) { return {a.v < b.v}; }
inline Mask operator<=(F32 a, F32 b) { return {a.v <= b.v}; }
inline Mask operator==(F32 a, F32 b) { return {a.v == b.v}; }
inline Mask is_nan(F32 a) { return {a.v != a.v}; }
inline Mask operator&(Mask a, Mask b) { return {a.m & b.m}; }
inline Mask operator|(Mask a, Mask b) { return {a.m | b.m}; }
inline Mask operator~(Mask a) { return {~a.m}; }
inline uint32_t bits(Mask a) {  // bit i is lane i
  const IntVector bit = a.m & IntVector{1, 2, 4, 8};
  return uint32_t((bit[0] | bit[1]) | (bit[2] | bit[3]));
}
inline bool any(Mask a) {
  uint64_t halves[2];
  std::memcpy(halves, &a.m, sizeof(halves));
  return (halves[0] | halves[1]) != 0;
}
inline int count(Mask a) { return -(a.m[0] + a.m[1] + a.m[2] + a.m[3]); }
inline Mask from_bits(uint32_t bits) {
  const IntVector bit = {1, 2, 4, 8};
  return {(broadcast_int(int32_t(bits)).v & bit) == bit};
}
inline F32 select(Mask mask, F32 yes, F32 no) {
  return {FloatVector((IntVector(yes.v) & mask.m) | (IntVector(no.v) & ~mask.m))};
}

inline F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
inline F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
inline F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
inline F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }  // a * b + c, rounded twice
inline F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }   // b if one is NaN
inline F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }   // b if one is NaN
inline F32 sqrt(F32 a) {
  return {
      FloatVector{__builtin_sqrtf(a.v[0]), __builtin_sqrtf(a.v[1]), __builtin_sqrtf(a.v[2]), __builtin_sqrtf(a.v[3])}};
}
inline I32 max(I32 a, I32 b) {
  const IntVector is_more = a.v > b.v;
  return {(a.v & is_more) | (b.v & ~is_more)};
}
inline F32 round(F32 a) {
  const I32 sign = as_int(a) & broadcast_int(INT32_MIN);
  const F32 size = as_float(as_int(a) & broadcast_int(INT32_MAX)), whole = broadcast(0x1p23f);
  return as_float(as_int(select(size < whole, size + whole - whole, size)) | sign);
}
inline I32 to_int(F32 a) {  // to nearest, even on ties; a fits an int32
  return {__builtin_convertvector(round(a).v, IntVector)};
}
inline F32 to_float(I32 a) { return {__builtin_convertvector(a.v, FloatVector)}; }
// x * 2^n for whole numbers |n| <= 250, rounded once if x is in [1/2, 2].
inline F32 scale_by_power(F32 x, F32 n) {
  const I32 power = {__builtin_convertvector(n.v, IntVector)}, half = shift_right<1>(power), bias = broadcast_int(127);
  return x * as_float(shift_left<23>(half + bias)) * as_float(shift_left<23>(power - half + bias));
}

// Over the lanes, in one fixed order.
inline float reduce_add(F32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float reduce_max(F32 a) {  // of lanes without NaN
  const float even = a.v[0] > a.v[2] ? a.v[0] : a.v[2], odd = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return even > odd ? even : odd;
}
inline int32_t reduce_add(I32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline int32_t reduce_max(I32 a) {
  const int32_t even = a.v[0] > a.v[2] ? a.v[0] : a.v[2], odd = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return even > odd ? even : odd;
}

// bfloat16: the upper half of a float32. Stores round to nearest, even on ties; NaN stays NaN.
inline UIntVector bf16_words(F32 x) {
  const UIntVector word = UIntVector(x.v), upper = word >> 16, nan = UIntVector(is_nan(x).m);
  const UIntVector rounded = (word + ((upper & 1) + 0x7fff)) >> 16;
  return (rounded & ~nan) | ((upper | 0x40) & nan);
}
inline void store_bf16(uint16_t* p, F32 x) {
  const HalfVector halves = __builtin_convertvector(bf16_words(x), HalfVector);
  std::memcpy(p, &halves, sizeof(halves));
}
inline void store_bf16(uint16_t* p, F32 x, Mask mask) {
  uint16_t lanes[kLanes];
  store_bf16(lanes, x);
  for (int i = 0; i < kLanes; ++i) {
    if (mask.m[i] != 0) p[i] = lanes[i];
  }
}

// Rounded to bfloat16 and widened again.
inline F32 round_to_bf16(F32 x) { return {FloatVector(bf16_words(x) << 16)}; }

// Pairs of bfloat16, one pair in each lane: element 2i in the low half, element 2i + 1 in the high half.
struct Pairs {
  UIntVector v;
};
inline Pairs load_pairs(const uint16_t* p) {
  Pairs pairs;
  std::memcpy(&pairs.v, p, sizeof(pairs.v));
  return pairs;
}
inline Pairs load_pairs(const uint16_t* p, Mask mask) {
  Pairs pairs = {};
  for (int i = 0; i < kLanes; ++i) {
    if (mask.m[i] != 0) pairs.v[i] = p[2 * i] | uint32_t(p[2 * i + 1]) << 16;
  }
  return pairs;
}
inline Pairs broadcast_pair(const uint16_t* p) {
  const uint32_t pair = p[0] | uint32_t(p[1]) << 16;
  return {UIntVector{pair, pair, pair, pair}};
}
inline F32 low_elements(Pairs a) { return {FloatVector(a.v << 16)}; }
inline F32 high_elements(Pairs a) { return {FloatVector(a.v & 0xffff0000)}; }
// sum + a0 * b0 + a1 * b1 in each lane, always in the same order.
inline F32 dot(F32 sum, Pairs a, Pairs b) {
  return fma(high_elements(a), high_elements(b), fma(low_elements(a), low_elements(b), sum));
}
inline constexpr bool kHasDot = false;  // it is two fma
inline constexpr bool is_dot_fast() { return false; }

struct [[maybe_unused]] FlushDenormals {};  // for a level whose `dot` does that

// The products of the signed halves of each lane, summed. The compiler does not find the instruction by itself.
inline IntVector multiply_halves(IntVector a, IntVector b) {
#if defined(__SSE2__)
  return IntVector(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
  const auto low = [](IntVector x) { return IntVector(UIntVector(x) << 16) >> 16; };
  return low(a) * low(b) + (a >> 16) * (b >> 16);
#endif
}
// Products of four unsigned bytes in each lane with four signed ones, the same for all lanes. All sums are exact. Bytes
// 0 and 2, and 1 and 3, become 16 bits.
struct Bytes {
  struct Unsigned {
    IntVector even;
    IntVector odd;
  };
  using Signed = Unsigned;
  using Sums = I32;
  static Sums start(int32_t x) { return broadcast_int(x); }
  static Unsigned split(I32 words) {
    const UIntVector all = UIntVector(words.v);
    return {IntVector(all & 0x00ff00ff), IntVector((all >> 8) & 0x00ff00ff)};
  }
  static Signed broadcast(const void* p) {
    int8_t x[4];
    std::memcpy(x, p, sizeof(x));
    const auto both = [](int8_t low, int8_t high) {
      return broadcast_int(int32_t(uint32_t(uint16_t(low)) | uint32_t(uint16_t(high)) << 16)).v;
    };
    return {both(x[0], x[2]), both(x[1], x[3])};
  }
  static Sums add(Sums sums, Unsigned a, Signed b) {
    return {sums.v + multiply_halves(a.even, b.even) + multiply_halves(a.odd, b.odd)};
  }
  static I32 total(Sums sums) { return sums; }
};
// The same for unsigned bytes up to 15, from zero and at most eight times.
using Nibbles = Bytes;

// Finite float16 numbers.
inline F32 load_half(const uint16_t* p) {
  HalfVector halves;
  std::memcpy(&halves, p, sizeof(halves));
  const I32 words = {__builtin_convertvector(halves, IntVector)}, size = words & broadcast_int(0x7fff);
  const F32 normal = as_float(shift_left<13>(size) + broadcast_int((127 - 15) << 23));
  const F32 denormal = to_float(size) * broadcast(0x1p-24f);
  const F32 value = select(Mask{size.v < broadcast_int(0x400).v}, denormal, normal);
  return as_float(as_int(value) | shift_left<16>(words & broadcast_int(0x8000)));
}

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace pelton
