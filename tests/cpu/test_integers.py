"""Properties of integer arithmetic and casts on values chosen by hypothesis, against numpy.

One kernel per dtype does all operations; hypothesis only changes its inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.cpu.cases import (
    FORMATS,
    INTEGERS,
    SIGNED,
    Array,
    array,
    assert_same,
    empty,
    product,
    round_to,
    tensor,
)
from tests.cpu.test_elementwise import c_quotient, c_remainder

LANES = 32
PROFILE = settings(max_examples=30, derandomize=True)


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, s_ptr, out_ptr, LANES: tl.constexpr):
    at = tl.arange(0, LANES)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    s = tl.load(s_ptr + at)
    d = tl.where(y == 0, 1, y)
    tl.store(out_ptr + 0 * LANES + at, x + y)
    tl.store(out_ptr + 1 * LANES + at, x - y)
    tl.store(out_ptr + 2 * LANES + at, x * y)
    tl.store(out_ptr + 3 * LANES + at, x // d)
    tl.store(out_ptr + 4 * LANES + at, x % d)
    tl.store(out_ptr + 5 * LANES + at, x & y)
    tl.store(out_ptr + 6 * LANES + at, x | y)
    tl.store(out_ptr + 7 * LANES + at, x ^ y)
    tl.store(out_ptr + 8 * LANES + at, x << s)
    tl.store(out_ptr + 9 * LANES + at, x >> s)
    tl.store(out_ptr + 10 * LANES + at, ~x)
    tl.store(out_ptr + 11 * LANES + at, tl.minimum(x, y))
    tl.store(out_ptr + 12 * LANES + at, tl.maximum(x, y))
    tl.store(out_ptr + 13 * LANES + at, (x < y).to(x.dtype))


def lanes(dtype: Any) -> st.SearchStrategy[Array]:
    return hnp.arrays(dtype, LANES, elements=hnp.from_dtype(np.dtype(dtype)))


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=pytest.mark.covers("wrap-around (property)", d)) for d in INTEGERS],
)
def test_integer_arithmetic_is_numpys(dtype: str) -> None:
    kind = FORMATS[dtype].numpy

    @PROFILE
    @given(lanes(kind), lanes(kind), st.integers(0, FORMATS[dtype].bits - 1))
    def check(x: Array, y: Array, shift: int) -> None:
        if dtype in SIGNED:  # the one overflowing quotient; see test_semantics
            y = np.where((x == np.iinfo(kind).min) & (y == -1), 1, y).astype(kind)
        s = ((np.arange(LANES) + shift) % FORMATS[dtype].bits).astype(kind)
        out = empty((14, LANES), dtype)
        arithmetic_kernel[(1,)](
            tensor(x, dtype), tensor(y, dtype), tensor(s, dtype), out, LANES=LANES
        )
        d = np.where(y == 0, 1, y).astype(kind)
        with np.errstate(all="ignore"):
            want = [x + y, x - y, x * y, c_quotient(x, d), c_remainder(x, d)]
            want += [x & y, x | y, x ^ y, x << s, x >> s, ~x]
            want += [np.minimum(x, y), np.maximum(x, y), (x < y).astype(kind)]
        assert_same(array(out), np.stack(want))

    check()


@triton.jit
def quotient_kernel(x_ptr, y_ptr, q_ptr, r_ptr, LANES: tl.constexpr):
    at = tl.arange(0, LANES)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(q_ptr + at, x // y)
    tl.store(r_ptr + at, x % y)


@pytest.mark.parametrize("dtype", SIGNED)
def test_quotient_and_remainder_rebuild_the_dividend(dtype: str) -> None:
    kind = FORMATS[dtype].numpy

    @PROFILE
    @given(lanes(kind), lanes(kind))
    def check(x: Array, y: Array) -> None:
        y = np.where((y == 0) | ((x == np.iinfo(kind).min) & (y == -1)), 3, y).astype(kind)
        q, r = empty(LANES, dtype), empty(LANES, dtype)
        quotient_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), q, r, LANES=LANES)
        quotient, remainder = array(q), array(r)
        with np.errstate(all="ignore"):
            assert_same(quotient * y + remainder, x)
        assert (np.abs(remainder.astype(object)) < np.abs(y.astype(object))).all()
        assert ((remainder == 0) | ((remainder < 0) == (x < 0))).all()

    check()


@triton.jit
def cast_kernel(x_ptr, y_ptr, LANES: tl.constexpr):
    at = tl.arange(0, LANES)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@pytest.mark.parametrize(("source", "target"), product(INTEGERS, ("int8", "uint16", "int64")))
def test_integer_casts_keep_the_low_bits(source: str, target: str) -> None:
    @PROFILE
    @given(lanes(FORMATS[source].numpy))
    def check(x: Array) -> None:
        out = empty(LANES, target)
        cast_kernel[(1,)](tensor(x, source), out, LANES=LANES)
        assert_same(array(out), x.astype(FORMATS[target].numpy))

    check()


@pytest.mark.parametrize("target", ["fp16", "bf16", "fp8e5"])
def test_narrowing_a_float_is_one_rounding(target: str) -> None:
    @PROFILE
    @given(hnp.arrays(np.float32, LANES, elements=st.floats(width=32, allow_infinity=False)))
    def check(x: Array) -> None:
        out = empty(LANES, target)
        cast_kernel[(1,)](tensor(x, "fp32"), out, LANES=LANES)
        overflow = "saturate" if target == "fp8e5" else "ieee"
        assert_same(array(out), round_to(x, target, overflow=overflow))

    check()


@pytest.mark.parametrize(
    ("source", "target"), product(("fp32", "fp64"), ("int32", "int64", "uint8"))
)
def test_a_float_loses_its_fraction_on_the_way_to_an_integer(source: str, target: str) -> None:
    info = np.iinfo(FORMATS[target].numpy)
    width = FORMATS[source].bits
    top = float(np.nextafter(np.float32(info.max), np.float32(0)))

    @PROFILE
    @given(hnp.arrays(np.float64, LANES, elements=st.floats(float(info.min), top, width=width)))
    def check(x: Array) -> None:
        out = empty(LANES, target)
        cast_kernel[(1,)](tensor(x, source), out, LANES=LANES)
        assert_same(array(out), np.trunc(x).astype(FORMATS[target].numpy))

    check()
