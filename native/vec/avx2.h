// Vectors of AVX2 with FMA: 8 lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace pelton {

inline constexpr int kLanes = 8;

struct F32 {
  __m256 v;
};
struct I32 {
  __m256i v;
};
struct Mask {
  __m256i m = {};  // all bits of a lane are set, or none
};

// The first n lanes, 0 <= n; all of them from kLanes on.
inline Mask first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n >= kLanes ? kLanes : int32_t(n)), lane)};
}

inline F32 zero() { return {_mm256_setzero_ps()}; }
inline F32 broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F32 load(const float* p, Mask mask) { return {_mm256_maskload_ps(p, mask.m)}; }  // other lanes: 0, not read
inline void store(float* p, F32 x) { _mm256_storeu_ps(p, x.v); }
inline void store(float* p, F32 x, Mask mask) { _mm256_maskstore_ps(p, mask.m, x.v); }
inline float first_lane(F32 a) { return _mm256_cvtss_f32(a.v); }

inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }                // b if one is NaN
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }                // b if one is NaN
inline F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }

inline Mask operator<(F32 a, F32 b) { return {_mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))}; }
inline Mask operator<=(F32 a, F32 b) { return {_mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ))}; }
inline Mask operator==(F32 a, F32 b) { return {_mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ))}; }
inline Mask is_nan(F32 a) { return {_mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q))}; }
inline Mask operator&(Mask a, Mask b) { return {_mm256_and_si256(a.m, b.m)}; }
inline Mask operator|(Mask a, Mask b) { return {_mm256_or_si256(a.m, b.m)}; }
inline Mask operator~(Mask a) { return {_mm256_xor_si256(a.m, _mm256_set1_epi32(-1))}; }
inline bool any(Mask a) { return !_mm256_testz_si256(a.m, a.m); }
inline uint32_t bits(Mask a) { return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(a.m))); }  // bit i is lane i
inline int count(Mask a) { return __builtin_popcount(bits(a)); }
inline Mask from_bits(uint32_t bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return {_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int32_t(bits)), bit), bit)};
}
inline F32 select(Mask mask, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(mask.m))}; }

inline I32 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I32 load_words(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
inline void store_words(void* p, I32 a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a.v); }
// The lower halves of the lanes.
inline void store_low_halves(void* p, I32 a) {
  const __m256i low = _mm256_and_si256(a.v, _mm256_set1_epi32(0xffff));
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I32 operator-(I32 a, I32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
inline I32 operator|(I32 a, I32 b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int N>
I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.v, N)};
}
template <int N>
I32 shift_right(I32 a) {  // arithmetic
  return {_mm256_srai_epi32(a.v, N)};
}
inline I32 max(I32 a, I32 b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline I32 to_int(F32 a) { return {_mm256_cvtps_epi32(a.v)}; }  // to nearest, even on ties; a fits an int32
inline F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I32 as_int(F32 a) { return {_mm256_castps_si256(a.v)}; }
inline F32 as_float(I32 a) { return {_mm256_castsi256_ps(a.v)}; }
// x * 2^n for whole numbers |n| <= 250, rounded once if x is in [1/2, 2].
inline F32 scale_by_power(F32 x, F32 n) {
  const I32 power = to_int(n), half = shift_right<1>(power), bias = broadcast_int(127);
  return x * as_float(shift_left<23>(half + bias)) * as_float(shift_left<23>(power - half + bias));
}

// Over the lanes, in one fixed order.
inline float reduce_add(F32 a) {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float reduce_max(F32 a) {  // of lanes without NaN
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
inline int32_t reduce_add(I32 a) {
  const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  const __m128i c = _mm_add_epi32(b, _mm_unpackhi_epi64(b, b));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 1)));
}
inline int32_t reduce_max(I32 a) {
  const __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  const __m128i c = _mm_max_epi32(b, _mm_unpackhi_epi64(b, b));
  return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 1)));
}

// bfloat16: the upper half of a float32. Stores round to nearest, even on ties; NaN stays NaN.
inline __m256i bf16_words(F32 x) {
  const __m256i word = _mm256_castps_si256(x.v), upper = _mm256_srli_epi32(word, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, is_nan(x).m);
}
inline void store_bf16(uint16_t* p, F32 x) {
  const __m256i words = bf16_words(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline void store_bf16(uint16_t* p, F32 x, Mask mask) {
  alignas(16) uint16_t lanes[kLanes];
  store_bf16(lanes, x);
  for (uint32_t left = bits(mask); left != 0; left &= left - 1) p[__builtin_ctz(left)] = lanes[__builtin_ctz(left)];
}

// Rounded to bfloat16 and widened again.
inline F32 round_to_bf16(F32 x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(bf16_words(x), 16))}; }

// Pairs of bfloat16, one pair in each lane: element 2i in the low half, element 2i + 1 in the high half.
struct Pairs {
  __m256i v;
};
inline Pairs load_pairs(const uint16_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Pairs load_pairs(const uint16_t* p, Mask mask) {
  return {_mm256_maskload_epi32(reinterpret_cast<const int*>(p), mask.m)};
}
inline Pairs broadcast_pair(const uint16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return {_mm256_set1_epi32(pair)};
}
inline F32 low_elements(Pairs a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a.v, 16))}; }
inline F32 high_elements(Pairs a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(a.v, _mm256_set1_epi32(int32_t(0xffff0000))))};
}
// sum + a0 * b0 + a1 * b1 in each lane, always in the same order.
inline F32 dot(F32 sum, Pairs a, Pairs b) {
  return fma(high_elements(a), high_elements(b), fma(low_elements(a), low_elements(b), sum));
}
inline constexpr bool kHasDot = false;  // it is two fma
inline constexpr bool is_dot_fast() { return false; }

struct [[maybe_unused]] FlushDenormals {};  // for a level whose `dot` does that

// Products of four unsigned bytes in each lane with four signed ones, the same for all lanes. All sums are exact. The
// instruction that multiplies bytes adds two products with saturation, so bytes 0 and 2, and 1 and 3, become 16 bits.
struct Bytes {
  struct Unsigned {
    __m256i even;
    __m256i odd;
  };
  using Signed = Unsigned;
  using Sums = I32;
  static Sums start(int32_t x) { return broadcast_int(x); }
  static Unsigned split(I32 words) {
    return {_mm256_and_si256(words.v, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(words.v, 8)};
  }
  static Signed broadcast(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    const __m256i all = _mm256_set1_epi32(bytes);
    return {_mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), _mm256_srai_epi16(all, 8)};
  }
  static Sums add(Sums sums, Unsigned a, Signed b) {
    const __m256i even = _mm256_madd_epi16(a.even, b.even), odd = _mm256_madd_epi16(a.odd, b.odd);
    return {_mm256_add_epi32(_mm256_add_epi32(sums.v, even), odd)};
  }
  static I32 total(Sums sums) { return sums; }
};
// The same for unsigned bytes up to 15, from zero and at most eight times: sums of 16 products fit 16 bits.
struct Nibbles {
  using Unsigned = I32;
  struct Signed {
    __m256i v;
  };
  struct Sums {
    __m256i v;
  };
  static Sums start(int32_t zero) { return {_mm256_set1_epi32(zero)}; }
  static Unsigned split(I32 words) { return words; }
  static Signed broadcast(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    return {_mm256_set1_epi32(bytes)};
  }
  static Sums add(Sums sums, Unsigned a, Signed b) {
    return {_mm256_add_epi16(sums.v, _mm256_maddubs_epi16(a.v, b.v))};
  }
  static I32 total(Sums sums) { return {_mm256_madd_epi16(sums.v, _mm256_set1_epi16(1))}; }
};

// Finite float16 numbers.
inline F32 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace pelton
