"""Libdevice's functions with a rounding in their name, against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tests.cpu.cloops import Loops, loop
from tests.cpu.exact import round_fraction
from tests.cpu.libdevice_calls import PRECISION, call, narrow, signed
from tzero.cpu.libdevice import lookup

NAN, INF = math.nan, math.inf
ROUNDINGS = ("rn", "rd", "ru", "rz")
ARITHMETIC: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
    "fma": lambda a, b, c: a * b + c,
}


def _samples(tag: str) -> list[float]:
    """Numbers whose sums, products and quotients round, underflow and overflow."""
    bits, least = PRECISION[tag]
    rng = np.random.default_rng(bits)
    top = -least - bits + 2
    exponents = [0, 0, 1, -1, bits - 1, -bits, top // 2, -top // 2, top, least // 2, least + bits]
    values = [float(f) * 2.0**e for f, e in zip(rng.uniform(1, 1.99, 11), exponents, strict=True)]
    values += [1.0, 3.0, 2.0**least, 2.0 ** (least + 1) * 3, (2 - 2.0 ** (1 - bits)) * 2.0**top]
    values += [1 + 2.0 ** (1 - bits), 0.1]
    return [s * x for s in (1, -1) for x in narrow(values, tag)]


def _arithmetic_rows(name: str, tag: str) -> list[tuple[float, ...]]:
    values = _samples(tag)
    count = {"rcp": 1, "fma": 3}.get(name, 2)
    if count < 3:
        return list(product(values, repeat=count))
    rng = np.random.default_rng(3)
    rows: list[tuple[float, ...]] = [tuple(rng.choice(values, 3).tolist()) for _ in range(600)]
    for a, b, _ in rows[:300]:  # c close to -a*b, where everything cancels
        with np.errstate(all="ignore"):
            near = narrow([-a * b if math.isfinite(a * b) else 0.0], tag)[0]
        rows.append((a, b, near if math.isfinite(near) else 1.0))
    return rows


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("tag", ["f32", "f64"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_rounded_as_asked(name: str, tag: str, rounding: str) -> None:
    letter = {"f32": "f", "f64": "d"}[tag]
    stem = {"f32": "fmaf", "f64": "fma"}[tag] if name == "fma" else letter + name
    rows = _arithmetic_rows(name, tag)
    got = call(f"{stem}_{rounding}", rows)
    for row, value in zip(rows, got, strict=True):
        exact = ARITHMETIC[name](*(Fraction(x) for x in row))
        want = round_fraction(exact, rounding[1], *PRECISION[tag])
        if exact == 0:  # a cancellation is -0 when rounding down
            assert value == 0 and (math.copysign(1, value) < 0) == (rounding == "rd"), row
        else:
            assert repr(value) == repr(want), (stem, rounding, row)


def _root(value: Fraction) -> Fraction:
    """The square root truncated to 700 bits, plus a tiny number if bits were lost."""
    scaled = value * 4**700
    root = Fraction(math.isqrt(scaled.numerator // scaled.denominator), 2**700)
    return root if root * root == value else root + Fraction(1, 2**2000)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("tag", ["f32", "f64"])
def test_square_roots_are_rounded_as_asked(tag: str, rounding: str) -> None:
    values = [*(abs(x) for x in _samples(tag)), 4.0, 2.0, 0.25, 1e-30]
    values = narrow(values, tag)
    name = f"{ {'f32': 'f', 'f64': 'd'}[tag] }sqrt_{rounding}"
    for x, got in zip(values, call(name, [(x,) for x in values]), strict=True):
        want = round_fraction(_root(Fraction(x)), rounding[1], *PRECISION[tag])
        assert got == want, (x, got)
    assert math.isnan(call(name, [(-1.0,)])[0])
    assert repr(call(name, [(-0.0,), (INF,)])) == "[-0.0, inf]"


@pytest.mark.parametrize("rounding", ["rd", "ru", "rz"])
def test_directed_rounding_keeps_special_values(rounding: str) -> None:
    zero_sum = "-0.0" if rounding == "rd" else "0.0"
    for letter in "fd":
        rows = [(INF, 1.0), (INF, -INF), (NAN, 1.0), (0.0, -0.0)]
        add = call(f"{letter}add_{rounding}", rows)
        assert repr(add) == f"[inf, nan, nan, {zero_sum}]"
        assert repr(call(f"{letter}add_{rounding}", [(-0.0, -0.0)])) == "[-0.0]"
        rows = [(1.0, 0.0), (0.0, 0.0), (1.0, -INF), (-0.0, 3.0)]
        div = call(f"{letter}div_{rounding}", rows)
        assert repr(div) == "[inf, nan, -0.0, -0.0]"
        assert repr(call(f"{letter}mul_{rounding}", [(0.0, INF), (-0.0, 2.0)])) == "[nan, -0.0]"
    for name in ("fma", "fmaf"):
        triples = [(INF, 1.0, -INF), (0.0, 5.0, 0.0), (1.0, -1.0, 1.0), (2.0, INF, 1.0)]
        assert repr(call(f"{name}_{rounding}", triples)) == f"[nan, 0.0, {zero_sum}, inf]"


def test_reciprocal_square_root_rounds_to_nearest() -> None:
    values = narrow(np.exp(np.linspace(-87, 87, 200)), "f32")
    for x, got in zip(values, call("frsqrt_rn", [(x,) for x in values]), strict=True):
        assert got == round_fraction(_root(1 / Fraction(x)), "n", *PRECISION["f32"])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_doubles_and_integers_become_floats(rounding: str) -> None:
    mode = rounding[1]
    doubles = [*_samples("f64"), 0.1, 1e39, -1e39, 1e-46, -1e-46, 2.0**-149 * 1.5]
    got = call(f"double2float_{rounding}", [(x,) for x in doubles])
    want = [round_fraction(Fraction(x), mode, *PRECISION["f32"]) for x in doubles]
    assert [repr(x) for x in got] == [repr(x) for x in want]
    for kind, width in (("int", 32), ("uint", 32), ("ll", 64), ("ull", 64)):
        powers = (24, 25, 30, 31) if width == 32 else (24, 25, 53, 54, 61, 62, 63)
        values = [0, 1, -1, (1 << (width - 1)) - 1, -(1 << (width - 1))]
        values += [s * (2**k + d) for k in powers for d in (-1, 1, 3) for s in (1, -1)]
        values = [x % (1 << width) if kind[0] == "u" else signed(x, width) for x in values]
        for real, tag in (("float", "f32"), ("double", "f64")):
            name = f"{kind}2{real}_{rounding}"
            if lookup(f"__nv_{name}") is None:
                assert width == 32 and real == "double" and rounding != "rn"
                continue
            rounded = [round_fraction(Fraction(x), mode, *PRECISION[tag]) for x in values]
            assert call(name, [(x,) for x in values]) == rounded, name


ROUND: dict[str, Callable[[float], int]] = {
    "rn": round,
    "rd": math.floor,
    "ru": math.ceil,
    "rz": math.trunc,
}


def _saturated(whole: Callable[[float], int], x: float, width: int, unsigned: bool) -> int:
    low = 0 if unsigned else -(1 << (width - 1))
    high = low + (1 << width) - 1
    value = (high if x > 0 else low) if math.isinf(x) else min(max(whole(x), low), high)
    return signed(value, width)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("real", "tag"), [("float", "f32"), ("double", "f64")])
def test_floats_become_integers_rounded_and_saturated(real: str, tag: str, rounding: str) -> None:
    values = [0.0, 0.5, 1.5, 2.5, 0.49, 7.99, 1e9 + 0.5, 2.0**31, 2.0**32, 2.0**63, 2.0**64, INF]
    values = narrow([s * x for s in (1, -1) for x in values], tag)
    for kind, width in (("int", 32), ("uint", 32), ("ll", 64), ("ull", 64)):
        name = f"{real}2{kind}_{rounding}"
        want = [_saturated(ROUND[rounding], x, width, kind[0] == "u") for x in values]
        assert call(name, [(x,) for x in values]) == want, name
        nan = 0 if tag == "f32" and width == 32 else -(1 << (width - 1))
        assert call(name, [(NAN,)]) == [nan], name


@pytest.mark.parametrize("name", ["llrint", "llrintf", "llround", "llroundf"])
def test_rounding_to_long_integers(name: str) -> None:
    values = [0.5, 1.5, 2.5, -0.5, -2.5, 3.49, 1e30, -1e30]
    away = [1, 2, 3, -1, -3, 3]
    even = [0, 2, 2, 0, -2, 3]
    ends = [2**63 - 1, -(2**63)]
    want = [*(even if "rint" in name else away), *ends]
    assert call(name, [(x,) for x in values]) == want


@pytest.mark.parametrize("tag", ["f32", "f64"])
def test_nearest_sums_and_products_are_never_fused(tag: str) -> None:
    letter = {"f32": "f", "f64": "d"}[tag]
    signature = f"{tag} {tag} {tag} -> {tag}"
    loops = {
        "sum": loop(signature, f"tz_nv_{letter}add_rn(a * b, c)"),
        "difference": loop(signature, f"tz_nv_{letter}sub_rn(a * b, c)"),
        "product": loop(signature, f"tz_nv_{letter}mul_rn(a, b) + c"),
        "down": loop(signature, f"tz_nv_{letter}add_rd(a * b, c)"),
    }
    compiled = Loops(loops, "libdevice.h")
    dtype = np.dtype("f4" if tag == "f32" else "f8")
    a = np.random.default_rng(5).uniform(1, 2, 1000).astype(dtype)
    b = a[::-1].copy()
    c = -(a * b)
    assert (compiled("sum", a, b, c) == 0).all()
    assert (compiled("difference", a, b, -c) == 0).all()
    assert (compiled("product", a, b, c) == 0).all()
    assert (compiled("down", a, b, c) == 0).all()
