/* CUDA's libdevice in C: tz_nv_NAME is __nv_NAME, with integers of either signedness as
 * their two's complement. tzero/cpu/libdevice.py lists the signatures.
 *
 * Enters: C scalars. Leaves: C scalars. It knows nothing of kernels or memory.
 *
 * Results follow the CUDA documentation where the C library differs (saturating
 * conversions, ilogb of 0 and NaN, infinities in norms). Approximate functions (fast_*,
 * rcp64h aside) are computed as well as their exact namesakes. Nothing flushes subnormals.
 * Functions of double, and float ones without a float version of our own, are as accurate
 * as the C library's. Only what kernels use often is written to vectorise.
 */
#ifndef TZ_LIBDEVICE_H
#define TZ_LIBDEVICE_H

#include "numeric.h"

/* Too large to be inlined. Being a call also keeps the compiler from contracting a product
 * among the arguments with a sum in here, which error-free transformations do not survive. */
#define TZ_SLOW static __attribute__((noinline, unused))

/* Bessel functions are no builtins in clang; lgamma proper writes a global. */
double j0(double);
double j1(double);
double jn(int, double);
double y0(double);
double y1(double);
double yn(int, double);
double lgamma_r(double, int *);

/* ---- the C library's, under libdevice's names -------------------------------------------- */

#define TZ_NV_UNARY(NAME)                                                                     \
    TZ_FN double tz_nv_##NAME(double x) { return __builtin_##NAME(x); }                       \
    TZ_FN float tz_nv_##NAME##f(float x) { return __builtin_##NAME##f(x); }
#define TZ_NV_BINARY(NAME)                                                                    \
    TZ_FN double tz_nv_##NAME(double x, double y) { return __builtin_##NAME(x, y); }          \
    TZ_FN float tz_nv_##NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }
/* Through double: where float versions are missing from some C libraries or less exact. */
#define TZ_NV_WIDE(NAME)                                                                      \
    TZ_FN float tz_nv_##NAME##f(float x) { return (float)tz_nv_##NAME((double)x); }

TZ_NV_UNARY(acos)
TZ_NV_UNARY(acosh)
TZ_NV_UNARY(asin)
TZ_NV_UNARY(asinh)
TZ_NV_UNARY(atan)
TZ_NV_UNARY(atanh)
TZ_NV_UNARY(cosh)
TZ_NV_UNARY(erfc)
TZ_NV_UNARY(expm1)
TZ_NV_UNARY(log10)
TZ_NV_UNARY(log1p)
TZ_NV_UNARY(logb)
TZ_NV_UNARY(nearbyint)
TZ_NV_UNARY(rint)
TZ_NV_UNARY(round)
TZ_NV_UNARY(sinh)
TZ_NV_UNARY(tgamma)
TZ_NV_UNARY(trunc)
TZ_NV_BINARY(atan2)
TZ_NV_BINARY(copysign)
TZ_NV_BINARY(fdim)
TZ_NV_BINARY(hypot)
TZ_NV_BINARY(nextafter)
TZ_NV_BINARY(remainder)

TZ_FN double tz_nv_j0(double x) { return j0(x); }
TZ_FN double tz_nv_j1(double x) { return j1(x); }
TZ_FN double tz_nv_y0(double x) { return y0(x); }
TZ_FN double tz_nv_y1(double x) { return y1(x); }
TZ_FN double tz_nv_jn(int32_t n, double x) { return n < 0 ? TZ_NAN_F64 : jn(n, x); }
TZ_FN double tz_nv_yn(int32_t n, double x) { return n < 0 ? TZ_NAN_F64 : yn(n, x); }
TZ_FN float tz_nv_jnf(int32_t n, float x) { return (float)tz_nv_jn(n, (double)x); }
TZ_FN float tz_nv_ynf(int32_t n, float x) { return (float)tz_nv_yn(n, (double)x); }
TZ_NV_WIDE(j0)
TZ_NV_WIDE(j1)
TZ_NV_WIDE(y0)
TZ_NV_WIDE(y1)

TZ_FN double tz_nv_lgamma(double x) { int sign; return lgamma_r(x, &sign); }
TZ_NV_WIDE(lgamma)
TZ_FN double tz_nv_exp10(double x) { return __builtin_pow(10.0, x); }
TZ_NV_WIDE(exp10)
/* libm's root is off by an ulp or more; one step of Newton's method with an exact residual corrects
 * it. Zeros, infinities and NaNs are their own roots and are left alone. */
TZ_FN double tz_nv_cbrt(double x)
{
    double r = __builtin_cbrt(x), square = r * r;
    double rest = __builtin_fma(square, r, __builtin_fma(r, r, -square) * r - x);
    double step = rest / (3.0 * square);
    return r != 0.0 && __builtin_isfinite(r) ? r - step : r;
}

TZ_FN double tz_nv_rcbrt(double x)
{
    double r = tz_nv_cbrt(x), inverse = 1.0 / r;
    double better = __builtin_fma(__builtin_fma(-r, inverse, 1.0), inverse, inverse);
    return r != 0.0 && __builtin_isfinite(r) ? better : inverse;
}
TZ_NV_WIDE(cbrt)
TZ_NV_WIDE(rcbrt)
TZ_FN double tz_nv_powi(double x, int32_t n) { return __builtin_pow(x, (double)n); }
TZ_FN float tz_nv_powif(float x, int32_t n) { return (float)tz_nv_powi((double)x, n); }
TZ_FN double tz_nv_ldexp(double x, int32_t n) { return __builtin_ldexp(x, n); }
TZ_FN float tz_nv_ldexpf(float x, int32_t n) { return __builtin_ldexpf(x, n); }

TZ_FN float tz_nv_fast_fdividef(float x, float y) { return x / y; }

/* Upper half of the reciprocal, the lower half zero. */
TZ_FN double tz_nv_rcp64h(double x)
{
    return tz_from_bits_f64(tz_bits_f64(1.0 / x) & 0xffffffff00000000u);
}

/* ---- integers ---------------------------------------------------------------------------- */

TZ_FN int32_t tz_nv_popc(uint32_t x) { return __builtin_popcount(x); }
TZ_FN int32_t tz_nv_popcll(uint64_t x) { return __builtin_popcountll(x); }
TZ_FN int32_t tz_nv_clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
TZ_FN int32_t tz_nv_clzll(uint64_t x) { return x ? __builtin_clzll(x) : 64; }
TZ_FN int32_t tz_nv_ffs(uint32_t x) { return __builtin_ffs((int)x); }
TZ_FN int32_t tz_nv_ffsll(uint64_t x) { return __builtin_ffsll((long long)x); }

TZ_FN int32_t tz_nv_brev(uint32_t x)
{
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
    return (int32_t)__builtin_bswap32(x);
}

TZ_FN int64_t tz_nv_brevll(uint64_t x)
{
    uint64_t high = (uint32_t)tz_nv_brev((uint32_t)x);
    return (int64_t)(high << 32 | (uint32_t)tz_nv_brev((uint32_t)(x >> 32)));
}

/* Four bytes out of the eight of y:x, each chosen by the low 3 bits of a nibble of s. */
TZ_FN int32_t tz_nv_byte_perm(uint32_t x, uint32_t y, uint32_t s)
{
    uint64_t from = (uint64_t)y << 32 | x;
    uint32_t a = (uint32_t)(from >> ((s & 7u) * 8u)) & 0xffu;
    uint32_t b = (uint32_t)(from >> ((s >> 4 & 7u) * 8u)) & 0xffu;
    uint32_t c = (uint32_t)(from >> ((s >> 8 & 7u) * 8u)) & 0xffu;
    uint32_t d = (uint32_t)(from >> ((s >> 12 & 7u) * 8u)) & 0xffu;
    return (int32_t)(a | b << 8 | c << 16 | d << 24);
}

TZ_FN int32_t tz_nv_mul24(uint32_t x, uint32_t y)
{
    int64_t a = (int32_t)(x << 8) >> 8, b = (int32_t)(y << 8) >> 8;
    return (int32_t)(a * b);
}

TZ_FN uint32_t tz_nv_umul24(uint32_t x, uint32_t y)
{
    return (x & 0xffffffu) * (y & 0xffffffu);
}

TZ_FN int32_t tz_nv_sad(int32_t x, int32_t y, uint32_t z)
{
    uint32_t d = x > y ? (uint32_t)x - (uint32_t)y : (uint32_t)y - (uint32_t)x;
    return (int32_t)(d + z);
}

TZ_FN uint32_t tz_nv_usad(uint32_t x, uint32_t y, uint32_t z)
{
    return (x > y ? x - y : y - x) + z;
}

TZ_FN int32_t tz_nv_hadd(int32_t x, int32_t y) { return (int32_t)(((int64_t)x + y) >> 1); }
TZ_FN int32_t tz_nv_rhadd(int32_t x, int32_t y) { return (int32_t)(((int64_t)x + y + 1) >> 1); }
TZ_FN uint32_t tz_nv_uhadd(uint32_t x, uint32_t y) { return (uint32_t)(((uint64_t)x + y) >> 1); }
TZ_FN uint32_t tz_nv_urhadd(uint32_t x, uint32_t y)
{
    return (uint32_t)(((uint64_t)x + y + 1) >> 1);
}

/* ---- classification and bits ------------------------------------------------------------- */

TZ_FN int32_t tz_nv_isnanf(float x) { return x != x; }
TZ_FN int32_t tz_nv_isnand(double x) { return x != x; }
TZ_FN int32_t tz_nv_isinff(float x) { return __builtin_fabsf(x) == TZ_INF_F32; }
TZ_FN int32_t tz_nv_isinfd(double x) { return __builtin_fabs(x) == TZ_INF_F64; }
TZ_FN int32_t tz_nv_finitef(float x) { return __builtin_fabsf(x) < TZ_INF_F32; }
TZ_FN int32_t tz_nv_isfinited(double x) { return __builtin_fabs(x) < TZ_INF_F64; }
TZ_FN int32_t tz_nv_signbitf(float x) { return (int32_t)(tz_bits_f32(x) >> 31); }
TZ_FN int32_t tz_nv_signbitd(double x) { return (int32_t)(tz_bits_f64(x) >> 63); }

TZ_FN int32_t tz_nv_float_as_int(float x) { return (int32_t)tz_bits_f32(x); }
TZ_FN float tz_nv_int_as_float(int32_t x) { return tz_from_bits_f32((uint32_t)x); }
TZ_FN int64_t tz_nv_double_as_longlong(double x) { return (int64_t)tz_bits_f64(x); }
TZ_FN double tz_nv_longlong_as_double(int64_t x) { return tz_from_bits_f64((uint64_t)x); }
TZ_FN int32_t tz_nv_double2hiint(double x) { return (int32_t)(tz_bits_f64(x) >> 32); }
TZ_FN int32_t tz_nv_double2loint(double x) { return (int32_t)tz_bits_f64(x); }
TZ_FN double tz_nv_hiloint2double(uint32_t hi, uint32_t lo)
{
    return tz_from_bits_f64((uint64_t)hi << 32 | lo);
}

/* 0 and NaN give the least integer, infinities the largest. */
TZ_FN int32_t tz_nv_ilogb(double x)
{
    double a = __builtin_fabs(x);
    int special = x == 0.0 || !(a < TZ_INF_F64);
    int32_t n = special ? 0 : (int32_t)__builtin_logb(x);
    return special ? (a == TZ_INF_F64 ? INT32_MAX : INT32_MIN) : n;
}

TZ_FN int32_t tz_nv_ilogbf(float x) { return tz_nv_ilogb((double)x); }

/* To [0, 1]; NaN becomes 0. */
TZ_FN float tz_nv_saturatef(float x)
{
    float y = x > 0.0f ? x : 0.0f;
    return y < 1.0f ? y : 1.0f;
}

/* ---- sinpi and cospi ---------------------------------------------------------------------- */

/* x = 2m + q/2 + f with |f| <= 1/4, exactly. */
TZ_FN double tz_half_turns(double x, uint32_t *q)
{
    double r = x - 2.0 * __builtin_rint(x * 0.5);
    double t = r * 2.0 + TZ_ROUNDER_F64;
    *q = (uint32_t)tz_bits_f64(t);
    return r - (t - TZ_ROUNDER_F64) * 0.5;
}

TZ_FN double tz_nv_sinpi(double x)
{
    uint32_t q;
    double f = tz_half_turns(x, &q) * 0x1.921fb54442d18p+1;
    double y = q & 1u ? __builtin_cos(f) : __builtin_sin(f);
    y = q & 2u ? -y : y;
    return y == 0.0 ? __builtin_copysign(0.0, x) : y;
}

TZ_FN double tz_nv_cospi(double x)
{
    uint32_t q;
    double f = tz_half_turns(__builtin_fabs(x), &q) * 0x1.921fb54442d18p+1;
    double y = q & 1u ? __builtin_sin(f) : __builtin_cos(f);
    return ((q + 1u) & 2u ? -y : y) + 0.0;
}

TZ_FN float tz_nv_sinpif(float x)
{
    uint32_t q;
    float f = (float)(tz_half_turns((double)x, &q) * 0x1.921fb54442d18p+1), z = f * f;
    float y = q & 1u ? tz_cos_octant_f32(z) : tz_sin_octant_f32(f, z);
    y = q & 2u ? -y : y;
    return y == 0.0f ? __builtin_copysignf(0.0f, x) : y;
}

TZ_FN float tz_nv_cospif(float x)
{
    uint32_t q;
    float f = (float)(tz_half_turns(__builtin_fabs((double)x), &q) * 0x1.921fb54442d18p+1);
    float z = f * f;
    float y = q & 1u ? tz_sin_octant_f32(f, z) : tz_cos_octant_f32(z);
    return ((q + 1u) & 2u ? -y : y) + 0.0f;
}

/* ---- norms -------------------------------------------------------------------------------- */

/* An infinite component makes the norm infinite, whatever the others are. In double,
 * squares are taken after scaling the largest component to [1, 2). */
TZ_SLOW double tz_nv_norm4d(double a, double b, double c, double d)
{
    a = __builtin_fabs(a), b = __builtin_fabs(b), c = __builtin_fabs(c), d = __builtin_fabs(d);
    double top = tz_maxnum_f64(tz_maxnum_f64(a, b), tz_maxnum_f64(c, d));
    if (top == TZ_INF_F64 || top == 0.0)
        return a + b + c + d != a + b + c + d && top == 0.0 ? TZ_NAN_F64 : top;
    if (top != top)
        return top;
    int e = (int)__builtin_logb(top);
    a = __builtin_ldexp(a, -e), b = __builtin_ldexp(b, -e);
    c = __builtin_ldexp(c, -e), d = __builtin_ldexp(d, -e);
    return __builtin_ldexp(__builtin_sqrt(a * a + b * b + c * c + d * d), e);
}

TZ_FN float tz_nv_norm4df(float a, float b, float c, float d)
{
    double w = a, x = b, y = c, z = d;
    float r = (float)__builtin_sqrt(w * w + x * x + y * y + z * z);
    int infinite = tz_nv_isinff(a) | tz_nv_isinff(b) | tz_nv_isinff(c) | tz_nv_isinff(d);
    return infinite ? TZ_INF_F32 : r;
}

TZ_FN double tz_nv_norm3d(double a, double b, double c) { return tz_nv_norm4d(a, b, c, 0.0); }
TZ_FN float tz_nv_norm3df(float a, float b, float c) { return tz_nv_norm4df(a, b, c, 0.0f); }

/* Reciprocal norms of floats are taken in double, where nothing overflows on the way. */
TZ_FN float tz_nv_rnorm4df(float a, float b, float c, float d)
{
    double w = a, x = b, y = c, z = d;
    float r = (float)(1.0 / __builtin_sqrt(w * w + x * x + y * y + z * z));
    int infinite = tz_nv_isinff(a) | tz_nv_isinff(b) | tz_nv_isinff(c) | tz_nv_isinff(d);
    return infinite ? 0.0f : r;
}

TZ_FN float tz_nv_rnorm3df(float a, float b, float c) { return tz_nv_rnorm4df(a, b, c, 0.0f); }
TZ_FN float tz_nv_rhypotf(float a, float b) { return tz_nv_rnorm4df(a, b, 0.0f, 0.0f); }
TZ_FN double tz_nv_rhypot(double a, double b) { return 1.0 / __builtin_hypot(a, b); }
TZ_FN double tz_nv_rnorm3d(double a, double b, double c) { return 1.0 / tz_nv_norm3d(a, b, c); }
TZ_FN double tz_nv_rnorm4d(double a, double b, double c, double d)
{
    return 1.0 / tz_nv_norm4d(a, b, c, d);
}

#include "libdevice_round.h"
#include "libdevice_special.h"

#endif
