// exp, log and tanh of vectors, within 2 units in the last place; exp2; sine and cosine of a number. Included by
// vec/vec.h after the level's vectors.
//
// The polynomials are minimax fits (weighted for relative error) of the functions named beside them; each adds less
// than 0.2 units to the error of a result.
#pragma once

namespace pelton {

// Overflows to infinity, NaN stays NaN.
inline F32 exp(F32 x) {
  // Beyond these exp(x) is 0 or infinite. x comes second, so that NaN passes.
  x = max(broadcast(-104.0f), min(broadcast(89.0f), x));
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to a whole number. The upper part of ln 2 has 9 bits,
  // so that n times it is exact.
  const F32 rounder = broadcast(12582912.0f);
  const F32 n = fma(x, broadcast(1.44269504f), rounder) - rounder;
  const F32 r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), x));
  F32 p = broadcast(0.00138145988f);  // (exp(r) - 1 - r) / r^2
  p = fma(p, r, broadcast(0.00836871658f));
  p = fma(p, r, broadcast(0.0416683890f));
  p = fma(p, r, broadcast(0.166665211f));
  p = fma(p, r, broadcast(0.499999940f));
  return scale_by_power(fma(p, r * r, r) + broadcast(1.0f), n);
}

// 2^x for x <= 128; 1 at 0, and 0 of minus infinity; NaN stays NaN. A polynomial of degree 6 is within 2 units in the
// last place, one of degree 4 within 2^-18 of the result: enough for what is then rounded to bfloat16.
template <int kDegree>
inline F32 exp2(F32 x) {
  static_assert(kDegree == 4 || kDegree == 6);
  x = max(broadcast(-152.0f), x);  // of which 2^x is 0; x comes second, so that NaN passes
  // x = n + r with |r| <= 1 / 2. Adding 1.5 * 2^23 rounds to a whole number.
  const F32 rounder = broadcast(12582912.0f);
  const F32 n = (x + rounder) - rounder, r = x - n;
  F32 p;  // (2^r - 1) / r
  if constexpr (kDegree == 4) {
    p = fma(broadcast(0.00958285574f), r, broadcast(0.0559064299f));
    p = fma(p, r, broadcast(0.240240991f));
    p = fma(p, r, broadcast(0.693124175f));
  } else {
    p = fma(broadcast(0.000153533634f), r, broadcast(0.0013398875f));
    p = fma(p, r, broadcast(0.00961843692f));
    p = fma(p, r, broadcast(0.0555033237f));
    p = fma(p, r, broadcast(0.240226477f));
    p = fma(p, r, broadcast(0.693147182f));
  }
  return scale_by_power(fma(p, r, broadcast(1.0f)), n);
}

// log(0) is minus infinity, of negative numbers NaN; NaN stays NaN.
inline F32 log(F32 x) {
  const F32 infinity = broadcast(__builtin_inff());
  // A denormal number becomes a normal one.
  const Mask is_small = x < broadcast(0x1p-126f);
  const F32 scaled = select(is_small, x * broadcast(0x1p23f), x);
  // scaled = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  const I32 root_half = broadcast_int(0x3f3504f3);
  const I32 steps = as_int(scaled) - root_half;
  const F32 e = to_float(shift_right<23>(steps)) - select(is_small, broadcast(23.0f), zero());
  const F32 f = as_float((steps & broadcast_int(0x7fffff)) + root_half) - broadcast(1.0f);
  F32 p = broadcast(-0.0763461366f);  // (log(1 + f) - f + f^2 / 2) / f^3
  p = fma(p, f, broadcast(0.127617523f));
  p = fma(p, f, broadcast(-0.131602228f));
  p = fma(p, f, broadcast(0.142017379f));
  p = fma(p, f, broadcast(-0.166233510f));
  p = fma(p, f, broadcast(0.200012282f));
  p = fma(p, f, broadcast(-0.250008225f));
  p = fma(p, f, broadcast(0.333333313f));
  const F32 square = f * f;
  F32 small = fma(e, broadcast(-2.12194440e-4f), p * (square * f));
  small = fma(square, broadcast(-0.5f), small);
  const F32 result = fma(e, broadcast(0.693359375f), f + small);
  const F32 finite = select(x == zero(), zero() - infinity, select(x < zero(), broadcast(__builtin_nanf("")), result));
  return select(x < infinity, finite, x);
}

// Keeps the sign of zero; NaN stays NaN.
inline F32 tanh(F32 x) {
  const I32 sign = as_int(x) & broadcast_int(INT32_MIN);
  const F32 size = as_float(as_int(x) & broadcast_int(INT32_MAX));
  const F32 square = size * size;
  F32 p = broadcast(-0.00570498686f);  // (tanh(sqrt(square)) / sqrt(square) - 1) / square up to 0.625
  p = fma(p, square, broadcast(0.0206390880f));
  p = fma(p, square, broadcast(-0.0537397154f));
  p = fma(p, square, broadcast(0.133314416f));
  p = fma(p, square, broadcast(-0.333332807f));
  const F32 near = fma(p, square * size, size);
  const F32 one = broadcast(1.0f), two = broadcast(2.0f);
  const F32 far = one - two / (exp(size + size) + one);
  return as_float(as_int(select(size < broadcast(0.625f), near, far)) | sign);
}

// The bits that a lane of a vector gets.
inline float exp_scalar(float x) { return first_lane(exp(broadcast(x))); }
inline float exp2_scalar(float x) { return first_lane(exp2<6>(broadcast(x))); }
inline float log_scalar(float x) { return first_lane(log(broadcast(x))); }

struct SinCos {
  float sin;
  float cos;
};

// Of one angle, in float64: rounded to float32 the error is half a unit in the last place and some 1e-11, for |x| up to
// 2^31. Branches would keep the compiler from computing several angles at once; the operations on one are the same
// then.
inline SinCos sin_cos(float x) {
  // x = n pi / 2 + r with |r| <= pi / 4. Adding 1.5 * 2^52 rounds to a whole number, which the low bits of the sum then
  // hold. The upper and middle parts of pi / 2 have 22 bits each, so that n times them is exact.
  constexpr double kRounder = 0x1.8p52;
  constexpr double kUpper = 0x1.921fb00000000p+0, kMiddle = 0x1.5110b00000000p-22, kLower = 0x1.18469898cc517p-44;
  const double shifted = double(x) * 0.63661977236758138 + kRounder, n = shifted - kRounder;
  const double r = ((double(x) - n * kUpper) - n * kMiddle) - n * kLower;
  uint64_t quarter;
  std::memcpy(&quarter, &shifted, sizeof(quarter));
  const double square = r * r;
  // Taylor series.
  double s = -1.0 / 39916800;
  s = s * square + 1.0 / 362880;
  s = s * square - 1.0 / 5040;
  s = s * square + 1.0 / 120;
  s = s * square - 1.0 / 6;
  s = s * square * r + r;
  double c = 1.0 / 479001600;
  c = c * square - 1.0 / 3628800;
  c = c * square + 1.0 / 40320;
  c = c * square - 1.0 / 720;
  c = c * square + 1.0 / 24;
  c = c * square - 0.5;
  c = c * square + 1.0;
  const double sin = (quarter & 1) != 0 ? c : s, cos = (quarter & 1) != 0 ? s : c;
  return {float((quarter & 2) != 0 ? -sin : sin), float(((quarter + 1) & 2) != 0 ? -cos : cos)};
}

}  // namespace pelton
