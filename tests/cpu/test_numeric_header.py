"""runtime/numeric.h against exact references: conversions, integers, minimum and maximum, and the
float functions; and that gcc vectorises loops of them."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.cpu.cloops import RUNTIME, Array, Loop, Loops, loop, source
from tests.cpu.exact import (
    BF16,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    F16,
    Format,
    boundaries,
    encode,
    ulps,
)
from tzero.cpu import toolchain

WIDTHS = (8, 16, 32, 64)
NARROW: dict[str, tuple[Format, str, torch.dtype]] = {
    "f16": (F16, "u16", torch.float16),
    "bf16": (BF16, "u16", torch.bfloat16),
    "e4m3": (E4M3, "u8", torch.float8_e4m3fn),
    "e5m2": (E5M2, "u8", torch.float8_e5m2),
    "e4m3fnuz": (E4M3FNUZ, "u8", torch.float8_e4m3fnuz),
    "e5m2fnuz": (E5M2FNUZ, "u8", torch.float8_e5m2fnuz),
}
FUNCTIONS = ("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt")
MATH = (*FUNCTIONS, "floor", "ceil", "abs", "tan")
EXTREMES = ("maxnum", "minnum", "maximum", "minimum")


def _conversions() -> dict[str, Loop]:
    loops = {}
    for name, (_, bits, _) in NARROW.items():
        loops[f"{name}_to_f32"] = loop(f"{bits} -> f32", f"tz_{name}_to_f32")
        for wide, rtz in product(("f32", "f64"), ("", "_rtz")):
            loops[f"{wide}_to_{name}{rtz}"] = loop(f"{wide} -> {bits}", f"tz_{wide}_to_{name}{rtz}")
    for soft in ("f32_to_f16", "round_f16"):
        into = "u16" if soft == "f32_to_f16" else "f32"
        loops[f"soft_{soft}"] = loop(f"f32 -> {into}", f"tz_soft_{soft}")
    loops["soft_f16_to_f32"] = loop("u16 -> f32", "tz_soft_f16_to_f32")
    for name in ("f16", "bf16"):
        loops[f"round_{name}"] = loop("f32 -> f32", f"tz_round_{name}")
    for kind in ("i32", "u32", "i64", "u64"):
        loops[f"{kind}_to_bf16"] = loop(f"{kind} -> u16", f"tz_{kind}_to_bf16")
    loops["f64_to_f32_rtz"] = loop("f64 -> f32", "tz_f64_to_f32_rtz")
    loops["e8m0_to_f32"] = loop("u8 -> f32", "tz_e8m0_to_f32")
    loops["e2m1_to_f32"] = loop("u8 -> f32", "tz_e2m1_to_f32")
    return loops


def _integers() -> dict[str, Loop]:
    loops = {}
    for width in WIDTHS:
        signed, unsigned = f"i{width}", f"u{width}"
        for name in ("divs", "rems", "shl", "shrs"):
            call = f"tz_{name}_i{width}"
            loops[f"{name}_i{width}"] = loop(f"{signed} {signed} -> {signed}", call)
        for name in ("divu", "remu", "shru"):
            call = f"tz_{name}_i{width}"
            loops[f"{name}_i{width}"] = loop(f"{unsigned} {unsigned} -> {unsigned}", call)
        loops[f"abs_i{width}"] = loop(f"{signed} -> {signed}", f"tz_abs_i{width}")
        loops[f"divs_by_7_i{width}"] = loop(f"{signed} -> {signed}", f"tz_divs_i{width}(a, 7)")
        for real, sign in product(("f32", "f64"), "iu"):
            into = f"{sign}{width}"
            loops[f"{real}_to_{into}"] = loop(f"{real} -> {into}", f"tz_{real}_to_{into}")
    for kind in ("u32", "i32", "u64", "i64"):
        loops[f"mulhi_{kind}"] = loop(f"{kind} {kind} -> {kind}", f"tz_mulhi_{kind}")
    return loops


def _floats() -> dict[str, Loop]:
    loops = {}
    for real in ("f32", "f64"):
        for name in EXTREMES:
            loops[f"{name}_{real}"] = loop(f"{real} {real} -> {real}", f"tz_{name}_{real}")
        for mode in (0, 1):
            call = f"tz_clamp_{real}(a, b, c, {mode})"
            loops[f"clamp_{mode}_{real}"] = loop(f"{real} {real} {real} -> {real}", call)
        for name in MATH:
            loops[f"{name}_{real}"] = loop(f"{real} -> {real}", f"tz_{name}_{real}")
        for name in ("pow", "rem"):
            loops[f"{name}_{real}"] = loop(f"{real} {real} -> {real}", f"tz_{name}_{real}")
        loops[f"fma_{real}"] = loop(f"{real} {real} {real} -> {real}", f"tz_fma_{real}")
    return loops


LOOPS = {**_conversions(), **_integers(), **_floats()}


@pytest.fixture(scope="module")
def c() -> Loops:
    return Loops(LOOPS, "numeric.h")


@pytest.fixture(scope="module")
def random_floats() -> npt.NDArray[np.float32]:
    bits = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45], np.float32)
    return np.concatenate([bits.view(np.float32), special])


def _float32(values: Array) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


# -- conversions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NARROW, "soft_f16"])
def test_every_narrow_pattern_widens_as_torch_does(c: Loops, name: str) -> None:
    _, bits, dtype = NARROW[name.removeprefix("soft_")]
    unsigned = {"u8": np.uint8, "u16": np.uint16}[bits]
    patterns = np.arange(np.iinfo(unsigned).max + 1, dtype=unsigned)
    want = torch.from_numpy(patterns.copy()).view(dtype).to(torch.float32).numpy()
    got = c(f"{name}_to_f32", patterns)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


@pytest.mark.parametrize(
    ("name", "wide", "toward_zero"),
    [*product(NARROW, ("f32", "f64"), (False, True)), ("soft_f16", "f32", False)],
)
def test_narrowing_is_exact_at_every_boundary(
    c: Loops,
    random_floats: npt.NDArray[np.float32],
    name: str,
    wide: str,
    toward_zero: bool,
) -> None:
    narrow = name.removeprefix("soft_")
    to = NARROW[narrow][0]
    if narrow == "e5m2" and toward_zero:
        to = to._replace(infinity=0x7C)  # it goes through f16, which keeps infinity
    if wide == "f64":
        random = np.random.default_rng(8).integers(0, 2**64, 100_000, dtype=np.uint64)
        values: Array = np.concatenate([boundaries(to), random.view(np.float64)])
    else:
        values = np.concatenate([_float32(boundaries(to)), random_floats])
    prefix = "soft_" if name.startswith("soft") else ""
    got = c(f"{prefix}{wide}_to_{narrow}{'_rtz' if toward_zero else ''}", values).astype(np.int64)
    want = encode(values, to, toward_zero)
    number = want >= 0
    differ = np.flatnonzero(number & (got != want))
    assert differ.size == 0, [(values[i], hex(got[i]), hex(want[i])) for i in differ[:5]]
    if to.fnuz:
        assert (got[~number] == 0x80).all()
    elif narrow in ("e4m3", "e5m2"):
        assert (got[~number] == 0x7F).all()
    else:
        assert ((got[~number] & (to.sign_bit - 1)) > to.infinity).all()


@pytest.mark.parametrize("name", ["round_f16", "soft_round_f16", "round_bf16"])
def test_rounding_in_place_is_narrowing_and_widening(
    c: Loops, random_floats: npt.NDArray[np.float32], name: str
) -> None:
    narrow = name.split("_")[-1]
    values = np.concatenate([_float32(boundaries(NARROW[narrow][0])), random_floats])
    want = c(f"{narrow}_to_f32", c(f"f32_to_{narrow}", values))
    got = c(name, values)
    nan = np.isnan(values)
    assert np.isnan(got[nan]).all()
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def test_double_to_float_toward_zero_never_grows(c: Loops) -> None:
    values = np.random.default_rng(9).standard_normal(50_000) * 10.0 ** np.linspace(-50, 45, 50_000)
    got = c("f64_to_f32_rtz", values)
    assert (np.abs(got.astype(np.float64)) <= np.abs(values)).all()
    with np.errstate(over="ignore"):
        above = np.nextafter(np.abs(got), np.float32(np.inf)).astype(np.float64)
    assert (above > np.abs(values)).all()


@pytest.mark.parametrize("kind", ["i32", "u32", "i64", "u64"])
def test_integers_become_bf16_with_one_rounding(c: Loops, kind: str) -> None:
    width, low = int(kind[1:]), -(2 ** (int(kind[1:]) - 1)) if kind[0] == "i" else 0
    high = 2**width + low - 1
    values = {0, 1, low, high}
    for exponent in range(7, width):
        for tail in (0, 1, -1):
            middle = 2**exponent + 2 ** max(exponent - 8, 0) + tail
            values |= {v for v in (middle, -middle, 2**exponent + tail) if low <= v <= high}
    ordered = sorted(values)
    exact = [_bf16_of_integer(v) for v in ordered]
    got = c(f"{kind}_to_bf16", np.array(ordered, f"{kind[0]}{width // 8}"))
    assert got.tolist() == exact


def _bf16_of_integer(value: int) -> int:
    """Nearest even, by integer arithmetic."""
    magnitude = abs(value)
    drop = max(magnitude.bit_length() - 8, 0)
    kept, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
    half = 1 << drop >> 1
    kept += drop > 0 and (rest > half or (rest == half and kept & 1))
    bits = int(np.array([float(kept << drop)], np.float32).view(np.uint32)[0]) >> 16
    return bits | (0x8000 if value < 0 else 0)


def test_scales_and_four_bit_values(c: Loops) -> None:
    scales = c("e8m0_to_f32", np.arange(256))
    assert scales[:255].tolist() == [math.ldexp(1.0, i - 127) for i in range(255)]
    assert np.isnan(scales[255])
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = c("e2m1_to_f32", np.arange(16))
    assert values.tolist() == magnitudes + [-x for x in magnitudes]
    assert np.signbit(values[8])


# -- integers ---------------------------------------------------------------------------------


def _edge_integers(width: int, signed: bool) -> list[int]:
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    rng = np.random.default_rng(width)
    shifts = rng.integers(0, width, 60)
    random = [int(x) >> int(s) for x, s in zip(rng.integers(0, 2**62, 60), shifts, strict=True)]
    edges = [0, 1, 2, 3, 7, width - 1, width, width + 1, high, high - 1, high // 2, high // 3]
    edges += [low, low + 1, *(x % (high + 1) for x in random)]
    both = {*edges, *(-x for x in edges if signed)}
    return sorted(x for x in both if low <= x <= high)


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _wrap(value: int, width: int, signed: bool) -> int:
    value &= 2**width - 1
    return value - 2**width if signed and value >> (width - 1) else value


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_division_truncates_and_never_traps(c: Loops, width: int, signed: bool) -> None:
    pairs = list(product(_edge_integers(width, signed), repeat=2))
    kind = f"{'i' if signed else 'u'}{width // 8}"
    a, b = (np.array(column, kind) for column in zip(*pairs, strict=True))
    letter = "s" if signed else "u"
    quotients = [-1 if y == 0 else _truncated(x, y) for x, y in pairs]
    remainders = [x if y == 0 else x - _truncated(x, y) * y for x, y in pairs]
    for name, want in (("div", quotients), ("rem", remainders)):
        wrapped = [_wrap(x, width, signed) for x in want]
        assert c(f"{name}{letter}_i{width}", a, b).tolist() == wrapped, name
    if signed:
        assert c(f"divs_by_7_i{width}", a).tolist() == [_truncated(x, 7) for x, _ in pairs]


@pytest.mark.parametrize("width", WIDTHS)
def test_shifts_by_the_width_or_more_are_defined(c: Loops, width: int) -> None:
    values = _edge_integers(width, True)
    counts = [0, 1, width // 2, width - 1, width, width + 1, 100]
    a, n = (np.array(x, f"i{width // 8}") for x in zip(*product(values, counts), strict=True))
    pairs = [(int(x), int(y)) for x, y in zip(a, n, strict=True)]
    left = [_wrap(x << y, width, True) if y < width else 0 for x, y in pairs]
    assert c(f"shl_i{width}", a, n).tolist() == left
    assert c(f"shrs_i{width}", a, n).tolist() == [x >> min(y, width) for x, y in pairs]
    logical = [_wrap(x, width, False) >> y for x, y in pairs]
    assert c(f"shru_i{width}", a, n).tolist() == logical
    assert (c(f"shl_i{width}", a, np.full_like(a, -1)) == 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_absolute_value_wraps(c: Loops, width: int) -> None:
    values = _edge_integers(width, True)
    got = c(f"abs_i{width}", np.array(values, f"i{width // 8}"))
    assert got.tolist() == [_wrap(abs(x), width, True) for x in values]


@pytest.mark.parametrize("kind", ["u32", "i32", "u64", "i64"])
def test_high_product(c: Loops, kind: str) -> None:
    width = int(kind[1:])
    pairs = list(product(_edge_integers(width, kind[0] == "i"), repeat=2))
    a, b = (np.array(column, f"{kind[0]}{width // 8}") for column in zip(*pairs, strict=True))
    assert c(f"mulhi_{kind}", a, b).tolist() == [x * y >> width for x, y in pairs]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sign", ["i", "u"])
@pytest.mark.parametrize("real", ["f32", "f64"])
def test_floats_become_integers_as_on_nvidia(c: Loops, real: str, sign: str, width: int) -> None:
    edges = [0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.0, 1.5, -1.5, 127.5, 128.0, 255.9, 256.0, -129.0]
    edges += [s * 2.0**p * f for s in (1, -1) for p in (15, 16, 31, 32, 63, 64) for f in (1, 0.999)]
    edges += [32767.0, 32768.0, 65535.0, 65536.0, math.inf, -math.inf, 1e30, -1e30, 300.0, 70000.0]
    dtype = np.dtype("f4" if real == "f32" else "f8")
    given = np.array(edges, dtype)
    given = np.concatenate([given, np.nextafter(given, dtype.type(0))])
    held = max(width, 16)  # there is no 8-bit conversion: the low byte of a 16-bit one
    low = -(2 ** (held - 1)) if sign == "i" else 0
    high = 2**held + low - 1
    want = []
    for x in given.astype(np.float64).tolist():
        whole = high if x == math.inf else low if x == -math.inf else math.trunc(x)
        want.append(_wrap(min(max(whole, low), high), width, sign == "i"))
    assert c(f"{real}_to_{sign}{width}", given).tolist() == want
    wide = real == "f64" or width == 64
    nan = _wrap(1 << (held - 1), width, sign == "i") if wide else 0
    assert c(f"{real}_to_{sign}{width}", np.array([np.nan], dtype)).tolist() == [nan]


# -- minimum and maximum ----------------------------------------------------------------------

REALS = (-math.inf, -1.5, -0.0, 0.0, 1e-40, 2.0, math.inf, math.nan)


@pytest.mark.parametrize("real", ["f32", "f64"])
@pytest.mark.parametrize("name", EXTREMES)
def test_minimum_and_maximum_order_zeros_and_nans(c: Loops, name: str, real: str) -> None:
    pairs = list(product(REALS, repeat=2))
    dtype = "f4" if real == "f32" else "f8"
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    got = c(f"{name}_{real}", a, b)
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        want = _extreme(x, y, name)
        assert repr(z) == repr(want), (name, x, y, z, want)


def _extreme(x: float, y: float, name: str) -> float:
    if math.isnan(x) or math.isnan(y):
        numbers = [v for v in (x, y) if not math.isnan(v)]
        return numbers[0] if numbers and name.endswith("num") else math.nan
    choose = max if name.startswith("max") else min
    return choose((x, y), key=lambda v: (v, math.copysign(1.0, v)))


@pytest.mark.parametrize("real", ["f32", "f64"])
def test_clamp_propagates_nan_only_when_asked(c: Loops, real: str) -> None:
    x = [-2.0, 0.5, 3.0, math.nan, math.inf, -math.inf]
    clamped = [-1.0, 0.5, 1.0, -1.0, 1.0, -1.0]
    assert c(f"clamp_0_{real}", x, -1.0, 1.0).tolist() == clamped
    got = c(f"clamp_1_{real}", x, -1.0, 1.0)
    assert np.isnan(got[3]) and np.delete(got, 3).tolist() == [*clamped[:3], 1.0, -1.0]


# -- functions --------------------------------------------------------------------------------

REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
}
EDGES = (
    88.72283, 88.72284, -87.33655, -103.97, -103.98, -104.0, 127.99999, 128.0, -126.0, -149.0,
    -149.5, -150.0, -150.5, 1.0, 0.99999994, 1.0000001, 0.70710677, 0.7071068, 1.4142135, 0.625,
    0.95, 3.9999, 4.0, 9.0, 10.0, 3.4e38, -3.4e38, 1.1754944e-38, 1.1754942e-38, 1e-45, -1e-45,
    math.pi, math.pi / 2, 16367173 * 2.0**72, 1.5707964e15, 2.0**127, 0.0, -0.0, -1.0,
    math.inf, -math.inf, math.nan,
)  # fmt: skip


@pytest.fixture(scope="module")
def arguments(random_floats: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(10)
    ranges = ((-110, 95), (-1, 1), (0.3, 3), (-5, 5), (0.99, 1.01), (0, 1e6))
    parts = [rng.uniform(low, high, 20_000).astype(np.float32) for low, high in ranges]
    return np.concatenate([*parts, random_floats[::2], np.array(EDGES, np.float32)])


@pytest.mark.parametrize("name", MATH)
def test_float_functions_are_within_two_ulp(
    c: Loops, arguments: npt.NDArray[np.float32], name: str
) -> None:
    with np.errstate(all="ignore"):
        want = REFERENCES[name](arguments.astype(np.float64))
    error = ulps(c(f"{name}_f32", arguments), want)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, (float(arguments[worst]), error[worst])


@pytest.mark.parametrize("name", MATH)
def test_double_functions_are_the_librarys(c: Loops, name: str) -> None:
    x = np.concatenate([np.random.default_rng(11).uniform(-20, 20, 2000), np.array(EDGES)])
    with np.errstate(all="ignore"):
        want = REFERENCES[name](x)
    assert (ulps(c(f"{name}_f64", x), want) <= 2.0).all()


@pytest.mark.parametrize("real", ["f32", "f64"])
def test_functions_of_several_arguments(c: Loops, real: str) -> None:
    dtype = np.dtype("f4" if real == "f32" else "f8")
    rng = np.random.default_rng(12)
    a, b = (rng.uniform(-9, 9, 3000).astype(dtype) for _ in range(2))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    assert np.array_equal(c(f"rem_{real}", a, b), np.fmod(a, b))
    with np.errstate(invalid="ignore"):
        power = wide_a**wide_b
    assert (ulps(c(f"pow_{real}", a, b), power) <= 2.0).all()
    one = dtype.type(1) + np.finfo(dtype).eps
    product_error = c(f"fma_{real}", one, one, -(one * one))
    assert product_error == np.finfo(dtype).eps ** 2


# -- vectorisation ----------------------------------------------------------------------------


def _vectorised() -> list[str]:
    names = [f"{name}_f32" for name in FUNCTIONS]
    names += [f"{narrow}_to_f32" for narrow in NARROW]
    names += [f"f32_to_{narrow}{rtz}" for narrow in NARROW for rtz in ("", "_rtz")]
    names += ["round_f16", "round_bf16", "f64_to_f16", "f32_to_i32", "f32_to_u32", "f32_to_i8"]
    names += ["divs_i32", "rems_i32", "divs_i8", "shl_i32", "shrs_i32", "shru_i32", "mulhi_u32"]
    names += ["maxnum_f32", "maximum_f32", "clamp_0_f32", "clamp_1_f32"]
    return names


def test_gcc_vectorises_the_loops(tmp_path: Path) -> None:
    found = toolchain.find()
    if "gcc" not in found.version.lower():
        pytest.skip(f"asks gcc for its report on vectorised loops; this is {found.version}")
    if "__AVX2__" not in found.features and "__ARM_NEON" not in found.features:
        pytest.skip("this machine has no AVX2")
    names = _vectorised()
    text = tmp_path / "loops.c"
    text.write_text(source({name: LOOPS[name] for name in names}, "numeric.h"))
    # Identical loops (f16 by bit arithmetic, with and without the type) would be merged.
    command = [*found.command, *found.flags, "-O3", f"-I{RUNTIME}", "-fno-ipa-icf"]
    command += ["-fopt-info-vec-optimized", "-c", "-o", str(tmp_path / "loops.o"), str(text)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = {int(n) for n in re.findall(r"loops\.c:(\d+):\d+: optimized: loop vectorized", report)}
    missing = [name for line, name in enumerate(names, 2) if line not in lines]
    assert not missing
