/* Special functions of libdevice that the C library lacks: scaled and inverse error
 * functions, the normal distribution, modified Bessel functions. Part of libdevice.h.
 *
 * Worked out in double, within 10 ulp, and rounded to float for the float versions.
 */
#ifndef TZ_LIBDEVICE_SPECIAL_H
#define TZ_LIBDEVICE_SPECIAL_H

#define TZ_SQRT_PI 0x1.c5bf891b4ef6bp+0

/* e^(x^2) erfc(x). x*x is taken with its rounding error, as e^(x^2) magnifies it. Where
 * erfc nears underflow, the asymptotic series, whose terms beyond these are below 2^-53. */
TZ_SLOW double tz_nv_erfcx(double x)
{
    if (x > 26.0) {
        double u = 0.5 / (x * x);
        double s = 1.0 - 9.0 * u * (1.0 - 11.0 * u * (1.0 - 13.0 * u));
        s = 1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u * s)));
        return s / (x * TZ_SQRT_PI);
    }
    double high = x * x, low = __builtin_fma(x, x, -high);
    double scale = __builtin_exp(high);
    double product = scale * __builtin_erfc(x);
    return scale < TZ_INF_F64 ? product + product * low : scale;
}

/* The inverse of erfc on (0, 1/2): Newton's method on log(erfc(x)), which is close to a
 * parabola, so that six steps end at the rounding error for every q, subnormals included. */
TZ_SLOW double tz_erfcinv_tail(double q)
{
    double target = __builtin_log(q);
    double t = -target - 0.5 * __builtin_log(-target + 0.5) - 0.4;
    double x = __builtin_sqrt(t > 0.05 ? t : 0.05);
    for (int step = 0; step < 6; step++) {
        double scaled = tz_nv_erfcx(x);
        double excess = __builtin_log(scaled) - x * x - target;
        x += excess * 0.5 * TZ_SQRT_PI * scaled;
    }
    return x;
}

/* The inverse of erf on [-1/2, 1/2]: Halley's method from the first terms of the series. */
TZ_SLOW double tz_erfinv_middle(double y)
{
    double z = y * y;
    double x = 0.5 * TZ_SQRT_PI * y * (1.0 + z * (0.2618 + z * (0.1439 + z * 0.2)));
    for (int step = 0; step < 3; step++) {
        double u = (__builtin_erf(x) - y) * 0.5 * TZ_SQRT_PI * __builtin_exp(x * x);
        x -= u / (1.0 + x * u);
    }
    return x;
}

TZ_SLOW double tz_nv_erfcinv(double q)
{
    if (!(q >= 0.0 && q <= 2.0))
        return TZ_NAN_F64;
    if (q == 0.0 || q == 2.0)
        return q == 0.0 ? TZ_INF_F64 : -TZ_INF_F64;
    if (q > 1.5)
        return -tz_erfcinv_tail(2.0 - q);
    return q < 0.5 ? tz_erfcinv_tail(q) : tz_erfinv_middle(1.0 - q);
}

TZ_SLOW double tz_nv_erfinv(double y)
{
    double a = __builtin_fabs(y);
    if (!(a <= 1.0))
        return TZ_NAN_F64;
    if (a <= 0.5)
        return a == 0.0 ? y : tz_erfinv_middle(y);
    return __builtin_copysign(a == 1.0 ? TZ_INF_F64 : tz_erfcinv_tail(1.0 - a), y);
}

TZ_FN double tz_nv_normcdfinv(double p) { return -0x1.6a09e667f3bcdp+0 * tz_nv_erfcinv(p + p); }

/* erfc(-x/sqrt(2))/2; the rounding error of the argument, which the tail magnifies, is put
 * back through the derivative. */
TZ_SLOW double tz_nv_normcdf(double x)
{
    double t = -x * 0x1.6a09e667f3bcdp-1;
    double low = __builtin_fma(-x, 0x1.6a09e667f3bcdp-1, -t) - x * -0x1.bdd3413b26456p-55;
    double y = 0.5 * __builtin_erfc(t);
    if (!(t > 1.0 && t < 30.0))
        return y;
    return y - y * low * 2.0 / (TZ_SQRT_PI * tz_nv_erfcx(t));
}

/* I_n for n = 0, 1: the power series, whose terms are all positive, or for large x the
 * asymptotic one, whose terms fall until the 2x-th. e^x is multiplied in as two halves
 * because it overflows before I_n does. */
TZ_SLOW double tz_bessel_i(int n, double x)
{
    double a = __builtin_fabs(x), term = 1.0, sum = 1.0;
    if (!(a < 800.0))
        return x != x ? x : (n ? x * TZ_INF_F64 : TZ_INF_F64);
    if (a < 30.0) {
        double z = 0.25 * a * a;
        for (int k = 1; term > sum * 0x1p-56; k++) {
            term *= z / ((double)k * (double)(k + n));
            sum += term;
        }
        return n ? 0.5 * x * sum : sum;
    }
    for (int k = 1; __builtin_fabs(term) > 0x1p-56; k++) {
        double odd = 2.0 * k - 1.0;
        term *= (odd * odd - 4.0 * n) / (8.0 * a * k);
        sum += term;
    }
    double half = __builtin_exp(0.5 * a);
    double y = half * (sum / __builtin_sqrt(0x1.921fb54442d18p+2 * a)) * half;
    return n ? __builtin_copysign(y, x) : y;
}

TZ_FN double tz_nv_cyl_bessel_i0(double x) { return tz_bessel_i(0, x); }
TZ_FN double tz_nv_cyl_bessel_i1(double x) { return tz_bessel_i(1, x); }

TZ_NV_WIDE(erfcx)
TZ_NV_WIDE(erfcinv)
TZ_NV_WIDE(erfinv)
TZ_NV_WIDE(normcdf)
TZ_NV_WIDE(normcdfinv)
TZ_NV_WIDE(cyl_bessel_i0)
TZ_NV_WIDE(cyl_bessel_i1)

#endif
