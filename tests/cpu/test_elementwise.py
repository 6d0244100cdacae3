"""Operators and elementwise functions, each for each dtype it takes, against numpy.

Integers must match numpy's fixed-width arithmetic exactly; floats must be the correctly rounded
result of the operation in its own dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.cpu.cases import (
    FLOATS,
    FORMATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    Array,
    array,
    assert_same,
    covered,
    edges,
    round_fraction,
    round_to,
    tensor,
)
from tests.cpu.rows import Row, evaluate, evaluate_each, result

COUNT = 512
BITWISE = ("int1", *INTEGERS)


class Op(NamedTuple):
    """An operation: expression, dtypes, reference in numpy, result dtype."""

    expression: str
    dtypes: tuple[str, ...]
    reference: Callable[..., Any]
    out: str = ""  # the operand's dtype if empty


def c_quotient(x: Array, y: Array) -> Array:
    """Division in Triton: the quotient is truncated."""
    wide = x.astype(object) if x.dtype.itemsize == 8 else x.astype(np.int64)
    other = y.astype(object) if x.dtype.itemsize == 8 else y.astype(np.int64)
    quotient = abs(wide) // abs(other)
    return np.where((x < 0) != (y < 0), -quotient, quotient).astype(x.dtype)


def c_remainder(x: Array, y: Array) -> Array:
    """The matching remainder, with the sign of the dividend."""
    with np.errstate(over="ignore"):
        return x - c_quotient(x, y) * y


def remainder(x: Array, y: Array) -> Array:
    return np.fmod(x, y) if x.dtype.kind == "f" else c_remainder(x, y)


def smaller(x: Array, y: Array) -> Array:
    """By default a NaN loses to the other operand."""
    return np.fmin(x, y) if x.dtype.kind == "f" else np.minimum(x, y)


def larger(x: Array, y: Array) -> Array:
    return np.fmax(x, y) if x.dtype.kind == "f" else np.maximum(x, y)


def either(x: Array, y: Array) -> Array:
    return np.where(x != y, x, y)


def rounded_up(x: Array, y: Array) -> Array:
    """The ceiling of the quotient of small numbers, as in the expression below."""
    return ((x & 0x3F) + (y & 0xF)) // ((y & 0xF) + 1)


def high_product(x: Array, y: Array) -> Array:
    """The upper half of the unsigned double-width product."""
    bits = x.dtype.itemsize * 8
    unsigned = np.dtype(f"uint{bits}")
    product = x.view(unsigned).astype(object) * y.view(unsigned).astype(object)
    return (product >> bits).astype(unsigned).view(x.dtype)


OPS: dict[str, Op] = {
    "x + y": Op("x + y", NUMBERS, np.add),
    "x - y": Op("x - y", NUMBERS, np.subtract),
    "x * y": Op("x * y", NUMBERS, np.multiply),
    "x / y": Op("x / y", FLOATS, np.divide),
    "x // y": Op("x // y", INTEGERS, c_quotient),
    "x % y": Op("x % y", NUMBERS, remainder),
    "-x": Op("-x", NUMBERS, lambda x, y: 0 - x),
    "~x": Op("~x", BITWISE, lambda x, y: ~x),
    "x & y": Op("x & y", BITWISE, lambda x, y: x & y),
    "x | y": Op("x | y", BITWISE, lambda x, y: x | y),
    "x ^ y": Op("x ^ y", BITWISE, lambda x, y: x ^ y),
    "x << y": Op("x << z", INTEGERS, lambda x, z: x << z),
    "x >> y": Op("x >> z", INTEGERS, lambda x, z: x >> z),
    "x < y": Op("x < y", NUMBERS, lambda x, y: x < y, "int1"),
    "x <= y": Op("x <= y", NUMBERS, lambda x, y: x <= y, "int1"),
    "x > y": Op("x > y", NUMBERS, lambda x, y: x > y, "int1"),
    "x >= y": Op("x >= y", NUMBERS, lambda x, y: x >= y, "int1"),
    "x == y": Op("x == y", ("int1", *NUMBERS), lambda x, y: x == y, "int1"),
    "x != y": Op("x != y", ("int1", *NUMBERS), lambda x, y: x != y, "int1"),
    "tl.where": Op("tl.where(x != y, x, y)", ("int1", *NUMBERS), either),
    "tl.minimum": Op("tl.minimum(x, y)", NUMBERS, smaller),
    "tl.maximum": Op("tl.maximum(x, y)", NUMBERS, larger),
    "tl.abs": Op("tl.abs(x)", NUMBERS, lambda x, y: np.abs(x)),
    "tl.add": Op("tl.add(x, y, sanitize_overflow=False)", NUMBERS, np.add),
    "tl.sub": Op("tl.sub(x, y, sanitize_overflow=False)", NUMBERS, np.subtract),
    "tl.mul": Op("tl.mul(x, y, sanitize_overflow=False)", NUMBERS, np.multiply),
    "tl.fdiv": Op("tl.fdiv(x, y)", ("fp32", "fp64"), np.divide),
    "tl.div_rn": Op("tl.div_rn(x, y)", ("fp32",), np.divide),
    "tl.umulhi": Op("tl.umulhi(x, y)", ("int32", "int64", "uint32", "uint64"), high_product),
    "tl.cdiv": Op("tl.cdiv(x & 0x3f, (y & 0xf) + 1)", INTEGERS, rounded_up),
    "tl.full": Op("tl.full((BLOCK,), 3, x.dtype)", NUMBERS, lambda x, y: np.full_like(x, 3)),
    "tl.zeros_like": Op("tl.zeros_like(x)", ("int1", *NUMBERS), lambda x, y: np.zeros_like(x)),
}  # fmt: skip


def out_name(op: Op, dtype: str) -> str:
    if op.expression == "x / y" and dtype in ("fp16", "bf16"):
        return "fp32"  # Triton divides halves in fp32 and leaves the result there
    if op.expression == "x % y" and dtype in ("fp16", "bf16"):
        return "fp32"
    return op.out or dtype


def operands(dtype: str) -> dict[str, Array]:
    x, y = edges(dtype, COUNT, 1), edges(dtype, COUNT, 2)
    found = {"x": x, "y": y}
    if dtype in INTEGERS:
        bits = FORMATS[dtype].bits
        found["z"] = (np.arange(COUNT) % bits).astype(x.dtype)
        # Division by zero and the one overflowing quotient have no defined result;
        # test_semantics checks that they do not trap.
        found["d"] = np.where(y == 0, np.asarray(1, y.dtype), y)
        if dtype in SIGNED:
            lowest = np.iinfo(x.dtype).min
            found["d"] = np.where((x == lowest) & (found["d"] == -1), 1, found["d"]).astype(x.dtype)
    return found


@functools.cache
def computed(dtype: str) -> dict[str, torch.Tensor | Exception]:
    """Every operation of the dtype, in a few kernels."""
    values = operands(dtype)
    rows = {}
    for key, op in OPS.items():
        if dtype in op.dtypes:
            text = op.expression
            if dtype in INTEGERS and key in ("x // y", "x % y"):
                text = text.replace("y", "d")
            rows[key] = Row(text, out_name(op, dtype))
    return evaluate({k: tensor(v, dtype) for k, v in values.items()}, rows)


def reference(key: str, dtype: str) -> Array:
    op, values = OPS[key], operands(dtype)
    second = values["y"]
    if key in ("x << y", "x >> y"):
        second = values["z"]
    elif dtype in INTEGERS and key in ("x // y", "x % y"):
        second = values["d"]
    with np.errstate(all="ignore"):
        want = np.asarray(op.reference(values["x"], second))
        out = out_name(op, dtype)
        if not FORMATS[out].is_float:
            return want.astype(FORMATS[out].numpy)
        return round_to(want, out)


@pytest.mark.parametrize(
    ("key", "dtype"), [covered(key, d) for key, op in OPS.items() for d in op.dtypes]
)
def test_an_operation_gives_its_exact_result(key: str, dtype: str) -> None:
    got = array(result(computed(dtype), key))
    assert_same(got, reference(key, dtype))


# -- three operands -------------------------------------------------------------------------------


def exact_fma(x: Array, y: Array, z: Array, dtype: str) -> Array:
    """x*y+z rounded once. Python's fractions are exact; the format's rounding follows."""

    def one(a: float, b: float, c: float) -> float:
        if not (np.isfinite(a) and np.isfinite(b)):
            return a * b + c
        if not np.isfinite(c):
            return c
        total = Fraction(a) * Fraction(b) + Fraction(c)
        return round_fraction(total, dtype)

    with np.errstate(all="ignore"):
        return np.array([one(a, b, c) for a, b, c in zip(x, y, z, strict=True)])


@pytest.mark.parametrize("dtype", [covered("tl.fma", d, args=(d,)) for d in FLOATS])
def test_fma_rounds_once(dtype: str) -> None:
    x, y, z = (edges(dtype, 256, seed) for seed in (3, 4, 5))
    # Products that nearly cancel show a second rounding.
    with np.errstate(all="ignore"):
        z[128:] = round_to(-x[128:] * y[128:], dtype)
    found = evaluate(
        {"x": tensor(x, dtype), "y": tensor(y, dtype), "z": tensor(z, dtype)},
        {"fma": Row("tl.fma(x, y, z)", dtype)},
    )
    assert_same(array(result(found, "fma")), exact_fma(x, y, z, dtype))


@pytest.mark.parametrize("dtype", [covered("tl.clamp", d, args=(d,)) for d in FLOATS])
def test_clamp_keeps_values_between_bounds(dtype: str) -> None:
    x = edges(dtype, 256, 6)
    x = np.where(np.isnan(x), 0.25, x)  # test_semantics tests NaNs
    low, high = np.full_like(x, -1.75), np.abs(edges(dtype, 256, 7))
    high = np.where(np.isnan(high), 2.0, high)
    found = evaluate(
        {"x": tensor(x, dtype), "y": tensor(low, dtype), "z": tensor(high, dtype)},
        {"clamp": Row("tl.clamp(x, y, z)", dtype), "scalars": Row("tl.clamp(x, -1.0, 2.5)", dtype)},
    )
    assert_same(array(result(found, "clamp")), np.clip(x, low, high))
    assert_same(array(result(found, "scalars")), np.clip(x, -1.0, 2.5))


# -- operands of two dtypes -----------------------------------------------------------------------

PROMOTIONS = (
    ("int8", "int32", "int32"),
    ("int8", "uint8", "uint8"),
    ("uint8", "int16", "int16"),
    ("int32", "uint32", "uint32"),
    ("uint32", "int64", "int64"),
    ("int64", "uint64", "uint64"),
    ("int16", "fp16", "fp16"),
    ("int32", "fp32", "fp32"),
    ("uint8", "bf16", "bf16"),
    ("fp16", "bf16", "fp16"),
    ("fp16", "fp32", "fp32"),
    ("bf16", "fp32", "fp32"),
    ("fp32", "fp64", "fp64"),
)


def mixed_operands(left: str, right: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(8)
    x = rng.integers(0 if left.startswith("u") else -100, 100, 256)
    y = rng.integers(0 if right.startswith("u") else -100, 100, 256)
    return x, y


@functools.cache
def promoted() -> dict[str, torch.Tensor | Exception]:
    """Every operation on operands of two dtypes, in a few kernels."""
    jobs = {}
    for left, right, both in PROMOTIONS:
        x, y = mixed_operands(left, right)
        inputs = {"x": tensor(x, left), "y": tensor(y, right)}
        for text, out in (("x + y", both), ("x * y", both), ("x < y", "int1")):
            jobs[f"{left} {right} {text}"] = (Row(text, out), inputs)
    return evaluate_each(jobs)


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [covered("promotion", a, b, args=(a, b, both)) for a, b, both in PROMOTIONS],
)
def test_mixed_operands_are_computed_in_the_promoted_dtype(
    left: str, right: str, both: str
) -> None:
    x, y = mixed_operands(left, right)
    found = promoted()
    kind = FORMATS[both].numpy
    with np.errstate(all="ignore"):
        a, b = x.astype(kind), y.astype(kind)
        total, product = a + b, a * b
    if FORMATS[both].is_float:
        total, product = round_to(total, both), round_to(product, both)
    assert_same(array(result(found, f"{left} {right} x + y")), total)
    assert_same(array(result(found, f"{left} {right} x * y")), product)
    assert_same(array(result(found, f"{left} {right} x < y")), a < b)


def constant_of(dtype: str) -> float:
    return 1.5 if dtype in FLOATS else 3


@functools.cache
def with_constants() -> dict[str, torch.Tensor | Exception]:
    """Every operation with a Python number, in a few kernels."""
    jobs = {}
    for dtype in NUMBERS:
        inputs, constant = {"x": tensor(edges(dtype, 256, 9), dtype)}, constant_of(dtype)
        jobs[f"{dtype} right"] = (Row(f"x * {constant}", dtype), inputs)
        jobs[f"{dtype} left"] = (Row(f"{constant} - x", dtype), inputs)
        jobs[f"{dtype} compare"] = (Row(f"x > {constant}", "int1"), inputs)
    return evaluate_each(jobs)


@pytest.mark.parametrize("dtype", [covered("scalar operand", d, args=(d,)) for d in NUMBERS])
def test_a_python_number_takes_the_tensors_dtype(dtype: str) -> None:
    x, found = edges(dtype, 256, 9), with_constants()
    scalar = np.asarray(constant_of(dtype), FORMATS[dtype].numpy)
    with np.errstate(all="ignore"):
        product, difference = x * scalar, scalar - x
    if dtype in FLOATS:
        product, difference = round_to(product, dtype), round_to(difference, dtype)
    assert_same(array(result(found, f"{dtype} right")), product)
    assert_same(array(result(found, f"{dtype} left")), difference)
    assert_same(array(result(found, f"{dtype} compare")), x > scalar)


@pytest.mark.parametrize("op", [covered("logical and/or/not", "int1", args=("logical",))])
def test_logical_operators_work_on_truth_values(op: str) -> None:
    x, y = edges("int1", 256, 10), edges("int1", 256, 11)
    found = evaluate(
        {"x": tensor(x, "int1"), "y": tensor(y, "int1")},
        {
            "and": Row("x.logical_and(y)", "int1"),
            "or": Row("x.logical_or(y)", "int1"),
            "not": Row("(not x)", "int1"),
        },
    )
    assert_same(array(result(found, "and")), x & y)
    assert_same(array(result(found, "or")), x | y)
    assert_same(array(result(found, "not")), ~x)


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 4, 8, 32, 1024, 4096])
def test_blocks_of_every_size_compute_the_same(block: int) -> None:
    x, y = edges("fp32", 4096, 12), edges("fp32", 4096, 13)
    found = evaluate(
        {"x": tensor(x, "fp32"), "y": tensor(y, "fp32")},
        {"value": Row("tl.where(x > y, x - y, x + y) * 2", "fp32")},
        block=block,
    )
    with np.errstate(all="ignore"):
        want = round_to(round_to(np.where(x > y, x - y, x + y), "fp32") * 2, "fp32")
    assert_same(array(result(found, "value")), want)


def test_unsigned_dtypes_are_told_from_signed_ones() -> None:
    """The tests above use the same bits for both kinds; here the results must differ."""
    for dtype in UNSIGNED:
        bits = FORMATS[dtype].bits
        x = np.full(16, (1 << bits) - 2, dtype=FORMATS[dtype].numpy)
        found = evaluate(
            {"x": tensor(x, dtype)},
            {
                "half": Row("x // 2", dtype),
                "shift": Row("x >> 1", dtype),
                "more": Row("x > 1", "int1"),
            },
            block=16,
        )
        assert_same(array(result(found, "half")), x // 2)
        assert_same(array(result(found, "shift")), x >> 1)
        assert array(result(found, "more")).all()
