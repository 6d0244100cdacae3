/* Directed rounding and rounding conversions of libdevice. Part of libdevice.h.
 *
 * The floating-point environment is never touched. Each operation is rounded to nearest and
 * corrected by one step when the exact result lies on the wrong side, which its exact error
 * term tells: the sign of (exact - rounded) is called `side` here. Suffixes are CUDA's: rn
 * to nearest even, rd down, ru up, rz toward zero.
 */
#ifndef TZ_LIBDEVICE_ROUND_H
#define TZ_LIBDEVICE_ROUND_H

enum tz_direction { TZ_DOWN, TZ_UP, TZ_ZERO };

TZ_FN int tz_sign_f64(double x) { return (x > 0.0) - (x < 0.0); }

/* The step, -1, 0 or 1, from the value rounded to nearest to the value in the given rounding. */
TZ_FN int tz_step(int positive, int side, enum tz_direction to)
{
    if (to == TZ_DOWN)
        return side < 0 ? -1 : 0;
    if (to == TZ_UP)
        return side > 0 ? 1 : 0;
    return positive ? (side < 0 ? -1 : 0) : (side > 0 ? 1 : 0);
}

TZ_FN double tz_directed_f64(double r, int side, enum tz_direction to)
{
    int step = r == 0.0 && to == TZ_ZERO ? 0 : tz_step(r > 0.0, side, to);
    return step ? __builtin_nextafter(r, step > 0 ? TZ_INF_F64 : -TZ_INF_F64) : r;
}

/* From a double and the side on which the exact value lies of it. */
TZ_FN float tz_directed_f32(double x, int side, enum tz_direction to)
{
    float r = (float)x;
    int s = x > (double)r ? 1 : x < (double)r ? -1 : side;
    int step = r == 0.0f && to == TZ_ZERO ? 0 : tz_step(r > 0.0f, s, to);
    return step ? __builtin_nextafterf(r, step > 0 ? TZ_INF_F32 : -TZ_INF_F32) : r;
}

/* a + b = sum + error, exactly, unless the sum overflows. */
TZ_FN double tz_two_sum(double a, double b, double *error)
{
    double s = a + b, t = s - a;
    *error = (a - (s - t)) + (b - t);
    return s;
}

/* Sign of an exact sum: each term is added to an expansion of components that do not
 * overlap, so the last nonzero one has the sign of the whole. */
TZ_SLOW int tz_sign_of_sum(const double *terms, int count)
{
    double parts[8];
    for (int n = 0; n < count; n++) {
        double carry = terms[n];
        for (int i = 0; i < n; i++) {
            double error;
            carry = tz_two_sum(carry, parts[i], &error);
            parts[i] = error;
        }
        parts[n] = carry;
    }
    for (int n = count - 1; n >= 0; n--)
        if (parts[n] != 0.0)
            return tz_sign_f64(parts[n]);
    return 0;
}

/* x * 2^n, or a tiny number of the same sign if that underflows: only the sign matters then. */
TZ_FN double tz_shifted(double x, int n)
{
    double y = __builtin_ldexp(x, n);
    return x != 0.0 && !(__builtin_fabs(y) > 0x1p-400) ? __builtin_copysign(0x1p-400, x) : y;
}

TZ_FN int tz_exponent(double x) { return x == 0.0 ? -4000 : (int)__builtin_logb(x); }

/* Side of a*b + c against its rounded value r. All are scaled alike, so that the largest
 * of product and c is near 1 and no error term underflows. */
TZ_SLOW int tz_side_fma(double a, double b, double c, double r)
{
    if (!(__builtin_fabs(a) < TZ_INF_F64 && __builtin_fabs(b) < TZ_INF_F64 &&
          __builtin_fabs(c) < TZ_INF_F64))
        return 0;
    if (__builtin_fabs(r) == TZ_INF_F64)
        return r > 0.0 ? -1 : 1;
    int ea = tz_exponent(a), eb = tz_exponent(b), ec = tz_exponent(c);
    int top = ea + eb > ec ? ea + eb : ec;
    if (top <= -4000)
        return 0;
    double x = a == 0.0 ? 0.0 : __builtin_ldexp(a, -ea);
    double y = b == 0.0 ? 0.0 : __builtin_ldexp(b, -eb);
    double product = x * y, error = __builtin_fma(x, y, -product);
    int down = a == 0.0 || b == 0.0 ? 0 : ea + eb - top;
    double high = tz_shifted(product, down);
    double low = down < -300 ? 0.0 : __builtin_ldexp(error, down);
    double terms[4] = {tz_shifted(c, -top), high, low, -__builtin_ldexp(r, -top)};
    return tz_sign_of_sum(terms, 4);
}

/* Side of a/b against its rounded value q. */
TZ_SLOW int tz_side_div(double a, double b, double q)
{
    if (!(__builtin_fabs(a) < TZ_INF_F64 && __builtin_fabs(b) < TZ_INF_F64) || a == 0.0 ||
        b == 0.0)
        return 0;
    if (__builtin_fabs(q) == TZ_INF_F64)
        return q > 0.0 ? -1 : 1;
    int ea = tz_exponent(a), eb = tz_exponent(b);
    double x = __builtin_ldexp(a, -ea), y = __builtin_ldexp(b, -eb);
    double exact = x / y, rounded = __builtin_ldexp(q, eb - ea);
    if (exact != rounded)
        return exact > rounded ? 1 : -1;
    return tz_sign_f64(__builtin_fma(-exact, y, x)) * tz_sign_f64(y);
}

TZ_SLOW int tz_side_sqrt(double x, double s)
{
    if (!(x > 0.0 && x < TZ_INF_F64))
        return 0;
    int half = tz_exponent(x) / 2;
    double y = __builtin_ldexp(x, -2 * half), r = __builtin_ldexp(s, -half);
    return tz_sign_f64(__builtin_fma(-r, r, y));
}

/* x + (-x) is -0 when rounding down. */
TZ_SLOW double tz_dadd(double a, double b, enum tz_direction to)
{
    double s = a + b;
    if (s == 0.0 && to == TZ_DOWN && tz_bits_f64(a) >> 63 != tz_bits_f64(b) >> 63)
        return -0.0;
    return tz_directed_f64(s, tz_side_fma(a, 1.0, b, s), to);
}

TZ_SLOW double tz_dfma(double a, double b, double c, enum tz_direction to)
{
    double r = __builtin_fma(a, b, c);
    int side = tz_side_fma(a, b, c, r);
    int opposed = (tz_bits_f64(a) ^ tz_bits_f64(b) ^ tz_bits_f64(c)) >> 63 != 0;
    if (r == 0.0 && side == 0 && to == TZ_DOWN && opposed)
        return -0.0;
    return tz_directed_f64(r, side, to);
}

TZ_SLOW double tz_dmul(double a, double b, enum tz_direction to)
{
    double r = a * b;
    return tz_directed_f64(r, tz_side_fma(a, b, 0.0, r), to);
}

TZ_SLOW double tz_ddiv(double a, double b, enum tz_direction to)
{
    double q = a / b;
    return tz_directed_f64(q, tz_side_div(a, b, q), to);
}

TZ_SLOW double tz_dsqrt(double x, enum tz_direction to)
{
    double s = __builtin_sqrt(x);
    return tz_directed_f64(s, tz_side_sqrt(x, s), to);
}

/* Floats: double is exact for products, and has exact error terms for the rest. */
TZ_SLOW float tz_ffma(float a, float b, float c, enum tz_direction to)
{
    double p = (double)a * (double)b, error, s = tz_two_sum(p, (double)c, &error);
    if (s == 0.0 && to == TZ_DOWN && tz_bits_f64(p) >> 63 != tz_bits_f32(c) >> 31)
        return -0.0f;
    return tz_directed_f32(s, tz_sign_f64(error), to);
}

TZ_SLOW float tz_fadd(float a, float b, enum tz_direction to) { return tz_ffma(a, 1.0f, b, to); }

TZ_SLOW float tz_fmul(float a, float b, enum tz_direction to)
{
    return tz_directed_f32((double)a * (double)b, 0, to);
}

TZ_SLOW float tz_fdiv(float a, float b, enum tz_direction to)
{
    double x = a, y = b, q = x / y;
    int side = tz_sign_f64(__builtin_fma(-q, y, x)) * tz_sign_f64(y);
    return tz_directed_f32(q, side, to);
}

TZ_SLOW float tz_fsqrt(float x, enum tz_direction to)
{
    double s = __builtin_sqrt((double)x);
    return tz_directed_f32(s, tz_sign_f64(__builtin_fma(-s, s, (double)x)), to);
}

#define TZ_NV_DIRECTED(SUFFIX, TO)                                                            \
    TZ_FN float tz_nv_fadd_##SUFFIX(float a, float b) { return tz_fadd(a, b, TO); }           \
    TZ_FN float tz_nv_fsub_##SUFFIX(float a, float b) { return tz_fadd(a, -b, TO); }          \
    TZ_FN float tz_nv_fmul_##SUFFIX(float a, float b) { return tz_fmul(a, b, TO); }           \
    TZ_FN float tz_nv_fdiv_##SUFFIX(float a, float b) { return tz_fdiv(a, b, TO); }           \
    TZ_FN float tz_nv_frcp_##SUFFIX(float a) { return tz_fdiv(1.0f, a, TO); }                 \
    TZ_FN float tz_nv_fsqrt_##SUFFIX(float a) { return tz_fsqrt(a, TO); }                     \
    TZ_FN float tz_nv_fmaf_##SUFFIX(float a, float b, float c) { return tz_ffma(a, b, c, TO); } \
    TZ_FN double tz_nv_dadd_##SUFFIX(double a, double b) { return tz_dadd(a, b, TO); }        \
    TZ_FN double tz_nv_dsub_##SUFFIX(double a, double b) { return tz_dadd(a, -b, TO); }       \
    TZ_FN double tz_nv_dmul_##SUFFIX(double a, double b) { return tz_dmul(a, b, TO); }        \
    TZ_FN double tz_nv_ddiv_##SUFFIX(double a, double b) { return tz_ddiv(a, b, TO); }        \
    TZ_FN double tz_nv_drcp_##SUFFIX(double a) { return tz_ddiv(1.0, a, TO); }                \
    TZ_FN double tz_nv_dsqrt_##SUFFIX(double a) { return tz_dsqrt(a, TO); }                   \
    TZ_FN double tz_nv_fma_##SUFFIX(double a, double b, double c) { return tz_dfma(a, b, c, TO); } \
    TZ_FN float tz_nv_double2float_##SUFFIX(double a) { return tz_directed_f32(a, 0, TO); }   \
    TZ_FN float tz_nv_int2float_##SUFFIX(int32_t a) { return tz_directed_f32(a, 0, TO); }     \
    TZ_FN float tz_nv_uint2float_##SUFFIX(uint32_t a) { return tz_directed_f32(a, 0, TO); }   \
    TZ_FN float tz_nv_ll2float_##SUFFIX(int64_t a)                                            \
    {                                                                                         \
        double r = (double)a;                                                                 \
        return tz_directed_f32(r, tz_side_integer(a, r), TO);                                 \
    }                                                                                         \
    TZ_FN float tz_nv_ull2float_##SUFFIX(uint64_t a)                                          \
    {                                                                                         \
        double r = (double)a;                                                                 \
        return tz_directed_f32(r, tz_side_integer(a, r), TO);                                 \
    }                                                                                         \
    TZ_FN double tz_nv_ll2double_##SUFFIX(int64_t a)                                          \
    {                                                                                         \
        double r = (double)a;                                                                 \
        return tz_directed_f64(r, tz_side_integer(a, r), TO);                                 \
    }                                                                                         \
    TZ_FN double tz_nv_ull2double_##SUFFIX(uint64_t a)                                        \
    {                                                                                         \
        double r = (double)a;                                                                 \
        return tz_directed_f64(r, tz_side_integer(a, r), TO);                                 \
    }

TZ_FN int tz_side_integer(__int128 exact, double r)
{
    __int128 back = (__int128)r;
    return (exact > back) - (exact < back);
}

TZ_NV_DIRECTED(rd, TZ_DOWN)
TZ_NV_DIRECTED(ru, TZ_UP)
TZ_NV_DIRECTED(rz, TZ_ZERO)

/* Sums and products to nearest promise a rounding of their own, while gcc fuses a product
 * and a sum wherever they meet. Spelled as fused operations they cannot be fused again. */
TZ_FN float tz_nv_fadd_rn(float a, float b) { return tz_mad_f32(a, 1.0f, b); }
TZ_FN float tz_nv_fsub_rn(float a, float b) { return tz_mad_f32(a, 1.0f, -b); }
TZ_FN float tz_nv_fmul_rn(float a, float b) { return tz_mad_f32(a, b, -0.0f); }
TZ_FN float tz_nv_fdiv_rn(float a, float b) { return a / b; }
TZ_FN float tz_nv_frcp_rn(float a) { return 1.0f / a; }
TZ_FN float tz_nv_fsqrt_rn(float a) { return __builtin_sqrtf(a); }
TZ_FN float tz_nv_frsqrt_rn(float a) { return (float)(1.0 / __builtin_sqrt((double)a)); }
TZ_FN double tz_nv_dadd_rn(double a, double b) { return tz_mad_f64(a, 1.0, b); }
TZ_FN double tz_nv_dsub_rn(double a, double b) { return tz_mad_f64(a, 1.0, -b); }
TZ_FN double tz_nv_dmul_rn(double a, double b) { return tz_mad_f64(a, b, -0.0); }
TZ_FN double tz_nv_ddiv_rn(double a, double b) { return a / b; }
TZ_FN double tz_nv_drcp_rn(double a) { return 1.0 / a; }
TZ_FN double tz_nv_dsqrt_rn(double a) { return __builtin_sqrt(a); }
TZ_FN float tz_nv_double2float_rn(double a) { return (float)a; }
TZ_FN float tz_nv_int2float_rn(int32_t a) { return (float)a; }
TZ_FN float tz_nv_uint2float_rn(uint32_t a) { return (float)a; }
TZ_FN float tz_nv_ll2float_rn(int64_t a) { return (float)a; }
TZ_FN float tz_nv_ull2float_rn(uint64_t a) { return (float)a; }
TZ_FN double tz_nv_int2double_rn(int32_t a) { return (double)a; }
TZ_FN double tz_nv_uint2double_rn(uint32_t a) { return (double)a; }
TZ_FN double tz_nv_ll2double_rn(int64_t a) { return (double)a; }
TZ_FN double tz_nv_ull2double_rn(uint64_t a) { return (double)a; }

/* Floats to integers: rounded as asked, then saturated as tz_number.h says. */
#define TZ_NV_TO_INTEGER(SUFFIX, ROUND)                                                       \
    TZ_FN int32_t tz_nv_float2int_##SUFFIX(float a) { return tz_f32_to_i32(ROUND##f(a)); }    \
    TZ_FN uint32_t tz_nv_float2uint_##SUFFIX(float a) { return tz_f32_to_u32(ROUND##f(a)); }  \
    TZ_FN int64_t tz_nv_float2ll_##SUFFIX(float a) { return tz_f32_to_i64(ROUND##f(a)); }     \
    TZ_FN uint64_t tz_nv_float2ull_##SUFFIX(float a) { return tz_f32_to_u64(ROUND##f(a)); }   \
    TZ_FN int32_t tz_nv_double2int_##SUFFIX(double a) { return tz_f64_to_i32(ROUND(a)); }     \
    TZ_FN uint32_t tz_nv_double2uint_##SUFFIX(double a) { return tz_f64_to_u32(ROUND(a)); }   \
    TZ_FN int64_t tz_nv_double2ll_##SUFFIX(double a) { return tz_f64_to_i64(ROUND(a)); }      \
    TZ_FN uint64_t tz_nv_double2ull_##SUFFIX(double a) { return tz_f64_to_u64(ROUND(a)); }

TZ_NV_TO_INTEGER(rn, __builtin_rint)
TZ_NV_TO_INTEGER(rd, __builtin_floor)
TZ_NV_TO_INTEGER(ru, __builtin_ceil)
TZ_NV_TO_INTEGER(rz, __builtin_trunc)

TZ_FN int64_t tz_nv_llrint(double a) { return tz_f64_to_i64(__builtin_rint(a)); }
TZ_FN int64_t tz_nv_llrintf(float a) { return tz_f32_to_i64(__builtin_rintf(a)); }
TZ_FN int64_t tz_nv_llround(double a) { return tz_f64_to_i64(__builtin_round(a)); }
TZ_FN int64_t tz_nv_llroundf(float a) { return tz_f32_to_i64(__builtin_roundf(a)); }

#endif
