"""Exact references: rationals rounded to binary formats, and errors in units of the last place.

Enters: Python fractions or numpy arrays. Leaves: floats and bit patterns, found by a search among
all values of the format or by integer arithmetic. It must not use rounding conversions of a
library.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Format(NamedTuple):
    """A small binary float: mantissa and exponent bits, and the bits of its largest finite value,
    of the result of overflow, and of a converted infinity. In `fnuz` formats the bias is one higher
    and there is no negative zero."""

    mantissa: int
    exponent: int
    largest: int
    overflow: int
    infinity: int
    fnuz: bool = False

    @property
    def sign_bit(self) -> int:
        return 1 << (self.mantissa + self.exponent)

    def magnitudes(self) -> npt.NDArray[np.float64]:
        """All finite values from 0 up, in the order of their bits, and one step beyond."""
        bias = (1 << (self.exponent - 1)) - (not self.fnuz)
        bits = np.arange(self.largest + 2)
        field = bits >> self.mantissa
        fraction = (bits & ((1 << self.mantissa) - 1)) / (1 << self.mantissa)
        normal = np.ldexp(1 + fraction, field - bias)
        return np.where(field == 0, np.ldexp(fraction, 1 - bias), normal)


F16 = Format(10, 5, 0x7BFF, 0x7C00, 0x7C00)
BF16 = Format(7, 8, 0x7F7F, 0x7F80, 0x7F80)
E4M3 = Format(3, 4, 0x7E, 0x7E, 0x7E)
E5M2 = Format(2, 5, 0x7B, 0x7B, 0x7B)
E4M3FNUZ = Format(3, 4, 0x7F, 0x7F, 0x7F, fnuz=True)
E5M2FNUZ = Format(2, 5, 0x7F, 0x7F, 0x7F, fnuz=True)


def encode(values: Array, to: Format, toward_zero: bool = False) -> npt.NDArray[np.int64]:
    """Bits of each value (exact in float64) in the format; -1 for NaN."""
    table = to.magnitudes()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        x = np.abs(values.astype(np.float64))
    low = np.searchsorted(table, x, side="right") - 1
    low = np.minimum(low, to.largest)
    if toward_zero:
        bits = low
    else:
        middle = (table[low] + table[low + 1]) / 2
        up = (x > middle) | ((x == middle) & (low % 2 == 1))
        bits = np.where(low + up > to.largest, to.overflow, low + up)
    bits = np.where(np.isinf(x), to.infinity, bits)
    signed = np.signbit(values) & ((bits != 0) | (not to.fnuz))
    bits = bits | np.where(signed, to.sign_bit, 0)
    return np.where(np.isnan(values), -1, bits).astype(np.int64)


def boundaries(to: Format) -> npt.NDArray[np.float64]:
    """Values of the format, their midpoints, and numbers slightly above and below."""
    table = to.magnitudes()
    table = np.concatenate([table, (table[1:] + table[:-1]) / 2])
    near = [table, np.nextafter(table, np.inf), np.nextafter(table, 0)]
    near += [table * (1 + 2.0**-23), table * (1 - 2.0**-24), table * (1 + 2.0**-30)]
    both = np.concatenate(near)
    return np.concatenate([both, -both])


def round_fraction(value: Fraction, mode: str, bits: int, least: int) -> float:
    """A rational rounded to `bits` of precision, no exponent below `least`; mode n, d, u or z."""
    if value == 0:
        return 0.0
    sign = -1.0 if value < 0 else 1.0
    exponent = math.floor(math.log2(abs(value.numerator))) - math.floor(
        math.log2(value.denominator)
    )
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, least)
    scaled = value / unit
    down = scaled.numerator // scaled.denominator
    rest = scaled - down
    if mode == "d" or (mode == "z" and value > 0):
        whole = down
    elif mode in "uz":
        whole = down + (rest != 0)
    else:
        whole = down + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1))
    result = whole * unit
    limit = (Fraction(2) ** bits - 1) * Fraction(2) ** (-least - 2 * bits + 3)
    if abs(result) > limit:
        inward = mode == "z" or mode == ("d" if value > 0 else "u")
        return sign * float(limit) if inward else sign * math.inf
    return sign * abs(float(result))


def ulps(got: Array, want: Array) -> npt.NDArray[np.float64]:
    """Distance from a float64 reference in units of the last place of `got`'s type.

    Equal infinities and NaNs count 0, unequal ones infinity; the sign of zero must agree where
    the reference is 0 exactly.
    """
    with np.errstate(all="ignore"):
        narrow = want.astype(got.dtype)
        unit = np.spacing(np.minimum(np.abs(narrow), np.finfo(got.dtype).max)).astype(np.float64)
        apart = np.abs(got.astype(np.float64) - want) / unit
        same = (got == narrow) & ((want != 0) | (np.signbit(got) == np.signbit(want)))
        same |= np.isnan(got) & np.isnan(want)
        apart = np.where(same, np.minimum(np.nan_to_num(apart, posinf=0.0), 0.5), apart)
        strange = np.isnan(apart) | (np.isnan(got) != np.isnan(want))
        strange |= (want == 0) & (np.signbit(got) != np.signbit(want))
        return np.where(strange, np.inf, apart)
