// Vectors of AVX-512 with BF16: 16 lanes.
#pragma once

// GCC 12 takes the undefined vectors inside its own intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>
#include <cstring>

namespace pelton {

inline constexpr int kLanes = 16;

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 m;
};

// The first n lanes, 0 <= n; all of them from kLanes on.
inline Mask first_lanes(int64_t n) { return {n >= kLanes ? __mmask16(0xffff) : __mmask16((1u << n) - 1u)}; }

inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32 load(const float* p, Mask mask) { return {_mm512_maskz_loadu_ps(mask.m, p)}; }  // other lanes: 0, not read
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
inline void store(float* p, F32 x, Mask mask) { _mm512_mask_storeu_ps(p, mask.m, x.v); }
inline float first_lane(F32 a) { return _mm512_cvtss_f32(a.v); }

inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }                // b if one is NaN
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }                // b if one is NaN
inline F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }

inline Mask operator<(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator<=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline Mask operator==(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask is_nan(F32 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline Mask operator&(Mask a, Mask b) { return {__mmask16(a.m & b.m)}; }
inline Mask operator|(Mask a, Mask b) { return {__mmask16(a.m | b.m)}; }
inline Mask operator~(Mask a) { return {__mmask16(~a.m)}; }
inline bool any(Mask a) { return a.m != 0; }
inline int count(Mask a) { return __builtin_popcount(a.m); }
inline uint32_t bits(Mask a) { return a.m; }  // bit i is lane i
inline Mask from_bits(uint32_t bits) { return {__mmask16(bits)}; }
inline F32 select(Mask mask, F32 yes, F32 no) { return {_mm512_mask_blend_ps(mask.m, no.v, yes.v)}; }

inline I32 broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I32 load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_words(void* p, I32 a) { _mm512_storeu_si512(p, a.v); }
// The lower halves of the lanes.
inline void store_low_halves(void* p, I32 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
inline I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I32 operator|(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
I32 shift_right(I32 a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, N)};
}
inline I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline I32 to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, even on ties; a fits an int32
inline F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I32 as_int(F32 a) { return {_mm512_castps_si512(a.v)}; }
inline F32 as_float(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
// x * 2^n for whole numbers |n| <= 250, rounded once if x is in [1/2, 2].
inline F32 scale_by_power(F32 x, F32 n) { return {_mm512_scalef_ps(x.v, n.v)}; }

// Over the lanes, in one fixed order.
inline float reduce_add(F32 a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float reduce_max(F32 a) { return _mm512_reduce_max_ps(a.v); }  // of lanes without NaN
inline int32_t reduce_add(I32 a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t reduce_max(I32 a) { return _mm512_reduce_max_epi32(a.v); }

// bfloat16: the upper half of a float32. Stores round to nearest, even on ties; NaN stays NaN, denormals become zero.
inline void store_bf16(uint16_t* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
}
inline void store_bf16(uint16_t* p, F32 x, Mask mask) {
  _mm256_mask_storeu_epi16(p, mask.m, (__m256i)_mm512_cvtneps_pbh(x.v));
}

// Rounded to bfloat16 and widened again.
inline F32 round_to_bf16(F32 x) {
  const __m512i words = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x.v));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
}

// Pairs of bfloat16, one pair in each lane: element 2i in the low half, element 2i + 1 in the high half.
struct Pairs {
  __m512i v;
};
inline Pairs load_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline Pairs load_pairs(const uint16_t* p, Mask mask) { return {_mm512_maskz_loadu_epi32(mask.m, p)}; }
inline Pairs broadcast_pair(const uint16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
inline F32 low_elements(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
inline F32 high_elements(Pairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(int32_t(0xffff0000))))};
}
// sum + a1 * b1 + a0 * b0 in each lane, in this order; denormals count as 0.
inline F32 dot(F32 sum, Pairs a, Pairs b) { return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)}; }
// Whether `dot` is faster than two `fma`. Their bits are the same while `FlushDenormals` lives. On an Intel Xeon with
// AMX an `fma` takes 0.18 ns, a `dot` 0.6. Others are taken to have a fast one; none was measured.
inline constexpr bool kHasDot = true;
inline bool is_dot_fast() { return __builtin_cpu_is("intel") == 0; }

// While one lives, denormals count as 0 in this thread.
class FlushDenormals {
 public:
  FlushDenormals() : old_(_mm_getcsr()) { _mm_setcsr(old_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(old_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  unsigned old_;
};

// Products of four unsigned bytes in each lane with four signed ones, the same for all lanes. All sums are exact.
struct Bytes {
  using Unsigned = I32;
  struct Signed {
    __m512i v;
  };
  using Sums = I32;
  static Sums start(int32_t x) { return broadcast_int(x); }
  static Unsigned split(I32 words) { return words; }
  static Signed broadcast(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, 4);
    return {_mm512_set1_epi32(bytes)};
  }
  // By the intrinsic, GCC 12 copies registers around every one of them: 14 % slower with 12 sums.
  static Sums add(Sums sums, Unsigned a, Signed b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(a.v), "v"(b.v));
    return sums;
  }
  static I32 total(Sums sums) { return sums; }
};
// The same for unsigned bytes up to 15, from zero and at most eight times.
using Nibbles = Bytes;

// Finite float16 numbers.
inline F32 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace pelton
