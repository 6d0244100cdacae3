/* Elementary functions of the generated kernels.
 *
 * Enters: float or double. Leaves: the same type. It knows nothing of kernels or memory.
 *
 * The float versions are our own, free of branches, tables and calls, so that loops over
 * them vectorise; each is within 2 ulp of the true value over the whole range, subnormals,
 * infinities and NaN included. The double versions, and tan, pow and rem, are the C
 * library's.
 *
 * Polynomials: minimax fits (iteratively reweighted least squares on 2000 Chebyshev nodes
 * in 40-digit arithmetic), coefficients rounded to float one by one from the lowest degree
 * with the others refitted after each rounding. The bound given with each is that of the
 * rounded polynomial, relative to the function, before evaluation errors.
 */
#ifndef TZ_MATH_H
#define TZ_MATH_H

#include "tz_number.h"

/* Adding and subtracting this rounds a float below 2^22 to an integer, which is also in the
 * low bits of the sum. */
#define TZ_ROUNDER_F32 0x1.8p23f
#define TZ_ROUNDER_F64 0x1.8p52

/* ---- exponentials ------------------------------------------------------------------------ */

/* The same plus 254, twice the exponent bias: the two halves of the sum's low bits are the biased
 * exponents of two factors. */
#define TZ_SCALE_ROUNDER (TZ_ROUNDER_F32 + 254.0f)

/* p * 2^n for an integer n in [-252, 254], where t = n + TZ_SCALE_ROUNDER. There are two factors,
 * because one does not have the range; a subnormal product is rounded once. */
TZ_FN float tz_scale_f32(float p, float t)
{
    uint32_t n = tz_bits_f32(t), half = n >> 1;
    return p * tz_from_bits_f32(half << 23) * tz_from_bits_f32((n - half) << 23);
}

/* e^x = 2^n * e^r with |r| <= ln(2)/2; t is n plus the rounder. The high part of ln 2 has 15
 * bits, so its product with n is exact even without a fused multiply-add. Error 2^-28.1. */
TZ_FN float tz_exp_reduced_f32(float x, float rounder, float *t)
{
    *t = tz_mad_f32(x, 0x1.715476p+0f, rounder);
    float k = *t - rounder;
    float r = tz_mad_f32(k, -0x1.62e4p-1f, x);
    r = tz_mad_f32(k, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6a4b98p-10f;
    p = tz_mad_f32(p, r, 0x1.123e5cp-7f);
    p = tz_mad_f32(p, r, 0x1.5558bap-5f);
    p = tz_mad_f32(p, r, 0x1.55548cp-3f);
    p = tz_mad_f32(p, r, 0x1.fffffcp-2f);
    return tz_mad_f32(p, r * r, r) + 1.0f;
}

/* Arguments whose result is 0, such as masked scores in a softmax, are replaced before scaling: a
 * product that underflows is a hundred times slower. */
TZ_FN float tz_exp_f32(float x)
{
    float t, inside = x < -104.0f ? 0.0f : x;
    float p = tz_exp_reduced_f32(inside, TZ_SCALE_ROUNDER, &t);
    p = tz_scale_f32(p, t);
    p = x > 0x1.62e42ep6f ? TZ_INF_F32 : p;
    return x < -104.0f ? 0.0f : p;
}

/* e^x for x in [-87, 88]: one factor, whose exponent is the sum's low bits; no range checks; NaN
 * stays NaN. */
TZ_FN float tz_exp_inner_f32(float x)
{
    float t;
    float p = tz_exp_reduced_f32(x, TZ_ROUNDER_F32 + 127.0f, &t);
    return p * tz_from_bits_f32(tz_bits_f32(t) << 23);
}

/* 2^x = 2^n * 2^r with |r| <= 1/2. Error 2^-28.2. */
TZ_FN float tz_exp2_f32(float x)
{
    float inside = x < -151.0f ? 0.0f : x;
    float t = inside + TZ_SCALE_ROUNDER;
    float r = inside - (t - TZ_SCALE_ROUNDER);
    float p = 0x1.417e76p-13f;
    p = tz_mad_f32(p, r, 0x1.5f0abep-10f);
    p = tz_mad_f32(p, r, 0x1.3b2dd0p-7f);
    p = tz_mad_f32(p, r, 0x1.c6af78p-5f);
    p = tz_mad_f32(p, r, 0x1.ebfbdcp-3f);
    p = tz_mad_f32(p, r, 0x1.62e430p-1f);
    p = tz_scale_f32(tz_mad_f32(p, r, 1.0f), t);
    p = x >= 128.0f ? TZ_INF_F32 : p;
    return x < -151.0f ? 0.0f : p;
}

/* ---- logarithms -------------------------------------------------------------------------- */

/* x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); returns log(1 + f) - f, error
 * 2^-27.3 relative to log(1 + f). */
TZ_FN float tz_log_reduced_f32(float x, float *e, float *f)
{
    int subnormal = x < 0x1p-126f;
    uint32_t u = tz_bits_f32(subnormal ? x * 0x1p23f : x);
    int32_t k = (int32_t)(u - 0x3f3504f3u) >> 23;
    float g = tz_from_bits_f32(u - ((uint32_t)k << 23)) - 1.0f;
    float p = -0x1.38ceb4p-4f;
    p = tz_mad_f32(p, g, 0x1.056016p-3f);
    p = tz_mad_f32(p, g, -0x1.0d81f6p-3f);
    p = tz_mad_f32(p, g, 0x1.22d8fap-3f);
    p = tz_mad_f32(p, g, -0x1.54728cp-3f);
    p = tz_mad_f32(p, g, 0x1.99a01ep-3f);
    p = tz_mad_f32(p, g, -0x1.000226p-2f);
    p = tz_mad_f32(p, g, 0x1.555554p-2f);
    p = tz_mad_f32(p, g, -0.5f);
    *e = (float)(k - (subnormal ? 23 : 0));
    *f = g;
    return p * (g * g);
}

/* Zero, negative numbers, infinity and NaN for the logarithm `y` of `x`. */
TZ_FN float tz_log_special_f32(float x, float y)
{
    y = x < TZ_INF_F32 ? y : x;
    y = x == 0.0f ? -TZ_INF_F32 : y;
    return x < 0.0f ? TZ_NAN_F32 : y;
}

TZ_FN float tz_log_f32(float x)
{
    float e, f;
    float low = tz_log_reduced_f32(x, &e, &f);
    low = tz_mad_f32(e, 0x1.7f7d1cp-20f, low);
    return tz_log_special_f32(x, tz_mad_f32(e, 0x1.62e4p-1f, f + low));
}

TZ_FN float tz_log2_f32(float x)
{
    float e, f;
    float low = tz_log_reduced_f32(x, &e, &f) * 0x1.715476p+0f;
    low = tz_mad_f32(f, 0x1.4ae0c0p-26f, low);
    return tz_log_special_f32(x, e + tz_mad_f32(f, 0x1.715476p+0f, low));
}

/* ---- sine and cosine --------------------------------------------------------------------- */

/* |x| = (4m + q + y) * pi/2 with |y| <= 1/2: returns y in quarter turns, sets q mod 4.
 *
 * 2/pi is cut into pieces of 29 bits. The product of a piece with a float is exact in
 * double, and so is the removal of its multiples of 4, however large they are. The rest is
 * summed after the nearest integer has been taken off, which leaves an error below 2^-53
 * of a quarter turn; the float nearest to a multiple of pi/2 is 2^-31 away from it. Seven
 * pieces reach to the end of float's range. All of it vectorises, while a second path for
 * huge arguments behind a branch would stop gcc from vectorising the loop. */
TZ_FN double tz_quarter_turns(double x, uint32_t *q)
{
    double a = x * 0x1.45f306dp-1, b = x * 0x1.9391054p-30, c = x * 0x1.4fe13abp-59;
    double d = x * 0x1.d1f534dp-88, e = x * 0x1.b81b6c5p-117;
    double f = x * 0x1.5993c4p-148, g = x * 0x1.c820ff2p-175;
    a -= 4.0 * __builtin_rint(a * 0.25);
    b -= 4.0 * __builtin_rint(b * 0.25);
    c -= 4.0 * __builtin_rint(c * 0.25);
    d -= 4.0 * __builtin_rint(d * 0.25);
    e -= 4.0 * __builtin_rint(e * 0.25);
    double low = g + f;
    double t = a + (b + (c + (d + (e + low)))) + TZ_ROUNDER_F64;
    *q = (uint32_t)tz_bits_f64(t);
    return (((((a - (t - TZ_ROUNDER_F64)) + b) + c) + d) + e) + low;
}

/* Sine and cosine on |r| <= pi/4, errors 2^-27.9 and 2^-33. */
TZ_FN float tz_sin_octant_f32(float r, float z)
{
    float p = tz_mad_f32(z, -0x1.9953p-13f, 0x1.110776p-7f);
    p = tz_mad_f32(p, z, -0x1.555546p-3f);
    return tz_mad_f32(p, z * r, r);
}

TZ_FN float tz_cos_octant_f32(float z)
{
    float p = tz_mad_f32(z, 0x1.99e904p-16f, -0x1.6c0c2ap-10f);
    p = tz_mad_f32(p, z, 0x1.55554ap-5f);
    return tz_mad_f32(p, z * z, tz_mad_f32(z, -0.5f, 1.0f));
}

TZ_FN float tz_sin_f32(float x)
{
    uint32_t q, u = tz_bits_f32(x);
    double y = tz_quarter_turns((double)tz_from_bits_f32(u & 0x7fffffffu), &q);
    float r = (float)(y * 0x1.921fb54442d18p+0), z = r * r;
    float s = tz_sin_octant_f32(r, z), c = tz_cos_octant_f32(z);
    uint32_t v = tz_bits_f32(q & 1u ? c : s);
    return tz_from_bits_f32(v ^ ((q & 2u) << 30) ^ (u & 0x80000000u));
}

TZ_FN float tz_cos_f32(float x)
{
    uint32_t q;
    double y = tz_quarter_turns((double)__builtin_fabsf(x), &q);
    float r = (float)(y * 0x1.921fb54442d18p+0), z = r * r;
    float s = tz_sin_octant_f32(r, z), c = tz_cos_octant_f32(z);
    uint32_t v = tz_bits_f32(q & 1u ? s : c);
    return tz_from_bits_f32(v ^ (((q + 1u) & 2u) << 30));
}

/* ---- tanh and erf ------------------------------------------------------------------------ */

/* Below 0.625 an odd polynomial, error 2^-27.7; above 1 - 2/(e^(2x) + 1). */
TZ_FN float tz_tanh_f32(float x)
{
    uint32_t sign = tz_bits_f32(x) & 0x80000000u;
    float a = __builtin_fabsf(x), z = x * x;
    float p = tz_mad_f32(z, -0x1.7574f8p-8f, 0x1.520c26p-6f);
    p = tz_mad_f32(p, z, -0x1.b837e0p-5f);
    p = tz_mad_f32(p, z, 0x1.110700p-3f);
    p = tz_mad_f32(p, z, -0x1.555532p-2f);
    p = tz_mad_f32(p, z * a, a);
    float t = a > 10.0f ? 10.0f : a;
    float big = 1.0f - 2.0f / (tz_exp_inner_f32(t + t) + 1.0f);
    return tz_from_bits_f32(tz_bits_f32(a < 0.625f ? p : big) | sign);
}

/* Below 0.95 x + x*P(x^2), error 2^-30; above 1 - e^-Q(x) with Q = -log(erfc), error
 * 2^-29.3. From 4 on the result is 1. */
TZ_FN float tz_erf_f32(float x)
{
    uint32_t sign = tz_bits_f32(x) & 0x80000000u;
    float a = __builtin_fabsf(x), z = x * x;
    float p = tz_mad_f32(z, 0x1.4fa938p-14f, -0x1.a61812p-11f);
    p = tz_mad_f32(p, z, 0x1.544b08p-8f);
    p = tz_mad_f32(p, z, -0x1.b80124p-6f);
    p = tz_mad_f32(p, z, 0x1.ce2d64p-4f);
    p = tz_mad_f32(p, z, -0x1.812740p-2f);
    p = tz_mad_f32(p, z, 0x1.06eba8p-3f);
    p = tz_mad_f32(p, a, a);
    float t = a > 4.0f ? 4.0f : a;
    float q = tz_mad_f32(t, -0x1.983b88p-13f, 0x1.8d3ca8p-9f);
    q = tz_mad_f32(q, t, -0x1.6b5864p-6f);
    q = tz_mad_f32(q, t, 0x1.a946f6p-4f);
    q = tz_mad_f32(q, t, 0x1.464c5ap-1f);
    q = tz_mad_f32(q, t, 0x1.20aab4p+0f);
    q = tz_mad_f32(q, t, 0x1.be78fcp-13f);
    float big = 1.0f - tz_exp_inner_f32(-q);
    return tz_from_bits_f32(tz_bits_f32(a < 0.95f ? p : big) | sign);
}

/* ---- single instructions and the C library ----------------------------------------------- */

TZ_FN float tz_sqrt_f32(float x) { return __builtin_sqrtf(x); }
TZ_FN double tz_sqrt_f64(double x) { return __builtin_sqrt(x); }
TZ_FN float tz_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
TZ_FN double tz_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }
TZ_FN float tz_floor_f32(float x) { return __builtin_floorf(x); }
TZ_FN double tz_floor_f64(double x) { return __builtin_floor(x); }
TZ_FN float tz_ceil_f32(float x) { return __builtin_ceilf(x); }
TZ_FN double tz_ceil_f64(double x) { return __builtin_ceil(x); }
TZ_FN float tz_abs_f32(float x) { return __builtin_fabsf(x); }
TZ_FN double tz_abs_f64(double x) { return __builtin_fabs(x); }
TZ_FN float tz_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TZ_FN double tz_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }

TZ_FN float tz_tan_f32(float x) { return __builtin_tanf(x); }
TZ_FN float tz_pow_f32(float x, float y) { return __builtin_powf(x, y); }
TZ_FN float tz_rem_f32(float x, float y) { return __builtin_fmodf(x, y); }
TZ_FN double tz_exp_f64(double x) { return __builtin_exp(x); }
TZ_FN double tz_exp2_f64(double x) { return __builtin_exp2(x); }
TZ_FN double tz_log_f64(double x) { return __builtin_log(x); }
TZ_FN double tz_log2_f64(double x) { return __builtin_log2(x); }
TZ_FN double tz_sin_f64(double x) { return __builtin_sin(x); }
TZ_FN double tz_cos_f64(double x) { return __builtin_cos(x); }
TZ_FN double tz_tan_f64(double x) { return __builtin_tan(x); }
TZ_FN double tz_tanh_f64(double x) { return __builtin_tanh(x); }
TZ_FN double tz_erf_f64(double x) { return __builtin_erf(x); }
TZ_FN double tz_pow_f64(double x, double y) { return __builtin_pow(x, y); }
TZ_FN double tz_rem_f64(double x, double y) { return __builtin_fmod(x, y); }

#endif
