"""Reductions over any axis, with Triton's combine functions and our own, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import (
    FLOATS,
    FORMATS,
    INTEGERS,
    NUMBERS,
    Array,
    array,
    assert_same,
    covered,
    edges,
    empty,
    float_edges,
    integer_edges,
    round_to,
    tensor,
)

SHAPE = (4, 8, 16)  # of the block that is reduced along each axis


@triton.jit
def reduce_kernel(
    x_ptr, s_ptr, low_ptr, high_ptr, low_at_ptr, high_at_ptr,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Every named reduction of a 3-D block along one axis."""
    at = (
        tl.arange(0, A)[:, None, None] * (B * C)
        + tl.arange(0, B)[None, :, None] * C
        + tl.arange(0, C)[None, None, :]
    )
    x = tl.load(x_ptr + at)
    out = tl.arange(0, SIZE)
    tl.store(s_ptr + out, tl.ravel(tl.sum(x, AXIS)))
    tl.store(low_ptr + out, tl.ravel(tl.min(x, AXIS)))
    tl.store(high_ptr + out, tl.ravel(tl.max(x, AXIS)))
    tl.store(low_at_ptr + out, tl.ravel(tl.argmin(x, AXIS)))
    tl.store(high_at_ptr + out, tl.ravel(tl.argmax(x, AXIS)))


@triton.jit
def xor_kernel(
    x_ptr, xor_ptr, or_ptr, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr, SIZE: tl.constexpr
):
    x = tl.load(x_ptr + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])
    out = tl.arange(0, SIZE)
    tl.store(xor_ptr + out, tl.xor_sum(x, AXIS))
    tl.store(or_ptr + out, tl.reduce_or(x, AXIS))


def sum_dtype(dtype: str) -> str:
    """Triton sums small integers in 32 bits."""
    if dtype in INTEGERS and FORMATS[dtype].bits < 32:
        return "uint32" if dtype.startswith("u") else "int32"
    return dtype


def summable(dtype: str) -> Array:
    """Values whose sums are exact in any order."""
    count = int(np.prod(SHAPE))
    if dtype in INTEGERS:
        return integer_edges(dtype, count, 41)
    return np.random.default_rng(42).integers(-7, 8, count) / 4.0


BITWISE = ("tl.xor_sum", "tl.reduce_or")
NAMED = ("tl.sum", "tl.min", "tl.max", "tl.argmin", "tl.argmax")
# Each dtype along one axis, in rotation; a few dtypes along all of them.
TURNS = [(d, i % 3) for i, d in enumerate(NUMBERS)]
TURNS += [(d, a) for d in ("fp32", "bf16", "uint8") for a in (0, 1, 2, -1) if (d, a) not in TURNS]


@pytest.mark.parametrize(
    ("dtype", "axis"),
    [pytest.param(d, a, marks=[pytest.mark.covers(op, d) for op in NAMED]) for d, a in TURNS],
)
def test_named_reductions_along_every_axis(dtype: str, axis: int) -> None:
    x = summable(dtype).reshape(SHAPE)
    size = x.size // SHAPE[axis]
    outs = [empty(size, sum_dtype(dtype)), empty(size, dtype), empty(size, dtype)]
    outs += [empty(size, "int32"), empty(size, "int32")]
    a, b, c = SHAPE
    reduce_kernel[(1,)](tensor(x, dtype), *outs, A=a, B=b, C=c, AXIS=axis, SIZE=size)
    total, low, high, low_at, high_at = (array(o) for o in outs)
    with np.errstate(over="ignore"):
        kind = FORMATS[sum_dtype(dtype)].numpy
        assert_same(total, x.sum(axis, dtype=kind).ravel(), "sum")
    assert_same(low, x.min(axis).ravel(), "min")
    assert_same(high, x.max(axis).ravel(), "max")
    assert_same(
        low_at, x.argmin(axis).ravel(), "argmin"
    )  # numpy also returns the first of equal elements
    assert_same(high_at, x.argmax(axis).ravel(), "argmax")


@pytest.mark.parametrize(
    ("dtype", "axis"),
    [
        pytest.param(d, i % 2, marks=[pytest.mark.covers(op, d) for op in BITWISE])
        for i, d in enumerate(INTEGERS)
    ],
)
def test_bitwise_reductions(dtype: str, axis: int) -> None:
    x = integer_edges(dtype, 8 * 32, 43).reshape(8, 32)
    size = x.size // x.shape[axis]
    outs = [empty(size, dtype), empty(size, dtype)]
    xor_kernel[(1,)](tensor(x, dtype), *outs, A=8, B=32, AXIS=axis, SIZE=size)
    assert_same(array(outs[0]), np.bitwise_xor.reduce(x, axis))
    assert_same(array(outs[1]), np.bitwise_or.reduce(x, axis))


# -- the whole block, sizes and precision ---------------------------------------------------------


@triton.jit
def whole_kernel(x_ptr, y_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(y_ptr, tl.sum(x))
    tl.store(y_ptr + 1, tl.max(x))
    kept = tl.sum(x, 0, keep_dims=True)
    tl.store(y_ptr + 2 + tl.arange(0, 1), kept)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 1024, 4096])
def test_a_block_of_any_size_reduces_to_a_scalar(size: int) -> None:
    x = float_edges("fp32", size, 44, special=False)
    y = empty(3, "fp32")
    whole_kernel[(1,)](tensor(x, "fp32"), y, N=size)
    bound = np.log2(2 * size) * 2.0**-24 * np.abs(x).sum()  # of a sum taken as a tree
    bound = max(bound, size * 2.0**-24 * np.abs(x).sum() / 8)
    got = array(y)
    assert abs(got[0] - x.sum()) <= bound
    assert got[1] == x.max()
    assert abs(got[2] - x.sum()) <= bound


@triton.jit
def sum_dtype_kernel(x_ptr, y_ptr, N: tl.constexpr, AS: tl.constexpr):
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), 0, dtype=AS))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        covered("tl.sum(dtype=...)", d, args=(d, w))
        for d, w in (("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp64"), ("int8", "int64"))
    ],
)
def test_a_sum_is_taken_in_the_dtype_asked_for(dtype: str, wide: str) -> None:
    """4096 values near 1: a half-precision sum would stop growing at 2048 or 256."""
    x = np.ones(4096) if dtype != "int8" else np.full(4096, 127)
    if dtype == "fp32":
        x[0] = 2.0**26
    y = empty(1, wide)
    sum_dtype_kernel[(1,)](tensor(x, dtype), y, N=4096, AS=FORMATS[wide].tl)
    assert array(y)[0] == x.sum()


@triton.jit
def plane_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])
    tl.store(y_ptr + tl.arange(0, A * B // x.shape[AXIS]), tl.sum(x, AXIS))


@pytest.mark.parametrize("shape", [(1024, 4), (4, 1024), (64, 64), (1024, 1)])
@pytest.mark.parametrize(
    ("dtype", "axis"),
    [covered("sums rounded once", d, args=(d, a)) for d in ("fp16", "bf16") for a in (0, 1)],
)
def test_narrow_sums_are_rounded_once(dtype: str, axis: int, shape: tuple[int, int]) -> None:
    """Sums of integers, exact in fp32. One that is rounded in every step stops growing."""
    x = np.random.default_rng(49).integers(1, 8, shape).astype(np.float64)
    y = empty(x.size // shape[axis], dtype)
    plane_kernel[(1,)](tensor(x, dtype), y, A=shape[0], B=shape[1], AXIS=axis)
    assert_same(array(y), round_to(x.sum(axis), dtype))


# -- NaNs and ties --------------------------------------------------------------------------------


@triton.jit
def extremes_kernel(x_ptr, v_ptr, i_ptr, A: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr):
    row = tl.arange(0, A)
    x = tl.load(x_ptr + row[:, None] * B + tl.arange(0, B)[None, :])
    high, high_at = tl.max(x, 1, return_indices=True, return_indices_tie_break_left=LEFT)
    low, low_at = tl.min(x, 1, return_indices=True, return_indices_tie_break_left=LEFT)
    tl.store(v_ptr + row, high)
    tl.store(v_ptr + A + row, low)
    tl.store(i_ptr + row, high_at)
    tl.store(i_ptr + A + row, low_at)


def extremes(x: Array, dtype: str, left: bool) -> tuple[Array, Array]:
    a, b = x.shape
    values, places = empty((2, a), dtype), empty((2, a), "int32")
    extremes_kernel[(1,)](tensor(x, dtype), values, places, A=a, B=b, LEFT=left)
    return array(values), array(places)


@pytest.mark.parametrize(
    "dtype", [covered("tl.max(return_indices)", d, args=(d,)) for d in (*FLOATS, "int32", "uint8")]
)
def test_ties_go_to_the_leftmost(dtype: str) -> None:
    x = np.random.default_rng(45).integers(0, 3, (16, 64)).astype(FORMATS[dtype].numpy)
    values, places = extremes(x, dtype, left=True)
    assert_same(values, [x.max(1), x.min(1)])
    assert_same(places, [x.argmax(1), x.argmin(1)])


def test_without_tie_breaking_the_index_still_points_at_the_value() -> None:
    x = np.random.default_rng(46).integers(0, 3, (16, 64)).astype(float)
    values, places = extremes(x, "fp32", left=False)
    rows = np.arange(16)
    assert_same(values, [x.max(1), x.min(1)])
    assert_same([x[rows, places[0]], x[rows, places[1]]], values)


def test_value_and_index_agree_in_the_presence_of_nans() -> None:
    """Which element wins among NaNs depends on the order; value and index must match anyway."""
    x = float_edges("fp32", 16 * 32, 47).reshape(16, 32)
    x[3] = np.nan
    values, places = extremes(x, "fp32", left=True)
    rows = np.arange(16)
    assert ((places >= 0) & (places < 32)).all()
    assert_same([x[rows, places[0]], x[rows, places[1]]], values)


def test_plain_extremes_pass_over_nans() -> None:
    x = float_edges("fp32", 4 * 8 * 16, 48).reshape(4, 8, 16)
    x[0, :, 0] = np.nan
    outs = [empty(64, "fp32") for _ in range(3)] + [empty(64, "int32") for _ in range(2)]
    reduce_kernel[(1,)](tensor(x, "fp32"), *outs, A=4, B=8, C=16, AXIS=1, SIZE=64)
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="All-NaN"):
        assert_same(array(outs[1]), np.nanmin(x, 1).ravel())
        assert_same(array(outs[2]), np.nanmax(x, 1).ravel())


# -- combine functions of our own -----------------------------------------------------------------


@triton.jit
def product_of(a, b):
    return a * b


@triton.jit
def larger_by_size(a, b):
    return tl.where(tl.abs(a) >= tl.abs(b), a, b)


@triton.jit
def merge_moments(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Two partial means and sums of squared distances, as one (Chan's formula)."""
    count = count_a + count_b
    gap = mean_b - mean_a
    share = count_b / count
    return mean_a + gap * share, m2_a + m2_b + gap * gap * count_a * share, count


@triton.jit
def custom_kernel(
    x_ptr, p_ptr, l_ptr, m_ptr, v_ptr, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    x = tl.load(x_ptr + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])
    out = tl.arange(0, SIZE)
    tl.store(p_ptr + out, tl.reduce(x, AXIS, product_of))
    tl.store(l_ptr + out, tl.reduce(x, AXIS, larger_by_size))
    mean, m2, count = tl.reduce(
        (x, tl.zeros_like(x), tl.full((A, B), 1.0, x.dtype)), AXIS, merge_moments
    )
    tl.store(m_ptr + out, mean)
    tl.store(v_ptr + out, m2 / count)


CUSTOM = ("tl.reduce (own function)", "tl.reduce (tuple)")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[pytest.mark.covers(op, d) for op in CUSTOM]) for d in ("fp32", "fp64")],
)
def test_custom_and_tuple_reductions(dtype: str, axis: int) -> None:
    x = round_to(np.random.default_rng(49).uniform(0.5, 1.5, (16, 32)), dtype)
    x[::2] *= -1
    size = x.size // x.shape[axis]
    outs = [empty(size, dtype) for _ in range(4)]
    custom_kernel[(1,)](tensor(x, dtype), *outs, A=16, B=32, AXIS=axis, SIZE=size)
    eps = 2.0 ** -(FORMATS[dtype].digits - 1)
    products, larger, mean, variance = (array(o) for o in outs)
    np.testing.assert_allclose(products, x.prod(axis), rtol=16 * eps)
    furthest = np.take_along_axis(x, np.expand_dims(np.abs(x).argmax(axis), axis), axis).squeeze(
        axis
    )
    assert_same(larger, furthest)
    np.testing.assert_allclose(mean, x.mean(axis), rtol=32 * eps, atol=16 * eps)
    np.testing.assert_allclose(variance, x.var(axis), rtol=32 * eps)


@triton.jit
def first_and_last(first_a, last_a, first_b, last_b):
    """Associative but not commutative, so a changed order shows."""
    return first_a, last_b


@triton.jit
def ordered_kernel(x_ptr, f_ptr, l_ptr, A: tl.constexpr, B: tl.constexpr):
    row = tl.arange(0, A)
    x = tl.load(x_ptr + row[:, None] * B + tl.arange(0, B)[None, :])
    first, last = tl.reduce((x, x), 1, first_and_last)
    tl.store(f_ptr + row, first)
    tl.store(l_ptr + row, last)


def test_a_reduction_keeps_the_order_of_its_elements() -> None:
    x = np.arange(8 * 64).reshape(8, 64)
    outs: list[Any] = [empty(8, "int32"), empty(8, "int32")]
    ordered_kernel[(1,)](tensor(x, "int32"), *outs, A=8, B=64)
    assert_same(array(outs[0]), x[:, 0])
    assert_same(array(outs[1]), x[:, -1])


def test_boolean_blocks_count_their_true_values() -> None:
    x = edges("int1", 256, 50)
    y = torch.zeros(3, dtype=torch.int32)

    bool_kernel[(1,)](tensor(x, "int1"), y, N=256)
    assert y.tolist() == [int(x.sum()), int(x.max()), int(x.min())]


@triton.jit
def bool_kernel(x_ptr, y_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(y_ptr, tl.sum(x.to(tl.int32)))
    tl.store(y_ptr + 1, tl.max(x.to(tl.int32)))
    tl.store(y_ptr + 2, tl.min(x.to(tl.int32)))
