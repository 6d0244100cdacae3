"""Every function of `tl.extra.libdevice`: signatures, where to sample it, what it must give.

Enters: nothing. Leaves: `ENTRIES`, one per function, read by test_libdevice. References are exact
(integers, fractions) or mpmath's; the ulps are those NVIDIA documents for the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from mpmath import mpf

from tests.cpu.cases import FORMATS, round_fraction

FLOAT_TYPES = ("fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Domain:
    """Where one argument is sampled."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One function. `variants` maps the dtype shown in the table to (argument dtypes, result)."""

    name: str
    variants: dict[str, tuple[tuple[str, ...], str]]
    reference: Callable[..., Any]  # of mpf or int values; also takes `dtype` if `typed`
    domains: tuple[Domain, ...]
    ulps: dict[str, float] = field(default_factory=dict)
    floor: float = 0.0  # below this magnitude, an ulp is that of this magnitude
    typed: bool = False
    nan: float = np.nan  # the result of a NaN argument


ENTRIES: dict[str, Entry] = {}


def add(entry: Entry) -> None:
    assert entry.name not in ENTRIES
    ENTRIES[entry.name] = entry


def floats(arguments: int = 1, result: str = "") -> dict[str, tuple[tuple[str, ...], str]]:
    return {t: ((t,) * arguments, result or t) for t in FLOAT_TYPES}


# -- real functions, by their documented error ----------------------------------------------------


def function(
    name: str, reference: Callable[..., Any], domain: tuple[float, ...], fp32: float, fp64: float,
    floor: float = 0.0, arguments: int = 1,
) -> None:  # fmt: skip
    log = len(domain) == 3
    domains = (Domain(domain[0], domain[1], log),) * arguments
    add(Entry(name, floats(arguments), reference, domains, {"fp32": fp32, "fp64": fp64}, floor))


def erfcx(v: Any) -> Any:
    return mpmath.exp(v * v) * mpmath.erfc(v)


def norm(*v: Any) -> Any:
    return mpmath.sqrt(sum(x * x for x in v))


function("sin", mpmath.sin, (-1000, 1000), 2, 2)
function("cos", mpmath.cos, (-1000, 1000), 2, 2)
function("tan", mpmath.tan, (-100, 100), 4, 2)
function("sinpi", mpmath.sinpi, (-20, 20), 2, 2)
function("cospi", mpmath.cospi, (-20, 20), 2, 2)
function("asin", mpmath.asin, (-1, 1), 2, 2)
function("acos", mpmath.acos, (-1, 1), 2, 2)
function("atan", mpmath.atan, (-50, 50), 2, 2)
function("sinh", mpmath.sinh, (-80, 80), 3, 2)
function("cosh", mpmath.cosh, (-80, 80), 2, 2)
function("tanh", mpmath.tanh, (-10, 10), 2, 2)
function("asinh", mpmath.asinh, (-1e4, 1e4), 3, 3)
function("acosh", mpmath.acosh, (1, 1e4), 4, 3)
function("atanh", mpmath.atanh, (-0.999, 0.999), 3, 2)
function("exp", mpmath.exp, (-80, 88), 2, 1)
function("exp2", lambda v: mpmath.power(2, v), (-120, 127), 2, 1)
function("exp10", lambda v: mpmath.power(10, v), (-37, 38), 2, 1)
function("expm1", mpmath.expm1, (-20, 80), 1, 1)
function("log", mpmath.log, (1e-30, 1e30, 0), 1, 1)
function("log2", lambda v: mpmath.log(v, 2), (1e-30, 1e30, 0), 1, 1)
function("log10", mpmath.log10, (1e-30, 1e30, 0), 2, 1)
function("log1p", mpmath.log1p, (-0.99, 1e3), 1, 1)
function("sqrt", mpmath.sqrt, (1e-30, 1e30, 0), 0.5, 0.5)
function("rsqrt", lambda v: 1 / mpmath.sqrt(v), (1e-30, 1e30, 0), 2, 1)
function("cbrt", lambda v: mpmath.sign(v) * mpmath.cbrt(abs(v)), (-1e6, 1e6), 1, 1)
function("rcbrt", lambda v: mpmath.sign(v) / mpmath.cbrt(abs(v)), (-1e6, 1e6), 2, 1)
function("erf", mpmath.erf, (-5, 5), 2, 2)
function("erfc", mpmath.erfc, (-4, 9), 4, 5)
function("erfcx", erfcx, (-5, 30), 4, 4)
function("erfinv", mpmath.erfinv, (-0.9999, 0.9999), 2, 8)
function("erfcinv", lambda v: mpmath.erfinv(1 - v), (1e-4, 1.9999), 4, 6)
function("normcdf", mpmath.ncdf, (-12, 6), 5, 5)
function("normcdfinv", lambda v: mpmath.sqrt(2) * mpmath.erfinv(2 * v - 1), (1e-4, 0.9999), 5, 8)
function("lgamma", lambda v: mpmath.log(abs(mpmath.gamma(v))), (1e-3, 60), 6, 4)
function("tgamma", mpmath.gamma, (0.05, 30), 11, 10)
function("j0", lambda v: mpmath.besselj(0, v), (-8, 8), 9, 7, 0.1)
function("j1", lambda v: mpmath.besselj(1, v), (-8, 8), 9, 7, 0.1)
function("y0", lambda v: mpmath.bessely(0, v), (0.05, 8), 9, 7, 0.1)
function("y1", lambda v: mpmath.bessely(1, v), (0.05, 8), 9, 7, 0.1)
function("cyl_bessel_i0", lambda v: mpmath.besseli(0, v), (-20, 20), 6, 6)
function("cyl_bessel_i1", lambda v: mpmath.besseli(1, v), (-20, 20), 6, 6)
function("atan2", mpmath.atan2, (-50, 50), 3, 2, 0.0, 2)
function("hypot", norm, (-1e3, 1e3), 3, 2, 0.0, 2)
function("rhypot", lambda *v: 1 / norm(*v), (-1e3, 1e3), 2, 1, 0.0, 2)
function("norm3d", norm, (-1e3, 1e3), 3, 2, 0.0, 3)
function("rnorm3d", lambda *v: 1 / norm(*v), (-1e3, 1e3), 2, 1, 0.0, 3)
function("norm4d", norm, (-1e3, 1e3), 3, 2, 0.0, 4)
function("rnorm4d", lambda *v: 1 / norm(*v), (-1e3, 1e3), 2, 1, 0.0, 4)

# The fast ones are bounded absolutely near their zeros; ours need not be better than that.
for _name, _reference, _domain in (
    ("fast_sinf", mpmath.sin, (-3, 3)),
    ("fast_cosf", mpmath.cos, (-3, 3)),
    ("fast_tanf", mpmath.tan, (-1.4, 1.4)),
    ("fast_expf", mpmath.exp, (-2, 2)),
    ("fast_exp10f", lambda v: mpmath.power(10, v), (-1, 1)),
    ("fast_logf", mpmath.log, (0.5, 2)),
    ("fast_log2f", lambda v: mpmath.log(v, 2), (0.5, 2)),
    ("fast_log10f", mpmath.log10, (0.5, 2)),
):
    _d = (Domain(float(_domain[0]), float(_domain[1])),)
    add(Entry(_name, {"fp32": (("fp32",), "fp32")}, _reference, _d, {"fp32": 8}, floor=1.0))

_TWO = (Domain(0.1, 4), Domain(-3, 3))
add(Entry("fast_powf", {"fp32": (("fp32",) * 2, "fp32")}, mpmath.power, _TWO, {"fp32": 16}))
add(Entry("fast_dividef", {"fp32": (("fp32",) * 2, "fp32")}, lambda a, b: a / b,
          (Domain(-1e3, 1e3), Domain(1, 1e3)), {"fp32": 2}))  # fmt: skip

add(Entry("pow", {"fp32": (("fp32", "fp32"), "fp32"), "fp64": (("fp64", "fp64"), "fp64")},
          mpmath.power, (Domain(0.01, 50), Domain(-10, 10)), {"fp32": 4, "fp64": 2}))  # fmt: skip

# -- Bessel functions of integer order, scaling by powers of two ----------------------------------

_ORDERED = {t: (("int32", t), t) for t in FLOAT_TYPES}
_ORDER = Domain(0, 5, integer=True)
_BOUND = {"fp32": 40.0, "fp64": 40.0}
add(
    Entry("jn", _ORDERED, lambda n, v: mpmath.besselj(n, v), (_ORDER, Domain(0.1, 20)), _BOUND, 0.1)
)
add(
    Entry("yn", _ORDERED, lambda n, v: mpmath.bessely(n, v), (_ORDER, Domain(0.5, 20)), _BOUND, 0.1)
)
_SCALED = {t: ((t, "int32"), t) for t in FLOAT_TYPES}
_SCALE = (Domain(-4, 4), Domain(-160, 130, integer=True))
for _name in ("ldexp", "scalbn"):
    add(Entry(_name, _SCALED, lambda v, n, dtype: rounded(exact(v) * Fraction(2) ** n, dtype),
              _SCALE, typed=True))  # fmt: skip


# -- correctly rounded arithmetic -----------------------------------------------------------------


def exact(value: Any) -> Fraction:
    """An mpf or a float as the rational it is."""
    if isinstance(value, mpf):
        sign, mantissa, exponent, _ = value._mpf_
        return Fraction(int(-mantissa if sign else mantissa)) * Fraction(2) ** exponent
    return Fraction(value)


def rounded(value: Fraction, dtype: str, mode: str = "rn") -> float:
    return round_fraction(value, dtype, mode)


ROUNDINGS = ("rn", "rz", "rd", "ru")
ARITHMETIC: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
    "fma": (3, lambda a, b, c: a * b + c),
}
_WIDE = Domain(1e-4, 1e4, log=True)


def _in_mode(operation: Callable[..., Fraction], mode: str) -> Callable[..., float]:
    return lambda *v, dtype: rounded(operation(*(exact(x) for x in v)), dtype, mode)


def _root(mode: str) -> Callable[..., float]:
    return lambda v, dtype: rounded(exact(mpmath.sqrt(v)), dtype, mode)


for _mode in ROUNDINGS:
    for _name, (_count, _operation) in ARITHMETIC.items():
        _domains = (_WIDE, Domain(-1e3, 1e3), Domain(-1e3, 1e3))[:_count]
        add(
            Entry(
                f"{_name}_{_mode}",
                floats(_count),
                _in_mode(_operation, _mode),
                _domains,
                typed=True,
            )
        )
    add(Entry(f"sqrt_{_mode}", floats(), _root(_mode), (_WIDE,), typed=True))
    add(Entry(f"double2float_{_mode}", {"fp64": (("fp64",), "fp32")},
              _in_mode(lambda v: v, _mode), (Domain(-1e3, 1e3),), typed=True))  # fmt: skip
add(Entry("rsqrt_rn", {"fp32": (("fp32",), "fp32")},
          lambda v, dtype: rounded(exact(1 / mpmath.sqrt(v)), dtype), (_WIDE,),
          typed=True))  # fmt: skip
add(Entry("fma", floats(3), _in_mode(ARITHMETIC["fma"][1], "rn"),
          (_WIDE, Domain(-1e3, 1e3), Domain(-1e3, 1e3)), typed=True))  # fmt: skip


# -- conversions between floats and integers ------------------------------------------------------


def to_integer(mode: str) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = exact(value)
        if mode == "rn":
            return round(number)
        if mode == "rz":
            return int(number)
        return number.__floor__() if mode == "rd" else number.__ceil__()

    return convert


_INTEGER_TYPES = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}
_REAL_TYPES = {"float": "fp32", "double": "fp64"}
for _mode in ROUNDINGS:
    for _kind, _type in _INTEGER_TYPES.items():
        _top = 2.0 ** (int(_type.lstrip("uint")) - (0 if _type[0] == "u" else 1))
        _low = 0.0 if _type[0] == "u" else -_top
        for _real, _dtype in _REAL_TYPES.items():
            # Triton gives unsigned results the signed dtype of their width.
            add(Entry(f"{_real}2{_kind}_{_mode}", {_dtype: ((_dtype,), _type.lstrip("u"))},
                      to_integer(_mode), (Domain(_low, _top * 0.999),)))  # fmt: skip
            if _type.endswith("64") or _dtype == "fp32":
                add(Entry(f"{_kind}2{_real}_{_mode}", {_type: ((_type,), _dtype)},
                          _in_mode(lambda v: v, _mode), (Domain(_low, _top - 1, integer=True),),
                          typed=True))  # fmt: skip
for _kind, _low, _top in (("int", -(2.0**31), 2.0**31 - 1), ("uint", 0.0, 2.0**32 - 1)):
    add(Entry(f"{_kind}2double_rn", {_INTEGER_TYPES[_kind]: ((_INTEGER_TYPES[_kind],), "fp64")},
              int, (Domain(_low, _top, integer=True),)))  # fmt: skip

# -- rounding to integers, taking numbers apart ---------------------------------------------------


def half_away(v: Any) -> Any:
    return mpmath.sign(v) * mpmath.floor(abs(v) + mpf("0.5"))


_STEPS = Domain(-50, 50)
for _name, _reference in {
    "floor": mpmath.floor, "ceil": mpmath.ceil, "trunc": lambda v: int(exact(v)),
    "rint": lambda v: round(exact(v)), "nearbyint": lambda v: round(exact(v)), "round": half_away,
}.items():  # fmt: skip
    add(Entry(_name, floats(), _reference, (_STEPS,), {"fp32": 0, "fp64": 0}))
add(Entry("llrint", floats(result="int64"), lambda v: round(exact(v)), (_STEPS,)))
add(Entry("llround", floats(result="int64"), lambda v: int(half_away(v)), (_STEPS,)))
add(Entry("ilogb", floats(result="int32"), lambda v: mpmath.frexp(v)[1] - 1, (_WIDE,)))
add(Entry("logb", floats(), lambda v: mpmath.frexp(v)[1] - 1, (_WIDE,), {"fp32": 0, "fp64": 0}))
add(Entry("saturatef", {"fp32": (("fp32",), "fp32")}, lambda v: min(max(v, 0), 1),
          (Domain(-2, 3),), {"fp32": 0}, nan=0.0))  # fmt: skip
_PAIR = (Domain(-1e3, 1e3), Domain(-20, 20))
_EXACT = {"fp32": 0.0, "fp64": 0.0}
add(Entry("copysign", floats(2), lambda a, b: abs(a) * (-1 if b < 0 else 1), _PAIR, _EXACT))
add(Entry("fdim", floats(2),
          lambda a, b, dtype: rounded(max(exact(a) - exact(b), Fraction(0)), dtype),
          _PAIR, typed=True))  # fmt: skip
add(
    Entry(
        "fmod", floats(2), lambda a, b: mpmath.fmod(abs(a), abs(b)) * mpmath.sign(a), _PAIR, _EXACT
    )
)
add(Entry("remainder", floats(2), lambda a, b: a - b * round(exact(a) / exact(b)), _PAIR, _EXACT))


def next_after(a: Any, b: Any, dtype: str) -> float:
    kind = np.float32 if dtype == "fp32" else np.float64
    return float(np.nextafter(kind(float(a)), kind(float(b))))


add(Entry("nextafter", floats(2), next_after, _PAIR, typed=True))
add(Entry("abs", floats() | {"int32": (("int32",), "int32"), "int64": (("int64",), "int64")}, abs,
          (_STEPS,), _EXACT))  # fmt: skip

# -- integers and bits ----------------------------------------------------------------------------

_ANY32 = Domain(-(2.0**31) + 1, 2.0**31 - 1, integer=True)


def integers(
    name: str, reference: Callable[..., Any], arguments: int, *types: str, result: str = ""
) -> None:
    variants = {t: ((t,) * arguments, result or t) for t in types}
    add(Entry(name, variants, reference, (Domain(0, 0, integer=True),) * arguments, typed=True))


def unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def width(dtype: str) -> int:
    return FORMATS[dtype].bits


def low_bits(value: int, bits: int, signed: bool) -> int:
    kept = unsigned(value, bits)
    return kept - (1 << bits) if signed and kept >> (bits - 1) else kept


def byte_perm(x: int, y: int, s: int, dtype: str) -> int:
    data = (unsigned(x, 32) | unsigned(y, 32) << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(data[(unsigned(s, 32) >> (4 * i)) & 7] for i in range(4)), "little")


integers("clz", lambda v, dtype: width(dtype) - unsigned(v, width(dtype)).bit_length(), 1,
         "int32", "int64", result="int32")  # fmt: skip
integers(
    "popc",
    lambda v, dtype: unsigned(v, width(dtype)).bit_count(),
    1,
    "int32",
    "int64",
    result="int32",
)
integers("ffs", lambda v, dtype: (v & -v).bit_length(), 1, "int32", "int64", result="int32")
integers(
    "brev",
    lambda v, dtype: int(f"{unsigned(v, width(dtype)):0{width(dtype)}b}"[::-1], 2),
    1,
    "int32",
    "int64",
)
integers(
    "mulhi", lambda a, b, dtype: (a * b) >> width(dtype), 2, "int32", "uint32", "int64", "uint64"
)
integers(
    "mul24",
    lambda a, b, dtype: low_bits(a, 24, dtype[0] == "i") * low_bits(b, 24, dtype[0] == "i"),
    2,
    "int32",
    "uint32",
)
integers("hadd", lambda a, b, dtype: (a + b) >> 1, 2, "int32", "uint32")
integers("rhadd", lambda a, b, dtype: (a + b + 1) >> 1, 2, "int32", "uint32")
integers("byte_perm", byte_perm, 3, "int32")
add(Entry("sad", {"int32": (("int32", "int32", "uint32"), "int32"),
                  "uint32": (("uint32",) * 3, "uint32")},
          lambda a, b, c, dtype: abs(a - b) + c, (_ANY32,) * 3, typed=True))  # fmt: skip


def bits_of(value: Any, kind: str, code: str) -> int:
    return int(np.array(float(value), dtype=kind).view(code))


def from_bits(value: int, code: str, kind: str) -> float:
    size = 8 * np.dtype(code).itemsize
    return float(np.array(unsigned(value, size), dtype=f"u{np.dtype(code).itemsize}").view(kind))


_FINITE32 = Domain(0, 0x7F000000, integer=True)
_FINITE64 = Domain(0, float(0x7FE << 52), integer=True)
for _name, _source, _target, _reference, _d in (
    ("float_as_int", "fp32", "int32", lambda v: bits_of(v, "f4", "i4"), _STEPS),
    ("float_as_uint", "fp32", "int32", lambda v: bits_of(v, "f4", "i4"), _STEPS),
    ("double_as_longlong", "fp64", "int64", lambda v: bits_of(v, "f8", "i8"), _STEPS),
    ("double2loint", "fp64", "int32", lambda v: bits_of(v, "f8", "i8"), _STEPS),
    ("double2hiint", "fp64", "int32", lambda v: bits_of(v, "f8", "i8") >> 32, _STEPS),
    ("int_as_float", "int32", "fp32", lambda v: from_bits(v, "i4", "f4"), _FINITE32),
    ("uint_as_float", "uint32", "fp32", lambda v: from_bits(v, "i4", "f4"), _FINITE32),
    ("longlong_as_double", "int64", "fp64", lambda v: from_bits(v, "i8", "f8"), _FINITE64),
):
    add(Entry(_name, {_source: ((_source,), _target)}, _reference, (_d,)))
add(Entry("hiloint2double", {"int32": (("int32", "int32"), "fp64")},
          lambda h, lo: from_bits(unsigned(h, 32) << 32 | unsigned(lo, 32), "i8", "f8"),
          (_FINITE32, _ANY32)))  # fmt: skip

# -- tests of numbers: their specials are in test_libdevice ---------------------------------------

CLASSIFIERS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "isnan": (FLOAT_TYPES, np.isnan),
    "isinf": (FLOAT_TYPES, np.isinf),
    "signbit": (FLOAT_TYPES, np.signbit),
    "finitef": (("fp32",), np.isfinite),
    "isfinited": (("fp64",), np.isfinite),
}
