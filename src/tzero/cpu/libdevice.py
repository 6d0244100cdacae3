"""CUDA's libdevice symbols and the C functions that implement them.

Enters: the name of a ``__nv_*`` symbol that Triton's libdevice module can emit. Leaves: a
:class:`Function`: C name, element types, and the header in ``runtime/``. It must not know IR or C
text, nor import Triton (a test compares this table with Triton's own).

Integer tags have no sign: the C functions accept both and convert as two's complement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

__all__ = ["UNSUPPORTED", "Function", "lookup", "symbols"]


@dataclass(frozen=True, slots=True)
class Function:
    """A C function; ``args`` and ``result`` are "i32", "i64", "f32" or "f64"."""

    c_name: str
    args: tuple[str, ...]
    result: str
    header: str = "libdevice.h"


UNSUPPORTED: dict[str, str] = {}
"""Symbols that cannot be implemented in C, each with the reason; none so far."""

# Functions that exist as `name` on double and as `name` + "f" on float.
_FLOAT_PAIRS = {
    1: "acos acosh asin asinh atan atanh cbrt cosh cospi cyl_bessel_i0 cyl_bessel_i1 erfc erfcinv "
    "erfcx erfinv exp10 expm1 j0 j1 lgamma log10 log1p logb nearbyint normcdf normcdfinv rcbrt "
    "rint round sinh sinpi tgamma trunc y0 y1",
    2: "atan2 copysign fdim hypot nextafter remainder rhypot",
    3: "norm3d rnorm3d",
    4: "norm4d rnorm4d",
}

# The same, implemented by the functions in numeric.h for Triton's own operations.
_NUMERIC_PAIRS = {
    "ceil": (1, "ceil"),
    "cos": (1, "cos"),
    "erf": (1, "erf"),
    "exp": (1, "exp"),
    "exp2": (1, "exp2"),
    "fabs": (1, "abs"),
    "floor": (1, "floor"),
    "fma": (3, "fma"),
    "fmod": (2, "rem"),
    "log": (1, "log"),
    "log2": (1, "log2"),
    "pow": (2, "pow"),
    "rsqrt": (1, "rsqrt"),
    "sin": (1, "sin"),
    "sqrt": (1, "sqrt"),
    "tan": (1, "tan"),
    "tanh": (1, "tanh"),
}

# Single symbols in numeric.h. The fast_* approximations use the exact functions.
_NUMERIC = {
    "abs": ("tz_abs_i32", "i32", "i32"),
    "llabs": ("tz_abs_i64", "i64", "i64"),
    "mulhi": ("tz_mulhi_i32", "i32 i32", "i32"),
    "umulhi": ("tz_mulhi_u32", "i32 i32", "i32"),
    "mul64hi": ("tz_mulhi_i64", "i64 i64", "i64"),
    "umul64hi": ("tz_mulhi_u64", "i64 i64", "i64"),
    "fma_rn": ("tz_fma_f64", "f64 f64 f64", "f64"),
    "fmaf_rn": ("tz_fma_f32", "f32 f32 f32", "f32"),
    "fast_cosf": ("tz_cos_f32", "f32", "f32"),
    "fast_expf": ("tz_exp_f32", "f32", "f32"),
    "fast_log2f": ("tz_log2_f32", "f32", "f32"),
    "fast_logf": ("tz_log_f32", "f32", "f32"),
    "fast_powf": ("tz_pow_f32", "f32 f32", "f32"),
    "fast_sinf": ("tz_sin_f32", "f32", "f32"),
    "fast_tanf": ("tz_tan_f32", "f32", "f32"),
}

# Symbols that share the C function of another.
_ALIASES = {
    "fast_exp10f": "exp10f",
    "fast_log10f": "log10f",
    "float_as_uint": "float_as_int",
    "uint_as_float": "int_as_float",
    "scalbn": "ldexp",
    "scalbnf": "ldexpf",
}

# name -> argument types, then the result type; the C name is tz_nv_ + name.
_SIGNATURES = {
    "brev": "i32 i32",
    "brevll": "i64 i64",
    "byte_perm": "i32 i32 i32 i32",
    "clz": "i32 i32",
    "clzll": "i64 i32",
    "double2hiint": "f64 i32",
    "double2loint": "f64 i32",
    "double_as_longlong": "f64 i64",
    "fast_fdividef": "f32 f32 f32",
    "ffs": "i32 i32",
    "ffsll": "i64 i32",
    "finitef": "f32 i32",
    "float_as_int": "f32 i32",
    "frsqrt_rn": "f32 f32",
    "hadd": "i32 i32 i32",
    "hiloint2double": "i32 i32 f64",
    "ilogb": "f64 i32",
    "ilogbf": "f32 i32",
    "int2double_rn": "i32 f64",
    "int_as_float": "i32 f32",
    "isfinited": "f64 i32",
    "isinfd": "f64 i32",
    "isinff": "f32 i32",
    "isnand": "f64 i32",
    "isnanf": "f32 i32",
    "jn": "i32 f64 f64",
    "jnf": "i32 f32 f32",
    "ldexp": "f64 i32 f64",
    "ldexpf": "f32 i32 f32",
    "llrint": "f64 i64",
    "llrintf": "f32 i64",
    "llround": "f64 i64",
    "llroundf": "f32 i64",
    "longlong_as_double": "i64 f64",
    "mul24": "i32 i32 i32",
    "popc": "i32 i32",
    "popcll": "i64 i32",
    "powi": "f64 i32 f64",
    "powif": "f32 i32 f32",
    "rcp64h": "f64 f64",
    "rhadd": "i32 i32 i32",
    "sad": "i32 i32 i32 i32",
    "saturatef": "f32 f32",
    "signbitd": "f64 i32",
    "signbitf": "f32 i32",
    "uhadd": "i32 i32 i32",
    "uint2double_rn": "i32 f64",
    "umul24": "i32 i32 i32",
    "urhadd": "i32 i32 i32",
    "usad": "i32 i32 i32 i32",
    "yn": "i32 f64 f64",
    "ynf": "i32 f32 f32",
}

_ROUNDINGS = ("rn", "rd", "ru", "rz")
_INTEGERS = {"int": "i32", "uint": "i32", "ll": "i64", "ull": "i64"}
_FLOATS = {"float": "f32", "double": "f64"}


def _rounded() -> Iterator[tuple[str, Function]]:
    """Symbols with a rounding suffix: arithmetic and conversions."""
    stems: dict[str, tuple[tuple[str, ...], str]] = {"double2float": (("f64",), "f32")}
    for letter, tag in (("f", "f32"), ("d", "f64")):
        for name, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("rcp", 1)):
            stems[letter + name] = ((tag,) * count, tag)
        stems[letter + "sqrt"] = ((tag,), tag)
    for (integer, small), (real, tag) in product(_INTEGERS.items(), _FLOATS.items()):
        stems[f"{real}2{integer}"] = ((tag,), small)
        if small == "i64" or real == "float":  # 32 bits to double are exact: only _rn exists
            stems[f"{integer}2{real}"] = ((small,), tag)
    for (stem, (args, result)), rounding in product(stems.items(), _ROUNDINGS):
        yield f"{stem}_{rounding}", Function(f"tz_nv_{stem}_{rounding}", args, result)
    for (stem, tag), rounding in product((("fma", "f64"), ("fmaf", "f32")), _ROUNDINGS[1:]):
        name = f"{stem}_{rounding}"
        yield name, Function(f"tz_nv_{name}", (tag,) * 3, tag)


def _table() -> dict[str, Function]:
    found: dict[str, Function] = dict(_rounded())
    for letter, tag in (("", "f64"), ("f", "f32")):
        for count, names in _FLOAT_PAIRS.items():
            for name in names.split():
                found[name + letter] = Function(f"tz_nv_{name}{letter}", (tag,) * count, tag)
        for name, (count, ours) in _NUMERIC_PAIRS.items():
            call = Function(f"tz_{ours}_{tag}", (tag,) * count, tag, "numeric.h")
            found[name + letter] = call
    for name, (c_name, args, result) in _NUMERIC.items():
        found[name] = Function(c_name, tuple(args.split()), result, "numeric.h")
    for name, signature in _SIGNATURES.items():
        *arguments, result = signature.split()
        found[name] = Function(f"tz_nv_{name}", tuple(arguments), result)
    for name, other in _ALIASES.items():
        found[name] = found[other]
    return {f"__nv_{name}": function for name, function in found.items()}


_FUNCTIONS = _table()


def lookup(symbol: str) -> Function | None:
    """The C function of a libdevice symbol, or None; ``UNSUPPORTED`` may have the reason."""
    return _FUNCTIONS.get(symbol)


def symbols() -> frozenset[str]:
    """Every symbol that ``lookup`` knows."""
    return frozenset(_FUNCTIONS)
