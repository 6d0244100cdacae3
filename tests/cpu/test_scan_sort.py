"""Scans, sorting, top-k, gathering and histograms over any axis, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
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

SHAPE = (4, 8, 16)


@triton.jit
def at_3d(A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Row-major offsets of a 3-D block."""
    return (
        tl.arange(0, A)[:, None, None] * (B * C)
        + tl.arange(0, B)[None, :, None] * C
        + tl.arange(0, C)[None, None, :]
    )


@triton.jit
def scan_kernel(
    x_ptr, sum_ptr, product_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    at = at_3d(A, B, C)
    x = tl.load(x_ptr + at)
    tl.store(sum_ptr + at, tl.cumsum(x, AXIS, reverse=REVERSE))
    tl.store(product_ptr + at, tl.cumprod(x, AXIS, reverse=REVERSE))


def scan(function: np.ufunc, x: Array, axis: int, reverse: bool, dtype: object = None) -> Array:
    """numpy's accumulate, in the given direction."""
    turned = np.flip(x, axis) if reverse else x
    with np.errstate(all="ignore"):
        found = function.accumulate(turned, axis, dtype=dtype)
    return np.flip(found, axis) if reverse else found


@triton.jit
def cumsum_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(y_ptr + at, tl.cumsum(tl.load(x_ptr + at), AXIS))


@pytest.mark.parametrize("shape", [(1024, 2), (2, 1024)])
@pytest.mark.parametrize(
    ("dtype", "axis"),
    [covered("scans rounded once", d, args=(d, a)) for d in ("fp16", "bf16") for a in (0, 1)],
)
def test_narrow_scans_are_rounded_once(dtype: str, axis: int, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(60).integers(1, 8, shape).astype(np.float64)
    y = empty(shape, dtype)
    cumsum_kernel[(1,)](tensor(x, dtype), y, A=shape[0], B=shape[1], AXIS=axis)
    assert_same(array(y), round_to(x.cumsum(axis), dtype))


SCANS = ("tl.cumsum", "tl.cumprod")
# Each dtype along one axis and in one direction, in rotation; fp32 in all of them.
TURNS = [(d, i % 3, bool(i & 1)) for i, d in enumerate(NUMBERS)]
TURNS += [("fp32", a, r) for a in (0, 1, 2) for r in (False, True) if ("fp32", a, r) not in TURNS]


@pytest.mark.parametrize(
    ("dtype", "axis", "reverse"),
    [pytest.param(*t, marks=[pytest.mark.covers(op, t[0]) for op in SCANS]) for t in TURNS],
)
def test_named_scans_along_every_axis(dtype: str, axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(61)
    small = dtype in INTEGERS and FORMATS[dtype].bits < 32
    wide = ("uint32" if dtype.startswith("u") else "int32") if small else dtype
    if dtype in INTEGERS:
        x = integer_edges(dtype, 512, 61).reshape(SHAPE)
    else:  # powers of two and small sums: exact in every format
        x = np.where(rng.integers(0, 4, SHAPE) == 0, -1.0, 1.0) * 2.0 ** rng.integers(0, 2, SHAPE)
        x[np.abs(x) == 2] *= rng.integers(0, 2, SHAPE)[np.abs(x) == 2] * 0.5 + 0.5
    sums, products = empty(SHAPE, wide), empty(SHAPE, dtype)
    a, b, c = SHAPE
    scan_kernel[(1,)](tensor(x, dtype), sums, products, A=a, B=b, C=c, AXIS=axis, REVERSE=reverse)
    kind = FORMATS[wide].numpy
    assert_same(array(sums), scan(np.add, x, axis, reverse, kind), "cumsum")
    # Triton 3.9 widens small integers in cumprod as well; the low bits are the same.
    assert_same(array(products), scan(np.multiply, x, axis, reverse, x.dtype), "cumprod")


# -- scans of our own -----------------------------------------------------------------------------


@triton.jit
def linear_step(a, b, c, d):
    """x -> a x + b followed by x -> c x + d: associative, not commutative."""
    return a * c, b * c + d


@triton.jit
def running_maximum(a, b):
    return tl.maximum(a, b)


@triton.jit
def recurrence_kernel(
    a_ptr, b_ptr, y_ptr, m_ptr, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    a = tl.load(a_ptr + at)
    b = tl.load(b_ptr + at)
    _, y = tl.associative_scan((a, b), AXIS, linear_step, reverse=REVERSE)
    tl.store(y_ptr + at, y)
    tl.store(m_ptr + at, tl.associative_scan(b, AXIS, running_maximum, reverse=REVERSE))


def recurrence(a: Array, b: Array, axis: int, reverse: bool) -> Array:
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    if reverse:
        a, b = a[::-1], b[::-1]
    y = np.empty_like(b)
    state = np.zeros_like(b[0])
    for i in range(len(b)):
        state = a[i] * state + b[i]
        y[i] = state
    return np.moveaxis(y[::-1] if reverse else y, 0, axis)


OWN = ("tl.associative_scan (own function)", "tl.associative_scan (tuple)")


@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (1, True), (-1, False)])
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=[pytest.mark.covers(op, d) for op in OWN])
        for d in ("fp32", "fp64", "int32")
    ],
)
def test_a_scan_carries_a_tuple(dtype: str, axis: int, reverse: bool) -> None:
    rng = np.random.default_rng(62)
    if dtype == "int32":
        a, b = rng.integers(-3, 4, (16, 32)), rng.integers(-9, 10, (16, 32))
        a, b = a.astype(np.int32), b.astype(np.int32)
    else:
        a, b = (
            round_to(rng.uniform(0.5, 1, (16, 32)), dtype),
            round_to(rng.normal(size=(16, 32)), dtype),
        )
    y, m = empty((16, 32), dtype), empty((16, 32), dtype)
    recurrence_kernel[(1,)](
        tensor(a, dtype), tensor(b, dtype), y, m, A=16, B=32, AXIS=axis, REVERSE=reverse
    )
    want = recurrence(a, b, axis, reverse)
    if dtype == "int32":
        assert_same(array(y), want)
    else:
        eps = 2.0 ** (1 - FORMATS[dtype].digits)
        scale = recurrence(np.abs(a), np.abs(b), axis, reverse)
        assert (np.abs(array(y) - want) <= 16 * eps * scale).all()
    assert_same(array(m), scan(np.maximum, b, axis, reverse))


@triton.jit
def length_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.cumsum(tl.load(x_ptr + at), 0))


@pytest.mark.parametrize("size", [1, 2, 64, 4096])
def test_a_scan_of_any_length(size: int) -> None:
    x = np.random.default_rng(63).integers(-100, 100, size)
    y = empty(size, "int32")
    length_kernel[(1,)](tensor(x, "int32"), y, N=size)
    assert_same(array(y), x.cumsum())


# -- sorting --------------------------------------------------------------------------------------


@triton.jit
def sort_kernel(x_ptr, up_ptr, down_ptr, A: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(up_ptr + at, tl.sort(x))
    tl.store(down_ptr + at, tl.sort(x, dim=1, descending=True))


@pytest.mark.parametrize("dtype", [covered("tl.sort", d, args=(d,)) for d in NUMBERS])
def test_sort_orders_the_last_axis(dtype: str) -> None:
    x = edges(dtype, 64, 64).reshape(4, 16)
    x = np.where(np.isnan(x), 2, x).astype(x.dtype)
    up, down = empty(x.shape, dtype), empty(x.shape, dtype)
    sort_kernel[(1,)](tensor(x, dtype), up, down, A=4, B=16)
    assert_same(array(up), np.sort(x, 1))
    assert_same(array(down), -np.sort(-x, 1) if dtype in FLOATS else np.sort(x, 1)[:, ::-1])


@triton.jit
def sort_axis_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Sort along the middle axis of a 3-D block: permute it to the end, sort, and permute back."""
    at = at_3d(A, B, C)
    x = tl.permute(tl.load(x_ptr + at), (0, 2, 1))
    tl.store(y_ptr + at, tl.permute(tl.sort(x), (0, 2, 1)))


@pytest.mark.parametrize("op", [covered("tl.sort (any axis)", "fp32", args=("sort",))])
def test_sort_along_a_middle_axis(op: str) -> None:
    x = float_edges("fp32", 64, 65, special=False).reshape(2, 16, 2)
    y = empty(x.shape, "fp32")
    sort_axis_kernel[(1,)](tensor(x, "fp32"), y, A=2, B=16, C=2)
    assert_same(array(y), np.sort(x, 1))


@triton.jit
def sort_1d_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.sort(tl.load(x_ptr + at)))


@pytest.mark.parametrize("size", [2, 256])
def test_sort_of_one_dimension(size: int) -> None:
    x = np.random.default_rng(66).integers(-1000, 1000, size)
    y = empty(size, "int32")
    sort_1d_kernel[(1,)](tensor(x, "int32"), y, N=size)
    assert_same(array(y), np.sort(x))


@triton.jit
def topk_kernel(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr):
    row = tl.arange(0, A)[:, None]
    x = tl.load(x_ptr + row * B + tl.arange(0, B)[None, :])
    tl.store(y_ptr + row * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@pytest.mark.parametrize("dtype", [covered("tl.topk", d, args=(d,)) for d in NUMBERS])
def test_topk_gives_the_largest_in_falling_order(dtype: str) -> None:
    x = edges(dtype, 64, 67).reshape(4, 16)
    x = np.where(np.isnan(x), 2, x).astype(x.dtype)
    y = empty((4, 4), dtype)
    topk_kernel[(1,)](tensor(x, dtype), y, A=4, B=16, K=4)
    assert_same(array(y), np.sort(x, 1)[:, ::-1][:, :4])


@triton.jit
def merge_kernel(x_ptr, y_ptr, N: tl.constexpr, DOWN: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.bitonic_merge(tl.load(x_ptr + at), descending=DOWN))


@pytest.mark.parametrize(
    "dtype", [covered("tl.bitonic_merge", d, args=(d,)) for d in ("int32", "fp32")]
)
@pytest.mark.parametrize("down", [False, True])
def test_bitonic_merge_sorts_a_bitonic_sequence(dtype: str, down: bool) -> None:
    x = np.random.default_rng(68).permutation(32)
    x = np.concatenate([np.sort(x[:16]), np.sort(x[16:])[::-1]])
    y = empty(32, dtype)
    merge_kernel[(1,)](tensor(x, dtype), y, N=32, DOWN=down)
    assert_same(array(y), np.sort(x)[::-1] if down else np.sort(x))


# -- gather and histogram -------------------------------------------------------------------------


@triton.jit
def gather_kernel(
    x_ptr, i_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, F: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    at = at_3d(D, E, F)
    index = tl.load(i_ptr + at)
    tl.store(y_ptr + at, tl.gather(tl.load(x_ptr + at_3d(A, B, C)), index, AXIS))


GATHERS = [(d, i % 3) for i, d in enumerate((*NUMBERS, "int1"))] + [("fp32", -1)]


@pytest.mark.parametrize(
    ("dtype", "axis"), [covered("tl.gather", d, args=(d, a)) for d, a in GATHERS]
)
def test_gather_takes_along_any_axis(dtype: str, axis: int) -> None:
    rng = np.random.default_rng(69)
    x = edges(dtype, 512, 69).reshape(SHAPE)
    shape = list(SHAPE)
    shape[axis] *= 2
    index = rng.integers(0, SHAPE[axis], shape)
    y = empty(shape, dtype)
    a, b, c = SHAPE
    d, e, f = shape
    gather_kernel[(1,)](
        tensor(x, dtype), tensor(index, "int32"), y, A=a, B=b, C=c, D=d, E=e, F=f, AXIS=axis
    )
    assert_same(array(y), np.take_along_axis(x, index, axis))


@triton.jit
def histogram_kernel(x_ptr, y_ptr, masked_ptr, n, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    bins = tl.arange(0, BINS)
    tl.store(y_ptr + bins, tl.histogram(x, BINS))
    tl.store(masked_ptr + bins, tl.histogram(x, BINS, mask=at < n))


@pytest.mark.parametrize(
    "dtype", [covered("tl.histogram", d, args=(d,)) for d in ("int32", "uint32")]
)
@pytest.mark.parametrize("bins", [2, 64])
def test_histogram_counts_each_bin(dtype: str, bins: int) -> None:
    x = np.random.default_rng(70).integers(0, bins, 512)
    y, masked = empty(bins, "int32"), empty(bins, "int32")
    histogram_kernel[(1,)](tensor(x, dtype), y, masked, 300, N=512, BINS=bins)
    assert_same(array(y), np.bincount(x, minlength=bins))
    assert_same(array(masked), np.bincount(x[:300], minlength=bins))
