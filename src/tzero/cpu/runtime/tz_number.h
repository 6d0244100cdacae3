/* Number types of the generated kernels: storage conversions, integer and float-to-int
 * arithmetic that never traps, and minimum/maximum with the NaN rules of Triton.
 *
 * Enters: C scalars. Leaves: C scalars. It knows nothing of kernels, threads or memory.
 *
 * Everything is branch-free or if-convertible, so that a loop calling these functions is
 * vectorised by gcc >= 11 and clang at -O3 with -fno-math-errno -fno-trapping-math.
 * -ffast-math would break it; -ffp-contract may be on or off.
 *
 * Conventions
 *   f16, bf16    stored as uint16_t; in expressions they are floats that the narrow type can
 *                represent exactly (tz_round_f16, tz_round_bf16 bring a result back there)
 *   e4m3, e5m2   stored as uint8_t (MLIR f8E4M3FN and f8E5M2)
 *   e4m3fnuz, e5m2fnuz   the same with a bias one higher, without infinities and -0: 0x80 is NaN
 *   e8m0, e2m1   scale bytes and 4-bit values of dot_scaled
 *   suffix _rtz  rounds toward zero; without it to nearest, ties to even
 */
#ifndef TZ_NUMBER_H
#define TZ_NUMBER_H

#include <stdint.h>

#define TZ_FN static inline __attribute__((always_inline, unused))

/* Fused multiply-add is one instruction here. Elsewhere tz_mad_* rounds twice, and the
 * functions using it are written to tolerate that. */
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
#define TZ_HAS_FMA 1
#else
#define TZ_HAS_FMA 0
#endif

/* _Float16 is used where its conversions are instructions that loops vectorise with. A
 * library call per element (baseline x86-64) is slower than the bit arithmetic below, and
 * so are gcc's scalar instructions on x86: gcc 12 does not vectorise them even with
 * AVX512-FP16, and clang before 15 has the type only there. */
#if defined(__FLT16_MANT_DIG__) && \
    (defined(__aarch64__) || \
     (defined(__clang__) && (defined(__AVX512FP16__) || \
                             (defined(__F16C__) && __clang_major__ >= 15))))
#define TZ_NATIVE_F16 1
#else
#define TZ_NATIVE_F16 0
#endif

typedef union { float f; uint32_t u; int32_t i; } tz_pun32;
typedef union { double f; uint64_t u; int64_t i; } tz_pun64;

TZ_FN uint32_t tz_bits_f32(float x) { tz_pun32 p; p.f = x; return p.u; }
TZ_FN float tz_from_bits_f32(uint32_t u) { tz_pun32 p; p.u = u; return p.f; }
TZ_FN uint64_t tz_bits_f64(double x) { tz_pun64 p; p.f = x; return p.u; }
TZ_FN double tz_from_bits_f64(uint64_t u) { tz_pun64 p; p.u = u; return p.f; }

#define TZ_INF_BITS 0x7f800000u
#define TZ_INF_F32 __builtin_inff()
#define TZ_NAN_F32 __builtin_nanf("")
#define TZ_INF_F64 __builtin_inf()
#define TZ_NAN_F64 __builtin_nan("")

TZ_FN float tz_mad_f32(float a, float b, float c)
{
#if TZ_HAS_FMA
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

TZ_FN double tz_mad_f64(double a, double b, double c)
{
#if TZ_HAS_FMA
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* ---- narrow floats to f32: all exact --------------------------------------------------- */

TZ_FN float tz_bf16_to_f32(uint16_t h) { return tz_from_bits_f32((uint32_t)h << 16); }

/* Bits of an f16 or of a narrower format with the same 5-bit exponent, shifted to f16's
 * place. Subnormals are normalised by a subtraction of normal floats, so that the result
 * does not depend on the processor's denormals-are-zero mode and is never slow. */
TZ_FN float tz_soft_f16_to_f32(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16;
    uint32_t mag = (h & 0x7fffu) << 13;
    uint32_t normal = mag + (112u << 23);
    uint32_t special = mag | TZ_INF_BITS;
    uint32_t tiny = tz_bits_f32(tz_from_bits_f32(mag | (113u << 23)) - 0x1p-14f);
    uint32_t finite = mag < (1u << 23) ? tiny : normal;
    return tz_from_bits_f32((mag >= (31u << 23) ? special : finite) | sign);
}

TZ_FN float tz_f16_to_f32(uint16_t h)
{
#if TZ_NATIVE_F16
    union { uint16_t u; _Float16 f; } p;
    p.u = h;
    return (float)p.f;
#else
    return tz_soft_f16_to_f32(h);
#endif
}

TZ_FN float tz_e5m2_to_f32(uint8_t v) { return tz_soft_f16_to_f32((uint32_t)v << 8); }

TZ_FN float tz_e4m3_to_f32(uint8_t v)
{
    uint32_t sign = ((uint32_t)v & 0x80u) << 24;
    uint32_t mag = (uint32_t)v & 0x7fu;
    uint32_t normal = (mag << 20) + (120u << 23);
    uint32_t tiny = tz_bits_f32((float)(int32_t)mag * 0x1p-9f);
    uint32_t finite = mag < 8u ? tiny : normal;
    return tz_from_bits_f32((mag == 0x7fu ? 0x7fc00000u : finite) | sign);
}

/* Formats without infinities, whose only NaN takes the place of -0. */
TZ_FN float tz_fnuz_to_f32(uint8_t v, uint32_t man, uint32_t bias)
{
    uint32_t sign = ((uint32_t)v & 0x80u) << 24;
    uint32_t mag = (uint32_t)v & 0x7fu;
    uint32_t normal = (mag << (23u - man)) + ((127u - bias) << 23);
    uint32_t tiny = tz_bits_f32((float)(int32_t)mag * tz_from_bits_f32((128u - bias - man) << 23));
    uint32_t finite = mag < (1u << man) ? tiny : normal;
    return tz_from_bits_f32(v == 0x80u ? 0x7fc00000u : finite | sign);
}

TZ_FN float tz_e4m3fnuz_to_f32(uint8_t v) { return tz_fnuz_to_f32(v, 3, 8); }
TZ_FN float tz_e5m2fnuz_to_f32(uint8_t v) { return tz_fnuz_to_f32(v, 2, 16); }

/* 2^(v-127); 2^-127 is subnormal in f32; 255 is NaN. */
TZ_FN float tz_e8m0_to_f32(uint8_t v)
{
    uint32_t u = v == 0 ? 0x00400000u : (uint32_t)v << 23;
    return tz_from_bits_f32(v == 255 ? 0x7fc00000u : u);
}

/* The low 4 bits: sign, two exponent bits, one mantissa bit: 0 .5 1 1.5 2 3 4 6. */
TZ_FN float tz_e2m1_to_f32(uint8_t nibble)
{
    uint32_t sign = ((uint32_t)nibble & 8u) << 28;
    uint32_t mag = (uint32_t)nibble & 7u;
    uint32_t normal = (mag << 22) + (126u << 23);
    uint32_t tiny = mag ? 0x3f000000u : 0u;
    return tz_from_bits_f32((mag < 2u ? tiny : normal) | sign);
}

/* ---- f32 to narrow floats -------------------------------------------------------------- */

/* Magnitude of an f32 in a format of `man` mantissa bits and exponent bias `bias`, as that
 * format's bits, rounded to nearest even, unbounded above (infinity and NaN give large
 * values the caller replaces). Below the smallest normal, adding a power of two whose ulp
 * is the format's smallest subnormal lets the FPU round. */
TZ_FN uint32_t tz_narrow_rn(uint32_t mag, uint32_t man, uint32_t bias)
{
    uint32_t drop = 23u - man;
    uint32_t lift = (127u - bias) << 23;
    uint32_t magic = (151u - bias - man) << 23;
    uint32_t odd = (mag >> drop) & 1u;
    uint32_t normal = (mag + ((1u << (drop - 1u)) - 1u) + odd - lift) >> drop;
    uint32_t tiny = tz_bits_f32(tz_from_bits_f32(mag) + tz_from_bits_f32(magic)) - magic;
    return mag < lift + (1u << 23) ? tiny : normal;
}

/* The same, rounded toward zero. */
TZ_FN uint32_t tz_narrow_rz(uint32_t mag, uint32_t man, uint32_t bias)
{
    uint32_t lift = (127u - bias) << 23;
    uint32_t small = lift + (1u << 23);
    uint32_t normal = (mag - lift) >> (23u - man);
    float low = tz_from_bits_f32(mag < small ? mag : 0u);
    uint32_t tiny = (uint32_t)(int32_t)(low * tz_from_bits_f32((126u + bias + man) << 23));
    return mag < small ? tiny : normal;
}

TZ_FN uint32_t tz_min_u32_(uint32_t a, uint32_t b) { return a < b ? a : b; }

TZ_FN uint16_t tz_soft_f32_to_f16(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rn(mag, 10, 15), 0x7c00u);
    r = mag > TZ_INF_BITS ? 0x7e00u : r;
    return (uint16_t)(r | ((u >> 16) & 0x8000u));
}

TZ_FN uint16_t tz_f32_to_f16(float x)
{
#if TZ_NATIVE_F16
    union { uint16_t u; _Float16 f; } p;
    p.f = (_Float16)x;
    return p.u;
#else
    return tz_soft_f32_to_f16(x);
#endif
}

/* Finite values beyond the range become the largest finite value; infinity stays. */
TZ_FN uint16_t tz_f32_to_f16_rtz(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rz(mag, 10, 15), 0x7bffu);
    r = mag >= TZ_INF_BITS ? 0x7c00u : r;
    r = mag > TZ_INF_BITS ? 0x7e00u : r;
    return (uint16_t)(r | ((u >> 16) & 0x8000u));
}

TZ_FN uint16_t tz_f32_to_bf16(float x)
{
    uint32_t u = tz_bits_f32(x);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > TZ_INF_BITS ? 0x7fffu : r);
}

TZ_FN uint16_t tz_f32_to_bf16_rtz(float x)
{
    uint32_t u = tz_bits_f32(x);
    return (uint16_t)((u & 0x7fffffffu) > TZ_INF_BITS ? 0x7fffu : u >> 16);
}

/* To fp8 as PTX's cvt.rn.satfinite: beyond the range, infinities included, becomes the
 * largest finite value (448; 57344); NaN becomes 0x7f. */
TZ_FN uint8_t tz_f32_to_e4m3(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rn(mag, 3, 7), 0x7eu) | ((u >> 24) & 0x80u);
    return (uint8_t)(mag > TZ_INF_BITS ? 0x7fu : r);
}

TZ_FN uint8_t tz_f32_to_e5m2(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rn(mag, 2, 15), 0x7bu) | ((u >> 24) & 0x80u);
    return (uint8_t)(mag > TZ_INF_BITS ? 0x7fu : r);
}

/* No GPU instruction rounds to e4m3 toward zero: this is the truncation of the above. */
TZ_FN uint8_t tz_f32_to_e4m3_rtz(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rz(mag, 3, 7), 0x7eu) | ((u >> 24) & 0x80u);
    return (uint8_t)(mag > TZ_INF_BITS ? 0x7fu : r);
}

/* Triton truncates to f16 and then drops its low byte, so here infinity stays infinite. */
TZ_FN uint8_t tz_f32_to_e5m2_rtz(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t r = tz_min_u32_(tz_narrow_rz(mag, 2, 15), 0x7bu);
    r = mag >= TZ_INF_BITS ? 0x7cu : r;
    r |= (u >> 24) & 0x80u;
    return (uint8_t)(mag > TZ_INF_BITS ? 0x7fu : r);
}

/* Beyond the range, infinities included, becomes the largest finite value (240; 57344). What
 * rounds to zero loses its sign. */
TZ_FN uint8_t tz_fnuz_(float x, uint32_t rounded)
{
    uint32_t u = tz_bits_f32(x);
    uint32_t r = tz_min_u32_(rounded, 0x7fu);
    r |= r ? (u >> 24) & 0x80u : 0u;
    return (uint8_t)((u & 0x7fffffffu) > TZ_INF_BITS ? 0x80u : r);
}

#define TZ_FNUZ(NAME, MAN, BIAS)                                                          \
    TZ_FN uint8_t tz_f32_to_##NAME(float x)                                               \
    {                                                                                     \
        return tz_fnuz_(x, tz_narrow_rn(tz_bits_f32(x) & 0x7fffffffu, MAN, BIAS));        \
    }                                                                                     \
    TZ_FN uint8_t tz_f32_to_##NAME##_rtz(float x)                                         \
    {                                                                                     \
        return tz_fnuz_(x, tz_narrow_rz(tz_bits_f32(x) & 0x7fffffffu, MAN, BIAS));        \
    }
TZ_FNUZ(e4m3fnuz, 3, 8)
TZ_FNUZ(e5m2fnuz, 2, 16)

TZ_FN float tz_round_bf16(float x)
{
    uint32_t u = tz_bits_f32(x);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    return tz_from_bits_f32((u & 0x7fffffffu) > TZ_INF_BITS ? 0x7fff0000u : r);
}

TZ_FN float tz_soft_round_f16(float x)
{
    uint32_t u = tz_bits_f32(x), mag = u & 0x7fffffffu;
    uint32_t normal = (mag + 0xfffu + ((mag >> 13) & 1u)) & ~0x1fffu;
    uint32_t tiny = tz_bits_f32((tz_from_bits_f32(mag) + 0.5f) - 0.5f);
    uint32_t r = mag < (113u << 23) ? tiny : normal;
    r = r >= (143u << 23) ? TZ_INF_BITS : r;
    r = mag > TZ_INF_BITS ? 0x7fc00000u : r;
    return tz_from_bits_f32(r | (u & 0x80000000u));
}

TZ_FN float tz_round_f16(float x)
{
#if TZ_NATIVE_F16
    return tz_f16_to_f32(tz_f32_to_f16(x));
#else
    return tz_soft_round_f16(x);
#endif
}

/* ---- f64 and integers to narrower floats ------------------------------------------------ */

/* Round to odd: an inexact result gets its last bit set, so that a second rounding to a
 * format at least two bits narrower is the same as one direct rounding. */
TZ_FN float tz_f64_to_f32_odd(double x)
{
    float f = (float)x;
    double back = (double)f;
    uint32_t u = tz_bits_f32(f);
    u -= __builtin_fabs(back) > __builtin_fabs(x) ? 1u : 0u;
    u |= back != x ? 1u : 0u;
    return tz_from_bits_f32(u);
}

TZ_FN float tz_f64_to_f32(double x) { return (float)x; }

TZ_FN float tz_f64_to_f32_rtz(double x)
{
    float f = (float)x;
    uint32_t u = tz_bits_f32(f);
    u -= __builtin_fabs((double)f) > __builtin_fabs(x) ? 1u : 0u;
    return tz_from_bits_f32(u);
}

TZ_FN uint16_t tz_f64_to_f16(double x) { return tz_f32_to_f16(tz_f64_to_f32_odd(x)); }
TZ_FN uint16_t tz_f64_to_bf16(double x) { return tz_f32_to_bf16(tz_f64_to_f32_odd(x)); }
TZ_FN uint8_t tz_f64_to_e4m3(double x) { return tz_f32_to_e4m3(tz_f64_to_f32_odd(x)); }
TZ_FN uint8_t tz_f64_to_e5m2(double x) { return tz_f32_to_e5m2(tz_f64_to_f32_odd(x)); }
TZ_FN uint8_t tz_f64_to_e4m3fnuz(double x) { return tz_f32_to_e4m3fnuz(tz_f64_to_f32_odd(x)); }
TZ_FN uint8_t tz_f64_to_e5m2fnuz(double x) { return tz_f32_to_e5m2fnuz(tz_f64_to_f32_odd(x)); }
TZ_FN uint16_t tz_f64_to_f16_rtz(double x) { return tz_f32_to_f16_rtz(tz_f64_to_f32_rtz(x)); }
TZ_FN uint16_t tz_f64_to_bf16_rtz(double x) { return tz_f32_to_bf16_rtz(tz_f64_to_f32_rtz(x)); }
TZ_FN uint8_t tz_f64_to_e4m3_rtz(double x) { return tz_f32_to_e4m3_rtz(tz_f64_to_f32_rtz(x)); }
TZ_FN uint8_t tz_f64_to_e5m2_rtz(double x) { return tz_f32_to_e5m2_rtz(tz_f64_to_f32_rtz(x)); }
TZ_FN uint8_t tz_f64_to_e4m3fnuz_rtz(double x)
{
    return tz_f32_to_e4m3fnuz_rtz(tz_f64_to_f32_rtz(x));
}
TZ_FN uint8_t tz_f64_to_e5m2fnuz_rtz(double x)
{
    return tz_f32_to_e5m2fnuz_rtz(tz_f64_to_f32_rtz(x));
}

/* Integers beyond 24 bits would round twice on the way to bf16 through f32. (On the way to
 * f16 they cannot: what f32 rounds is infinite there.) Above 53 bits the low bits are
 * gathered in a sticky one first. */
TZ_FN uint16_t tz_i32_to_bf16(int32_t v) { return tz_f64_to_bf16((double)v); }
TZ_FN uint16_t tz_u32_to_bf16(uint32_t v) { return tz_f64_to_bf16((double)v); }

TZ_FN uint16_t tz_u64_to_bf16(uint64_t v)
{
    uint64_t sticky = (v & ~(uint64_t)0xfff) | ((v & 0xfffu) ? 0x800u : 0u);
    return tz_f64_to_bf16((double)(v >> 53 ? sticky : v));
}

TZ_FN uint16_t tz_i64_to_bf16(int64_t v)
{
    uint64_t mag = v < 0 ? 0u - (uint64_t)v : (uint64_t)v;
    return (uint16_t)(tz_u64_to_bf16(mag) | (v < 0 ? 0x8000u : 0u));
}

/* ---- integers ---------------------------------------------------------------------------- */

/* Division truncates as in C. Where C has no answer:
 *   x / 0 -> all bits set    x % 0 -> x    MIN / -1 -> MIN    MIN % -1 -> 0
 * Shifts by the width or more give 0, or the sign for the arithmetic right shift.
 *
 * Quotients of up to 32 bits are taken in floating point when the divisor is not a
 * compile-time constant: unlike the integer instruction it vectorises, and it is exact. A
 * quotient a/b that is not the integer m above it is below m by 1/b at least, a relative
 * gap of 1/(mb) or more than 2^-(n+1) for n-bit integers, which float (24 bits) keeps for n
 * up to 16 and double for 32. */
#define TZ_INT_OPS(W, S, U, MIN, VIA, QUOT_S, QUOT_U)                                         \
    TZ_FN S tz_divs_i##W(S a, S b)                                                            \
    {                                                                                         \
        S d = (S)((b == 0) | ((a == MIN) & (b == -1)) ? 1 : b);                               \
        S q = __builtin_constant_p(b) ? (S)(a / d) : QUOT_S(a, d, S, VIA);                    \
        return (S)(b == 0 ? -1 : q);                                                          \
    }                                                                                         \
    TZ_FN S tz_rems_i##W(S a, S b)                                                            \
    {                                                                                         \
        S d = (S)((b == 0) | ((a == MIN) & (b == -1)) ? 1 : b);                               \
        S q = __builtin_constant_p(b) ? (S)(a / d) : QUOT_S(a, d, S, VIA);                    \
        return (S)(b == 0 ? a : (S)((U)a - (U)q * (U)d));                                     \
    }                                                                                         \
    TZ_FN U tz_divu_i##W(U a, U b)                                                            \
    {                                                                                         \
        U d = (U)(b == 0 ? 1 : b);                                                            \
        U q = __builtin_constant_p(b) ? (U)(a / d) : QUOT_U(a, d, U, VIA);                    \
        return (U)(b == 0 ? (U)-1 : q);                                                       \
    }                                                                                         \
    TZ_FN U tz_remu_i##W(U a, U b)                                                            \
    {                                                                                         \
        U d = (U)(b == 0 ? 1 : b);                                                            \
        U q = __builtin_constant_p(b) ? (U)(a / d) : QUOT_U(a, d, U, VIA);                    \
        return (U)(b == 0 ? a : (U)(a - (U)(q * d)));                                         \
    }                                                                                         \
    TZ_FN S tz_shl_i##W(S a, S n)                                                             \
    {                                                                                         \
        S r = (S)((U)a << ((U)n & (W - 1)));                                                  \
        return (S)((U)n < W ? r : 0);                                                         \
    }                                                                                         \
    TZ_FN U tz_shru_i##W(U a, U n)                                                            \
    {                                                                                         \
        U r = (U)(a >> (n & (W - 1)));                                                        \
        return (U)(n < W ? r : 0);                                                            \
    }                                                                                         \
    TZ_FN S tz_shrs_i##W(S a, S n)                                                            \
    {                                                                                         \
        return (S)(a >> ((U)n < W ? (U)n : (U)(W - 1)));                                      \
    }                                                                                         \
    TZ_FN S tz_abs_i##W(S a) { return (S)(a < 0 ? (U)(0 - (U)a) : (U)a); }

#define TZ_QUOT_FLOAT(a, d, T, VIA) ((T)((VIA)(a) / (VIA)(d)))
#define TZ_QUOT_INT(a, d, T, VIA) ((T)((a) / (d)))

TZ_INT_OPS(8, int8_t, uint8_t, INT8_MIN, float, TZ_QUOT_FLOAT, TZ_QUOT_FLOAT)
TZ_INT_OPS(16, int16_t, uint16_t, INT16_MIN, float, TZ_QUOT_FLOAT, TZ_QUOT_FLOAT)
TZ_INT_OPS(32, int32_t, uint32_t, INT32_MIN, double, TZ_QUOT_FLOAT, TZ_QUOT_FLOAT)
TZ_INT_OPS(64, int64_t, uint64_t, INT64_MIN, double, TZ_QUOT_INT, TZ_QUOT_INT)

/* High half of the full product. */
TZ_FN uint32_t tz_mulhi_u32(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
TZ_FN int32_t tz_mulhi_i32(int32_t a, int32_t b) { return (int32_t)(((int64_t)a * b) >> 32); }

TZ_FN uint64_t tz_mulhi_u64(uint64_t a, uint64_t b)
{
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
}

TZ_FN int64_t tz_mulhi_i64(int64_t a, int64_t b) { return (int64_t)(((__int128)a * b) >> 64); }

/* ---- floats to integers ------------------------------------------------------------------ */

/* As NVIDIA's cvt.rzi, which is what Triton's casts become there: toward zero, saturating
 * at the ends of the integer type. NaN gives 0 when neither side is 64 bits wide and
 * otherwise only the top bit set. 8-bit results are the low byte of the 16-bit ones (there
 * is no 8-bit conversion instruction), so they wrap between -32768 and 32767.
 *
 * BELOW is the largest float under the type's upper end, END that end itself. */
#define TZ_TO_INT(NAME, F, T, LO, BELOW, END, MAX, NAN_VALUE)                                  \
    TZ_FN T NAME(F x)                                                                         \
    {                                                                                         \
        F c = x > (F)(LO) ? x : (F)(LO);                                                      \
        c = c < (F)(BELOW) ? c : (F)(BELOW);                                                  \
        T r = (T)c;                                                                           \
        r = x >= (F)(END) ? (T)(MAX) : r;                                                     \
        return x == x ? r : (T)(NAN_VALUE);                                                   \
    }

TZ_TO_INT(tz_f32_to_i32, float, int32_t, -0x1p31, 0x1.fffffep30, 0x1p31, INT32_MAX, 0)
TZ_TO_INT(tz_f32_to_u32, float, uint32_t, 0, 0x1.fffffep31, 0x1p32, UINT32_MAX, 0)
TZ_TO_INT(tz_f32_to_i64, float, int64_t, -0x1p63, 0x1.fffffep62, 0x1p63, INT64_MAX, INT64_MIN)
TZ_TO_INT(tz_f32_to_u64, float, uint64_t, 0, 0x1.fffffep63, 0x1p64, UINT64_MAX, 1ull << 63)
TZ_TO_INT(tz_f64_to_i32, double, int32_t, -0x1p31, 2147483647.0, 0x1p31, INT32_MAX, INT32_MIN)
TZ_TO_INT(tz_f64_to_u32, double, uint32_t, 0, 4294967295.0, 0x1p32, UINT32_MAX, 1u << 31)
TZ_TO_INT(tz_f64_to_i64, double, int64_t, -0x1p63, 0x1.fffffffffffffp62, 0x1p63, INT64_MAX,
          INT64_MIN)
TZ_TO_INT(tz_f64_to_u64, double, uint64_t, 0, 0x1.fffffffffffffp63, 0x1p64, UINT64_MAX,
          1ull << 63)

#define TZ_TO_SHORT(NAME, F, T, LO, HI, NAN_VALUE)                                             \
    TZ_FN T NAME(F x)                                                                         \
    {                                                                                         \
        F c = x > (F)(LO) ? x : (F)(LO);                                                      \
        c = c < (F)(HI) ? c : (F)(HI);                                                        \
        return (T)(x == x ? (int32_t)c : (NAN_VALUE));                                        \
    }

TZ_TO_SHORT(tz_f32_to_i16, float, int16_t, -32768, 32767, 0)
TZ_TO_SHORT(tz_f32_to_u16, float, uint16_t, 0, 65535, 0)
TZ_TO_SHORT(tz_f32_to_i8, float, int8_t, -32768, 32767, 0)
TZ_TO_SHORT(tz_f32_to_u8, float, uint8_t, 0, 65535, 0)
TZ_TO_SHORT(tz_f64_to_i16, double, int16_t, -32768, 32767, INT16_MIN)
TZ_TO_SHORT(tz_f64_to_u16, double, uint16_t, 0, 65535, 0x8000)
TZ_TO_SHORT(tz_f64_to_i8, double, int8_t, -32768, 32767, 0)
TZ_TO_SHORT(tz_f64_to_u8, double, uint8_t, 0, 65535, 0)

/* ---- minimum and maximum ----------------------------------------------------------------- */

/* maxnum/minnum: a NaN loses (IEEE 754-2008 maxNum, Triton's default); maximum/minimum: a
 * NaN wins. Zeros are ordered, -0 < +0, as on a GPU: equal operands can differ only in the
 * sign of a zero, and then the AND (OR) of the bits is the larger (smaller). */
#define TZ_MIN_MAX(F, NAME, BITS, FROM)                                                        \
    TZ_FN F tz_maxnum_##NAME(F a, F b)                                                        \
    {                                                                                         \
        F m = a > b ? a : b;                                                                  \
        m = a == b ? FROM(BITS(a) & BITS(b)) : m;                                             \
        return b != b ? a : m;                                                                \
    }                                                                                         \
    TZ_FN F tz_minnum_##NAME(F a, F b)                                                        \
    {                                                                                         \
        F m = a < b ? a : b;                                                                  \
        m = a == b ? FROM(BITS(a) | BITS(b)) : m;                                             \
        return b != b ? a : m;                                                                \
    }                                                                                         \
    TZ_FN F tz_maximum_##NAME(F a, F b)                                                       \
    {                                                                                         \
        F m = a > b ? a : b;                                                                  \
        m = a == b ? FROM(BITS(a) & BITS(b)) : m;                                             \
        return a != a ? a : m;                                                                \
    }                                                                                         \
    TZ_FN F tz_minimum_##NAME(F a, F b)                                                       \
    {                                                                                         \
        F m = a < b ? a : b;                                                                  \
        m = a == b ? FROM(BITS(a) | BITS(b)) : m;                                             \
        return a != a ? a : m;                                                                \
    }                                                                                         \
    /* min(max(x, lo), hi); without propagation a NaN x gives lo. */                          \
    TZ_FN F tz_clamp_##NAME(F x, F lo, F hi, int propagate_nan)                               \
    {                                                                                         \
        F num = tz_minnum_##NAME(tz_maxnum_##NAME(x, lo), hi);                                \
        F all = tz_minimum_##NAME(tz_maximum_##NAME(x, lo), hi);                              \
        return propagate_nan ? all : num;                                                     \
    }

TZ_MIN_MAX(float, f32, tz_bits_f32, tz_from_bits_f32)
TZ_MIN_MAX(double, f64, tz_bits_f64, tz_from_bits_f64)

#endif
