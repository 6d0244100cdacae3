"""Hints, cache modifiers and index helpers may change the speed, never the result."""

from __future__ import annotations

import numpy as np
import pytest
import triton
import triton.language as tl

from tests.cpu.cases import array, assert_same, covered, empty, tensor


@triton.jit
def hinted_kernel(x_ptr, y_ptr, n, N: tl.constexpr):
    tl.static_assert(N >= 16)
    tl.assume(n > 0)
    at = tl.max_contiguous(tl.multiple_of(tl.arange(0, N), 16), N)
    row = tl.max_constancy(at // 16, 16)
    x = tl.load(
        x_ptr + at, mask=at < n, other=0, cache_modifier=".cg", eviction_policy="evict_first",
        volatile=True,
    )  # fmt: skip
    tl.debug_barrier()
    tl.store(y_ptr + at, x + row, mask=at < n, cache_modifier=".wt", eviction_policy="evict_last")


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            "hints",
            marks=[
                pytest.mark.covers(f"tl.{op}", "int32")
                for op in ("multiple_of", "max_contiguous", "max_constancy")
            ],
        )
    ],
)
def test_hints_change_no_value(op: str) -> None:
    x, y = np.arange(64) * 3, empty(64, "int32")
    hinted_kernel[(1,)](tensor(x, "int32"), y, 50, N=64)
    assert_same(array(y), np.where(np.arange(64) < 50, x + np.arange(64) // 16, 85))


@triton.jit
def false_hint_kernel(x_ptr, y_ptr, stride, N: tl.constexpr):
    at = tl.multiple_of(tl.arange(0, N) * stride, 4)
    tl.store(y_ptr + tl.arange(0, N), tl.load(x_ptr + at))


def test_a_hint_that_is_true_only_for_some_strides_changes_no_value() -> None:
    x, y = np.arange(256), empty(32, "int32")
    for stride in (4, 8):
        false_hint_kernel[(1,)](tensor(x, "int32"), y, stride, N=32)
        assert_same(array(y), np.arange(32) * stride)


@triton.jit
def swizzle_kernel(i_ptr, j_ptr, rows, columns, group, N: tl.constexpr):
    at = tl.arange(0, N)
    i, j = tl.swizzle2d(at // columns, at % columns, rows, columns, group)
    tl.store(i_ptr + at, i)
    tl.store(j_ptr + at, j)


def swizzled(rows: int, columns: int, group: int) -> list[tuple[int, int]]:
    """Groups of rows, each walked column by column."""
    found = []
    for first in range(0, rows, group):
        height = min(group, rows - first)
        found += [(first + i, j) for j in range(columns) for i in range(height)]
    return found


@pytest.mark.parametrize("op", [covered("tl.swizzle2d", "int32", args=("swizzle",))])
def test_swizzle_walks_groups_of_rows(op: str) -> None:
    for rows, columns, group in ((4, 4, 2), (8, 4, 3), (4, 8, 8), (16, 2, 5)):
        i, j = empty(32, "int32"), empty(32, "int32")
        swizzle_kernel[(1,)](i, j, rows, columns, group, N=32)
        count = rows * columns
        got = list(zip(array(i)[:count].tolist(), array(j)[:count].tolist(), strict=True))
        assert got[: min(count, 32)] == swizzled(rows, columns, group)[:32]


@triton.jit
def arange_kernel(y_ptr, START: tl.constexpr, END: tl.constexpr):
    span: tl.constexpr = END - START
    tl.store(y_ptr + tl.arange(0, span), tl.arange(START, END))


@pytest.mark.parametrize("op", [covered("tl.arange", "int32", args=("arange",))])
def test_arange_starts_anywhere(op: str) -> None:
    for start, end in ((0, 1), (5, 21), (1000, 1064)):
        y = empty(end - start, "int32")
        arange_kernel[(1,)](y, START=start, END=end)
        assert_same(array(y), np.arange(start, end))
