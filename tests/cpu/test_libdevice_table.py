"""tzero.cpu.libdevice and runtime/libdevice.h: every symbol Triton can emit has a C function with
Triton's signature, and each function's values are right."""

from __future__ import annotations

import ast
import importlib.util
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import pytest

from tests.cpu.libdevice_calls import PRECISION, call, function, narrow, signed
from tzero.cpu.libdevice import UNSUPPORTED, lookup, symbols

TAGS = {"int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64"}
TAGS |= {"fp32": "f32", "fp64": "f64"}
NAN, INF = math.nan, math.inf


def _triton_signatures() -> dict[str, set[tuple[tuple[str, ...], str]]]:
    """What triton.language.extra.cuda.libdevice passes to extern_elementwise, taken from its text:
    {(core.dtype("fp32"), ...): ("__nv_symbol", core.dtype("fp32")), ...}"""
    spec = importlib.util.find_spec("triton.language.extra.cuda.libdevice")
    assert spec is not None and spec.origin is not None
    found: dict[str, set[tuple[tuple[str, ...], str]]] = {}
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            words = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant)]
            symbol = next((w for w in words if str(w).startswith("__nv_")), None)
            if symbol is None or key is None:
                continue
            args = [str(n.value) for n in ast.walk(key) if isinstance(n, ast.Constant)]
            result = next(str(w) for w in words if w != symbol)
            tags = tuple(TAGS[a] for a in args)
            found.setdefault(str(symbol), set()).add((tags, TAGS[result]))
    return found


def test_every_symbol_of_triton_is_mapped_or_unsupported() -> None:
    emitted = _triton_signatures()
    assert len(emitted) > 300
    assert {s for s in emitted if lookup(s) is None and s not in UNSUPPORTED} == set()
    for symbol, signatures in emitted.items():
        found = lookup(symbol)
        if found is not None:
            assert signatures == {(found.args, found.result)}, symbol


def test_unsupported_symbols_have_reasons_and_no_function() -> None:
    for symbol, reason in UNSUPPORTED.items():
        assert reason and lookup(symbol) is None


def test_unknown_symbols_are_not_found() -> None:
    assert lookup("__nv_no_such_function") is None
    assert lookup("expf") is None


# -- functions of real numbers ----------------------------------------------------------------


def _span(low: float, high: float, count: int = 25) -> list[float]:
    return [low + (high - low) * (i + 0.37) / count for i in range(count)]


def _spread(low: float, high: float, count: int = 25) -> list[float]:
    """Evenly in the exponent."""
    return [math.exp(x) for x in _span(math.log(low), math.log(high), count)]


def _both(values: list[float]) -> list[float]:
    return [*values, *(-x for x in values)]


m: Any = mpmath
SMALL, WIDE = _both(_spread(1e-30, 1)), _both(_spread(1e-20, 1e20))
POSITIVE = _spread(1e-30, 1e30)
UNIT = [*_both(_spread(1e-10, 0.99)), 0.9999]

REAL: dict[str, tuple[Callable[..., Any], list[float], float, float]] = {
    # name: exact function, arguments, ulp for double and for float
    "acos": (m.acos, UNIT, 2, 2),
    "acosh": (m.acosh, _spread(1.0001, 1e20), 3, 3),
    "asin": (m.asin, UNIT, 2, 2),
    "asinh": (m.asinh, WIDE, 3, 3),
    "atan": (m.atan, WIDE, 2, 2),
    "atanh": (m.atanh, UNIT, 3, 3),
    "cbrt": (lambda x: m.sign(x) * m.cbrt(abs(x)), WIDE, 2, 2),
    "ceil": (m.ceil, _span(-9, 9), 0, 0),
    "cos": (m.cos, WIDE, 1, 2),
    "cosh": (m.cosh, _both(_span(0, 80)), 3, 3),
    "cospi": (m.cospi, [*_both(_span(0, 9)), 1e6 + 0.3], 2, 2),
    "cyl_bessel_i0": (lambda x: m.besseli(0, x), _both(_spread(1e-5, 85)), 8, 1),
    "cyl_bessel_i1": (lambda x: m.besseli(1, x), _both(_spread(1e-5, 85)), 8, 1),
    "erf": (m.erf, _both(_spread(1e-20, 5)), 2, 2),
    "erfc": (m.erfc, _span(-4, 9), 5, 5),
    "erfcinv": (lambda x: m.erfinv(1 - x), [*_spread(1e-30, 1), *_span(1, 1.999)], 8, 1),
    "erfcx": (lambda x: m.exp(x * x) * m.erfc(x), [*_span(-8, 30), 1e5], 8, 1),
    "erfinv": (m.erfinv, [*UNIT, *_both(_span(0.4, 0.6, 9))], 8, 1),
    "exp": (m.exp, _span(-80, 80), 1, 2),
    "exp10": (lambda x: m.mpf(10) ** x, _span(-35, 35), 2, 2),
    "exp2": (lambda x: m.mpf(2) ** x, _span(-120, 120), 1, 2),
    "expm1": (m.expm1, [*SMALL, *_span(-20, 80)], 3, 3),
    "fabs": (abs, WIDE, 0, 0),
    "floor": (m.floor, _span(-9, 9), 0, 0),
    "j0": (lambda x: m.besselj(0, x), _both(_spread(1e-5, 50)), 60, 2),
    "j1": (lambda x: m.besselj(1, x), _both(_spread(1e-5, 50)), 60, 2),
    "lgamma": (lambda x: m.log(abs(m.gamma(x))), [*_span(0.01, 30), *_span(-5, -0.1, 9)], 60, 2),
    "log": (m.log, POSITIVE, 1, 2),
    "log10": (m.log10, POSITIVE, 2, 2),
    "log1p": (m.log1p, [*SMALL[:-2], *_spread(1, 1e20)], 2, 2),
    "log2": (lambda x: m.log(x, 2), POSITIVE, 2, 2),
    "logb": (lambda x: m.floor(m.log(abs(x), 2)), WIDE, 0, 0),
    "nearbyint": (m.nint, [*_span(-9, 9), 0.5, 1.5, 2.5, -0.5, -1.5], 0, 0),
    "normcdf": (m.ncdf, _span(-12, 6, 40), 8, 1),
    "normcdfinv": (lambda p: m.sqrt(2) * m.erfinv(2 * p - 1), _spread(1e-30, 0.999, 40), 8, 1),
    "rcbrt": (lambda x: m.sign(x) / m.cbrt(abs(x)), WIDE, 3, 1),
    "rint": (m.nint, [*_span(-9, 9), 0.5, 1.5, 2.5, -0.5, -1.5], 0, 0),
    "round": (
        lambda x: m.sign(x) * m.floor(abs(x) + 0.5),
        [*_span(-9, 9), 0.5, 1.5, 2.5, -2.5, 0.25],
        0,
        0,
    ),
    "rsqrt": (lambda x: 1 / m.sqrt(x), POSITIVE, 2, 2),
    "sin": (m.sin, WIDE, 1, 2),
    "sinh": (m.sinh, [*SMALL, *_both(_span(0, 80))], 3, 3),
    "sinpi": (m.sinpi, [*_both(_span(0, 9)), *SMALL, 1e6 + 0.3], 2, 2),
    "sqrt": (m.sqrt, POSITIVE, 0.5, 0.5),
    "tan": (m.tan, WIDE, 1, 2),
    "tanh": (m.tanh, WIDE, 3, 2),
    "tgamma": (m.gamma, [*_span(0.01, 30), *_span(-5, -0.1, 9)], 8, 8),
    "trunc": (lambda x: m.sign(x) * m.floor(abs(x)), _span(-9, 9), 0, 0),
    "y0": (lambda x: m.bessely(0, x), _spread(1e-5, 50), 60, 2),
    "y1": (lambda x: m.bessely(1, x), _spread(1e-5, 50), 60, 2),
}
PAIRS = [*zip(WIDE, WIDE[7:] + WIDE[:7], strict=True), (3.0, 4.0), (-1.5, 0.25), (1e-3, -2.0)]
NEAR = list(product((-7.5, -1.0, 0.3, 2.0, 9.75), (-3.0, 0.7, 2.0, 5.5)))
REAL_OF_SEVERAL: dict[str, tuple[Callable[..., Any], Sequence[tuple[float, ...]], float]] = {
    "atan2": (m.atan2, PAIRS, 2),
    "copysign": (lambda x, y: abs(x) * m.sign(y), PAIRS, 0),
    "fdim": (lambda x, y: max(x - y, m.mpf(0)), PAIRS, 0.5),
    "fma": (lambda x, y, z: x * y + z, [(x, y, -x * y * 0.999) for x, y in NEAR], 0.5),
    "fmod": (m.fmod, [(abs(x), abs(y)) for x, y in NEAR], 0),
    "hypot": (m.hypot, PAIRS, 1),
    "norm3d": (lambda *v: m.norm(v), [(x, y, x / 3) for x, y in PAIRS], 2),
    "norm4d": (lambda *v: m.norm(v), [(x, y, x / 3, y / 7) for x, y in PAIRS], 2),
    "pow": (m.power, [(abs(x), y) for x, y in NEAR] + [(-2.0, 3.0), (-2.0, -4.0)], 1),
    "remainder": (lambda x, y: x - y * m.nint(x / y), NEAR, 0),
    "rhypot": (lambda x, y: 1 / m.hypot(x, y), PAIRS, 2),
    "rnorm3d": (lambda *v: 1 / m.norm(v), [(x, y, x / 3) for x, y in PAIRS], 2),
    "rnorm4d": (lambda *v: 1 / m.norm(v), [(x, y, x / 3, y / 7) for x, y in PAIRS], 2),
}
FAST = {"fast_cosf": "cos", "fast_exp10f": "exp10", "fast_expf": "exp", "fast_log10f": "log10"}
FAST |= {"fast_log2f": "log2", "fast_logf": "log", "fast_sinf": "sin", "fast_tanf": "tan"}


def _pairs(stems: Iterable[str]) -> list[str]:
    """Names of the double and the float function of each stem."""
    return [stem + letter for stem in stems for letter in ("", "f")]


def _distance(got: float, want: Any, tag: str) -> float:
    """In units of the last place of the float type."""
    bits, least = PRECISION[tag]
    if want == 0 or got == 0:
        return 0.0 if got == want else INF
    unit = m.mpf(2) ** max(int(m.floor(m.log(abs(want), 2))) - bits + 1, least)
    return float(abs(m.mpf(got) - want) / unit)


def _check_real(
    name: str, rows: Sequence[tuple[float, ...]], exact: Callable[..., Any], limit: float
) -> None:
    tag = function(name).result
    columns = [narrow(column, tag) for column in zip(*rows, strict=True)]
    given = list(zip(*columns, strict=True))
    with m.workprec(240):
        for row, got in zip(given, call(name, given), strict=True):
            want = exact(*(m.mpf(x) for x in row))
            assert _distance(got, want, tag) <= limit, (name, row, got, m.nstr(want, 20))


@pytest.mark.parametrize("name", [*_pairs(REAL), *FAST])
def test_functions_of_one_argument(name: str) -> None:
    stem = FAST[name] if name in FAST else name if name in REAL else name[:-1]
    exact, values, double_limit, float_limit = REAL[stem]
    limit = double_limit if function(name).result == "f64" else float_limit
    _check_real(name, [(x,) for x in values], exact, limit)


@pytest.mark.parametrize("name", [*_pairs(REAL_OF_SEVERAL), "fast_powf"])
def test_functions_of_several_arguments(name: str) -> None:
    stem = name.removeprefix("fast_")
    stem = stem if stem in REAL_OF_SEVERAL else stem[:-1]
    exact, rows, limit = REAL_OF_SEVERAL[stem]
    _check_real(name, rows, exact, max(limit, 1) if limit else 0)


WITH_INTEGER: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], float]] = {
    "powi": (lambda x, n: x**n, [(1.5, 7), (-1.25, 5), (0.75, -9), (3.0, 0), (-2.0, 10)], 1),
    "ldexp": (m.ldexp, [(1.5, 7), (-1.25, -5), (0.75, -140), (3.0, 0)], 0),
    "scalbn": (m.ldexp, [(1.5, 7), (-1.25, -5), (0.75, -140), (3.0, 0)], 0),
    "jn": (m.besselj, [(n, x) for n in (0, 1, 2, 5) for x in (0.1, 1.0, 7.5, 30.0)], 60),
    "yn": (m.bessely, [(n, x) for n in (0, 1, 2, 5) for x in (0.1, 1.0, 7.5, 30.0)], 60),
}


@pytest.mark.parametrize("name", _pairs(WITH_INTEGER))
def test_functions_of_a_float_and_an_integer(name: str) -> None:
    exact, rows, limit = WITH_INTEGER[name if name in WITH_INTEGER else name[:-1]]
    tag = function(name).result
    rows = [tuple(narrow([x], tag)[0] if isinstance(x, float) else x for x in r) for r in rows]
    with m.workprec(200):
        for row, got in zip(rows, call(name, rows), strict=True):
            want = exact(*(m.mpf(x) if isinstance(x, float) else x for x in row))
            assert _distance(got, want, tag) <= limit, (name, row, got)


SPECIAL: list[tuple[str, tuple[Any, ...], float]] = [
    # stem of a pair, arguments, the result
    *((name, (NAN,), NAN) for name in REAL),
    ("sinpi", (1.0,), 0.0), ("sinpi", (-3.0,), -0.0), ("sinpi", (0.5,), 1.0),
    ("sinpi", (INF,), NAN), ("sinpi", (-0.0,), -0.0), ("cospi", (0.5,), 0.0),
    ("cospi", (-1.5,), 0.0), ("cospi", (1e30,), 1.0), ("cospi", (INF,), NAN),
    ("erfinv", (1.0,), INF), ("erfinv", (-1.0,), -INF), ("erfinv", (1.5,), NAN),
    ("erfinv", (-0.0,), -0.0), ("erfcinv", (0.0,), INF), ("erfcinv", (2.0,), -INF),
    ("erfcinv", (-1.0,), NAN), ("erfcinv", (1.0,), 0.0), ("erfcx", (INF,), 0.0),
    ("erfcx", (-30.0,), INF), ("erfcx", (-INF,), INF), ("normcdf", (INF,), 1.0),
    ("normcdf", (-INF,), 0.0), ("normcdfinv", (0.0,), -INF), ("normcdfinv", (1.0,), INF),
    ("normcdfinv", (2.0,), NAN), ("cyl_bessel_i0", (0.0,), 1.0), ("cyl_bessel_i0", (-INF,), INF),
    ("cyl_bessel_i1", (-0.0,), -0.0), ("cyl_bessel_i1", (-INF,), -INF),
    ("cyl_bessel_i0", (1e4,), INF), ("lgamma", (0.0,), INF), ("lgamma", (-2.0,), INF),
    ("tgamma", (0.0,), INF), ("tgamma", (-INF,), NAN), ("rsqrt", (0.0,), INF),
    ("rsqrt", (INF,), 0.0), ("rsqrt", (-1.0,), NAN), ("rcbrt", (-0.0,), -INF),
    ("rcbrt", (INF,), 0.0), ("exp10", (-INF,), 0.0), ("exp10", (2.0,), 100.0),
    ("logb", (0.0,), -INF), ("logb", (INF,), INF), ("j0", (INF,), 0.0), ("y0", (0.0,), -INF),
    ("y1", (-1.0,), NAN), ("norm3d", (INF, NAN, 1.0), INF), ("norm3d", (0.0, NAN, 1.0), NAN),
    ("norm3d", (0.0, 0.0, 0.0), 0.0), ("norm3d", (NAN, 0.0, 0.0), NAN),
    ("norm4d", (NAN, 1.0, 1.0, -INF), INF), ("norm4d", (NAN, NAN, NAN, NAN), NAN),
    ("norm4d", (1e-40, 0.0, 0.0, 0.0), 1e-40), ("rnorm3d", (0.0, 0.0, 0.0), INF),
    ("rnorm4d", (INF, NAN, 0.0, 0.0), 0.0), ("rhypot", (0.0, -0.0), INF),
    ("rhypot", (-INF, NAN), 0.0), ("hypot", (NAN, INF), INF), ("fdim", (NAN, 1.0), NAN),
    ("fdim", (1.0, 2.0), 0.0), ("fmod", (1.0, 0.0), NAN), ("fmod", (-5.0, INF), -5.0),
    ("fmod", (-5.5, 2.0), -1.5), ("remainder", (5.0, 2.0), 1.0), ("remainder", (1.0, 0.0), NAN),
    ("pow", (NAN, 0.0), 1.0), ("pow", (1.0, NAN), 1.0), ("pow", (-8.0, 0.5), NAN),
    ("nextafter", (1.0, 1.0), 1.0), ("nextafter", (1.0, NAN), NAN),
    ("copysign", (0.0, -1.0), -0.0), ("copysign", (NAN, -1.0), NAN),
    ("round", (-0.3,), -0.0), ("rint", (-0.3,), -0.0), ("trunc", (-0.3,), -0.0),
]  # fmt: skip


@pytest.mark.parametrize("letter", ["", "f"], ids=["double", "float"])
def test_infinities_zeros_and_nans(letter: str) -> None:
    for stem, row, value in SPECIAL:
        tag = function(stem + letter).result
        got = call(stem + letter, [row])[0]
        want = narrow([value], tag)[0]
        assert repr(got) == repr(want), (stem + letter, row, got, want)


@pytest.mark.parametrize(("name", "tag"), [("nextafter", "f64"), ("nextafterf", "f32")])
def test_nextafter_is_one_step(name: str, tag: str) -> None:
    bits, least = PRECISION[tag]
    rows = [(1.0, 2.0), (1.0, 0.0), (0.0, -1.0), (INF, 0.0)]
    largest = (2.0 - 2.0 ** (1 - bits)) * 2.0 ** (-least - bits + 2)
    want = [1 + 2.0 ** (1 - bits), 1 - 2.0**-bits, -(2.0**least), largest]
    assert call(name, rows) == want


def test_negative_orders_of_bessel_functions_are_nan() -> None:
    for name in ("jn", "jnf", "yn", "ynf"):
        assert math.isnan(call(name, [(-1, 2.0)])[0])


def test_quick_division_and_half_reciprocal() -> None:
    assert call("fast_fdividef", [(1.0, 4.0), (-3.0, 2.0)]) == [0.25, -1.5]
    value = call("rcp64h", [(3.0,)])[0]
    assert abs(value * 3 - 1) < 2.0**-19
    assert struct.unpack("<Q", struct.pack("<d", value))[0] & 0xFFFFFFFF == 0
    assert call("rcp64h", [(INF,), (0.5,)]) == [0.0, 2.0]


# -- integers and bits ------------------------------------------------------------------------


def _low24(value: int) -> int:
    return signed((value & 0xFFFFFF) << 8, 32) >> 8


def _reversed(value: int, width: int) -> int:
    return int(f"{value % (1 << width):0{width}b}"[::-1], 2)


def _bytes(x: int, y: int, s: int) -> int:
    pool = (x % (1 << 32)).to_bytes(4, "little") + (y % (1 << 32)).to_bytes(4, "little")
    return int.from_bytes(bytes(pool[s >> 4 * i & 7] for i in range(4)), "little")


def _u(value: int, width: int = 32) -> int:
    return value % (1 << width)


INTEGER: dict[str, Callable[..., int]] = {
    "abs": abs,
    "brev": lambda x: _reversed(x, 32),
    "brevll": lambda x: _reversed(x, 64),
    "byte_perm": _bytes,
    "clz": lambda x: 32 - _u(x).bit_length(),
    "clzll": lambda x: 64 - _u(x, 64).bit_length(),
    "ffs": lambda x: (x & -x).bit_length(),
    "ffsll": lambda x: (x & -x).bit_length(),
    "hadd": lambda x, y: (x + y) >> 1,
    "llabs": abs,
    "mul24": lambda x, y: _low24(x) * _low24(y),
    "mul64hi": lambda x, y: x * y >> 64,
    "mulhi": lambda x, y: x * y >> 32,
    "popc": lambda x: _u(x).bit_count(),
    "popcll": lambda x: _u(x, 64).bit_count(),
    "rhadd": lambda x, y: (x + y + 1) >> 1,
    "sad": lambda x, y, z: abs(x - y) + z,
    "uhadd": lambda x, y: (_u(x) + _u(y)) >> 1,
    "umul24": lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF),
    "umul64hi": lambda x, y: _u(x, 64) * _u(y, 64) >> 64,
    "umulhi": lambda x, y: _u(x) * _u(y) >> 32,
    "urhadd": lambda x, y: (_u(x) + _u(y) + 1) >> 1,
    "usad": lambda x, y, z: abs(_u(x) - _u(y)) + z,
}
EDGES = {
    width: [0, 1, -1, 2, 77, -1000, 0x123456, -(1 << (width - 1)), (1 << (width - 1)) - 1]
    + [signed(0x9E3779B97F4A7C15 * k, width) for k in range(1, 6)]
    for width in (32, 64)
}


@pytest.mark.parametrize("name", INTEGER)
def test_integer_functions(name: str) -> None:
    found = function(name)
    rows = list(product(*(EDGES[int(tag[1:])] for tag in found.args)))
    width = int(found.result[1:])
    want = [signed(INTEGER[name](*row), width) for row in rows]
    assert call(name, rows) == want


CLASSES: dict[str, Callable[[float], bool]] = {
    "finitef": math.isfinite,
    "isfinited": math.isfinite,
    "isinff": math.isinf,
    "isinfd": math.isinf,
    "isnanf": math.isnan,
    "isnand": math.isnan,
    "signbitf": lambda x: math.copysign(1.0, x) < 0,
    "signbitd": lambda x: math.copysign(1.0, x) < 0,
}


@pytest.mark.parametrize("name", CLASSES)
def test_classification(name: str) -> None:
    values = [0.0, -0.0, 1.0, -2.5, INF, -INF, NAN]
    assert call(name, [(x,) for x in values]) == [int(CLASSES[name](x)) for x in values]


@pytest.mark.parametrize("name", ["ilogb", "ilogbf"])
def test_ilogb_follows_cuda_at_the_ends(name: str) -> None:
    low, high = -(2**31), 2**31 - 1
    rows = [(1.0,), (0.75,), (-8.5,), (2.0**-140,), (0.0,), (NAN,), (INF,), (-INF,)]
    assert call(name, rows) == [0, -1, 3, -140, low, low, high, high]


def test_saturatef_clamps_and_drops_nan() -> None:
    rows = [(-1.0,), (0.25,), (7.0,), (NAN,), (INF,)]
    assert call("saturatef", rows) == [0.0, 0.25, 1.0, 0.0, 1.0]


def test_bit_casts() -> None:
    (low,) = struct.unpack("<i", struct.pack("<f", -1.5))
    for name in ("float_as_int", "float_as_uint"):
        assert call(name, [(-1.5,)]) == [low]
    for name in ("int_as_float", "uint_as_float"):
        assert call(name, [(low,)]) == [-1.5]
    (whole,) = struct.unpack("<q", struct.pack("<d", -math.pi))
    assert call("double_as_longlong", [(-math.pi,)]) == [whole]
    assert call("longlong_as_double", [(whole,)]) == [-math.pi]
    halves = (signed(whole >> 32, 32), signed(whole, 32))
    assert call("double2hiint", [(-math.pi,)]) == [halves[0]]
    assert call("double2loint", [(-math.pi,)]) == [halves[1]]
    assert call("hiloint2double", [halves]) == [-math.pi]


# -- completeness ----------------------------------------------------------------------------


def test_every_mapped_symbol_has_a_value_test() -> None:
    tested = {*_pairs([*REAL, *REAL_OF_SEVERAL, *WITH_INTEGER, "nextafter"])}
    tested |= {*FAST, "fast_powf", "fast_fdividef", "rcp64h", *INTEGER, *CLASSES, "saturatef"}
    tested |= {"ilogb", "ilogbf", "float_as_int", "float_as_uint", "int_as_float", "uint_as_float"}
    tested |= {"double_as_longlong", "longlong_as_double", "double2hiint", "double2loint"}
    tested |= {"hiloint2double", "frsqrt_rn", "llrint", "llrintf", "llround", "llroundf"}
    stems = ["double2float", "fma", "fmaf", "fsqrt", "dsqrt"]
    stems += [a + b for a in "fd" for b in ("add", "sub", "mul", "div", "rcp")]
    for kind, real in product(("int", "uint", "ll", "ull"), ("float", "double")):
        stems += [f"{kind}2{real}", f"{real}2{kind}"]
    tested |= {f"{stem}_{rounding}" for stem in stems for rounding in ("rn", "rd", "ru", "rz")}
    # The symbols with a rounding are tested in test_libdevice_rounding.py.
    assert {s.removeprefix("__nv_") for s in symbols()} - tested == set()
