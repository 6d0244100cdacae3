"""tl.map_elementwise: scalar functions with branches of their own, mapped over blocks."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl

from tests.cpu.cases import NUMBERS, array, assert_same, assert_ulps, covered, edges, empty, tensor


@triton.jit
def three_way(x, y):
    """Returns from inside branches: the region has several blocks."""
    if x < y:
        return -1
    elif x == y:
        return 0
    else:
        return 1


@triton.jit
def ordering_kernel(x_ptr, y_ptr, z_ptr, A: tl.constexpr, B: tl.constexpr):
    row = tl.arange(0, A)
    column = tl.arange(0, B)
    x = tl.load(x_ptr + row)[:, None]
    y = tl.load(y_ptr + column)[None, :]
    tl.store(z_ptr + row[:, None] * B + column[None, :], tl.map_elementwise(three_way, x, y))


@pytest.mark.parametrize("dtype", [covered("tl.map_elementwise", d, args=(d,)) for d in NUMBERS])
def test_a_branching_function_over_broadcast_blocks(dtype: str) -> None:
    x, y = edges(dtype, 32, 81), edges(dtype, 64, 82)
    y[::2] = x
    z = empty((32, 64), "int32")
    ordering_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), z, A=32, B=64)
    less, same = x[:, None] < y, x[:, None] == y
    assert_same(array(z), np.where(less, -1, np.where(same, 0, 1)))


@triton.jit
def quotient_and_rest(x, y):
    return x // y, x % y


@triton.jit
def pair_kernel(x_ptr, y_ptr, q_ptr, r_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    q, r = tl.map_elementwise(quotient_and_rest, tl.load(x_ptr + at), tl.load(y_ptr + at))
    tl.store(q_ptr + at, q)
    tl.store(r_ptr + at, r)


@pytest.mark.parametrize("dtype", [covered("tl.map_elementwise (tuple)", "int32", args=("int32",))])
def test_a_function_of_two_results(dtype: str) -> None:
    rng = np.random.default_rng(83)
    x, y = rng.integers(0, 10000, 64), rng.integers(1, 50, 64)
    q, r = empty(64, dtype), empty(64, dtype)
    pair_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), q, r, N=64)
    assert_same(array(q), x // y)
    assert_same(array(r), x % y)


@triton.jit
def swap_pair(a0, a1, b0, b1):
    """Adds two elements of a, swapped, to two of b."""
    return a1 + b0, a0 + b1


@triton.jit
def pack_kernel(x_ptr, y_ptr, z_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(z_ptr + at, tl.map_elementwise(swap_pair, x, y, pack=2)[0])


@pytest.mark.parametrize("dtype", [covered("tl.map_elementwise (pack)", "int32", args=("int32",))])
def test_packed_elements_are_neighbours(dtype: str) -> None:
    x, y = np.arange(64), np.arange(64) * 100
    z = empty(64, dtype)
    pack_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), z, N=64)
    assert_same(array(z), (x ^ 1) + y)


@triton.jit
def selu(x, alpha):
    if x > 0:
        return x
    else:
        return alpha * (tl.exp(x) - 1)


@triton.jit
def selu_kernel(x_ptr, y_ptr, alpha, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.map_elementwise(selu, tl.load(x_ptr + at), alpha))


def test_a_branch_calls_math_and_takes_a_scalar() -> None:
    x = np.linspace(-4, 4, 128).astype(np.float32).astype(np.float64)
    y = empty(128, "fp32")
    selu_kernel[(1,)](tensor(x, "fp32"), y, 1.5, N=128)
    got, want = array(y), np.where(x > 0, x, 1.5 * np.expm1(x))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-7)
    assert_ulps(got[x > 0], want[x > 0], "fp32", 0)


@triton.jit
def halvings(x):
    """A loop in the mapped function, with a different length in each lane."""
    count = 0
    while x > 1:
        x = x // 2
        count += 1
    return count


@triton.jit
def loop_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y_ptr + at, tl.map_elementwise(halvings, tl.load(x_ptr + at)))


def test_a_loop_runs_as_long_as_each_lane_needs() -> None:
    x = np.arange(1, 65) ** 2
    y = empty(64, "int32")
    loop_kernel[(1,)](tensor(x, "int32"), y, N=64)
    assert_same(array(y), np.log2(x).astype(int))
