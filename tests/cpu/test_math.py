"""Triton's own math functions against mpmath, in ulps.

The bound is what NVIDIA documents for the same function, or tighter: the reference is the exact
value at the rounded input, so the whole distance is the function's error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import (
    FLOATS,
    FORMATS,
    Array,
    array,
    assert_same,
    assert_ulps,
    covered,
    float_edges,
    round_to,
    tensor,
)
from tests.cpu.rows import Row, evaluate, evaluate_each, result


class Function(NamedTuple):
    """A function: its reference, the domain to sample, and the ulps allowed per dtype."""

    expression: str
    reference: Callable[[Any], Any]
    low: float
    high: float
    ulps: dict[str, float]
    scale: str = "linear"


def real(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NaN where the function has no real value, infinities at its poles, signs of zero ignored."""

    def wrapped(value: float) -> float:
        if np.isnan(value):
            return np.nan
        try:
            found = function(mpmath.mpf(value))
        except (ZeroDivisionError, ValueError):
            return np.nan
        if isinstance(found, mpmath.mpc):
            return np.nan if found.imag != 0 else float(found.real)
        return float(found)

    return wrapped


def both(fp32: float, fp64: float) -> dict[str, float]:
    return {"fp32": fp32, "fp64": fp64}


def log_at_poles(log: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda v: mpmath.mpf("-inf") if v == 0 else log(v)


def rsqrt(value: Any) -> Any:
    return mpmath.inf if value == 0 else 1 / mpmath.sqrt(value)


FUNCTIONS: dict[str, Function] = {
    "tl.exp": Function("tl.exp(x)", mpmath.exp, -104, 90, both(2, 2)),
    "tl.exp2": Function("tl.exp2(x)", lambda v: mpmath.power(2, v), -150, 130, both(2, 2)),
    "tl.log": Function("tl.log(x)", log_at_poles(mpmath.log), 1e-30, 1e30, both(1, 1), "log"),
    "tl.log2": Function(
        "tl.log2(x)", log_at_poles(lambda v: mpmath.log(v, 2)), 1e-30, 1e30, both(1, 1), "log"
    ),
    "tl.sin": Function("tl.sin(x)", mpmath.sin, -100, 100, both(2, 2)),
    "tl.cos": Function("tl.cos(x)", mpmath.cos, -100, 100, both(2, 2)),
    "tl.sqrt": Function("tl.sqrt(x)", mpmath.sqrt, 1e-30, 1e30, both(0.5, 0.5), "log"),
    "tl.sqrt_rn": Function("tl.sqrt_rn(x)", mpmath.sqrt, 1e-30, 1e30, {"fp32": 0.5}, "log"),
    "tl.rsqrt": Function("tl.rsqrt(x)", rsqrt, 1e-30, 1e30, both(2, 1), "log"),
    "tl.erf": Function("tl.erf(x)", mpmath.erf, -5, 5, both(2, 2)),
    "tl.floor": Function("tl.floor(x)", mpmath.floor, -1e4, 1e4, both(0, 0)),
    "tl.ceil": Function("tl.ceil(x)", mpmath.ceil, -1e4, 1e4, both(0, 0)),
    "tl.sigmoid": Function(
        "tl.sigmoid(x)", lambda v: 1 / (1 + mpmath.exp(-v)), -20, 90, both(4, 4)
    ),
}
COUNT = 512


@functools.cache
def inputs(key: str, dtype: str) -> Array:
    """Points all over the domain, with the specials and some tiny ones."""
    function = FUNCTIONS[key]
    rng = np.random.default_rng(21)
    if function.scale == "log":
        span = (np.log(function.low), np.log(function.high))
        values = np.exp(rng.uniform(*span, COUNT))
        values[:64] = rng.uniform(0.9, 1.1, 64)  # near one, where logarithms lose digits
    else:
        values = rng.uniform(function.low, function.high, COUNT)
        values[:64] = rng.uniform(-1, 1, 64) * 2.0 ** -rng.integers(0, 20, 64)
    fmt = FORMATS[dtype]
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.0]
    specials += [fmt.largest, 2.0**fmt.min_exponent, 2.0 ** (fmt.min_exponent - 3)]
    values[-len(specials) :] = specials
    return round_to(values, dtype)


@functools.cache
def computed(dtype: str) -> dict[str, torch.Tensor | Exception]:
    """Every function of the dtype, each over inputs of its own, in a few kernels."""
    return evaluate_each(
        {
            key: (Row(function.expression, dtype), {"x": tensor(inputs(key, dtype), dtype)})
            for key, function in FUNCTIONS.items()
            if dtype in function.ulps
        }
    )


def references(function: Callable[[Any], Any], *values: Array) -> Array:
    """The function at every point, with enough digits to round correctly."""
    with mpmath.workdps(40):
        return np.array(
            [function(*(v.item() for v in point)) for point in zip(*values, strict=True)]
        )


LIMITS = {
    # What mpmath does not define the way IEEE does: values at infinity.
    "tl.sin": {np.inf: np.nan, -np.inf: np.nan},
    "tl.cos": {np.inf: np.nan, -np.inf: np.nan},
    "tl.erf": {np.inf: 1.0, -np.inf: -1.0},
    "tl.sigmoid": {np.inf: 1.0, -np.inf: 0.0},
    "tl.exp": {-np.inf: 0.0},
    "tl.exp2": {-np.inf: 0.0},
    "tl.rsqrt": {np.inf: 0.0, -np.inf: np.nan},
    "tl.sqrt": {-np.inf: np.nan},
    "tl.sqrt_rn": {-np.inf: np.nan},
    "tl.log": {-np.inf: np.nan},
    "tl.log2": {-np.inf: np.nan},
}


@pytest.mark.parametrize(
    ("key", "dtype"), [covered(key, d) for key, f in FUNCTIONS.items() for d in f.ulps]
)
def test_a_function_stays_within_its_ulps(key: str, dtype: str) -> None:
    x = inputs(key, dtype)
    finite = np.where(np.isinf(x), 1.0, x)
    want = references(real(FUNCTIONS[key].reference), finite)
    for value in (np.inf, -np.inf):
        want = np.where(x == value, LIMITS.get(key, {}).get(value, value), want)
    if key in ("tl.rsqrt", "tl.sqrt", "tl.sqrt_rn"):
        want = np.where((x < 0), np.nan, want)
    if key == "tl.rsqrt":
        want = np.where((x == 0), np.copysign(np.inf, x), want)
    got = array(result(computed(dtype), key))
    assert_ulps(got, want, dtype, FUNCTIONS[key].ulps[dtype], x)


@pytest.mark.parametrize(
    "dtype", [covered("tl.sin, tl.cos (large)", d, args=(d,)) for d in ("fp32", "fp64")]
)
def test_sine_and_cosine_reduce_large_arguments(dtype: str) -> None:
    rng = np.random.default_rng(22)
    x = round_to(rng.uniform(-1, 1, 256) * 2.0 ** rng.integers(7, 60, 256), dtype)
    found = evaluate(
        {"x": tensor(x, dtype)}, {"sin": Row("tl.sin(x)", dtype), "cos": Row("tl.cos(x)", dtype)}
    )
    assert_ulps(array(result(found, "sin")), references(real(mpmath.sin), x), dtype, 2, x)
    assert_ulps(array(result(found, "cos")), references(real(mpmath.cos), x), dtype, 2, x)


# -- softmax --------------------------------------------------------------------------------------


@triton.jit
def softmax_kernel(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, tl.softmax(x, 0))


@pytest.mark.parametrize("dtype", [covered("tl.softmax", d, args=(d,)) for d in ("fp32", "fp64")])
def test_softmax_normalises_an_axis(dtype: str) -> None:
    x = float_edges(dtype, 32 * 8, 23, special=False)
    x[:8] = 0.0
    y = tensor(x * 0, dtype)
    softmax_kernel[(1,)](tensor(x, dtype), y, ROWS=32, COLUMNS=8)
    block = x.reshape(32, 8)
    want = np.exp(block - block.max(0))
    want = (want / want.sum(0)).reshape(-1)
    eps = 2.0 ** (1 - FORMATS[dtype].digits)
    np.testing.assert_allclose(array(y), want, rtol=40 * eps, atol=2.0**-126)


# -- halves through fp32 --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [covered("fp32 math on halves", d, args=(d,)) for d in FLOATS[:2]]
)
def test_halves_go_through_fp32_and_round_once_at_the_end(dtype: str) -> None:
    """Triton's math functions take only fp32 and fp64; casting to fp32 and back is exact."""
    x = float_edges(dtype, 256, 24, special=False)
    x = round_to(np.clip(x, -8, 8), dtype)
    found = evaluate(
        {"x": tensor(x, dtype)},
        {
            "exp": Row(f"tl.exp(x.to(tl.float32)).to({FORMATS[dtype].source})", dtype),
            "floor": Row("tl.floor(x.to(tl.float32))", dtype),
        },
    )
    assert_ulps(array(result(found, "exp")), np.exp(x), dtype, 0.51, x)
    assert_same(array(result(found, "floor")), np.floor(x))
