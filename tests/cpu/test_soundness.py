"""Reordering, fusing, merging and vectorising do not change results.

Each test is a kernel that one such optimisation would break if its condition were not checked:
delayed loads, stores fused with loads that they overlap, masks turned into loop bounds, reused
operands and offsets, loops that carry a value. Values are small whole numbers where possible, so
that results are compared exactly.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tzero import settings

BLOCK = 64


def whole(*shape: int) -> torch.Tensor:
    """Whole numbers of both signs, with sums exact in fp32 and products exact in fp16."""
    torch.manual_seed(sum(shape))
    return torch.randint(-9, 10, shape).float()


# -- loads keep their place -----------------------------------------------------------------------


@triton.jit
def softmax_then_clear_kernel(x_ptr, out_ptr, rounds, WRITE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    power = tl.exp(tl.load(x_ptr + at))
    if WRITE == "store":
        tl.store(x_ptr + at, at * 0.0)
    elif WRITE == "atomic":
        tl.atomic_add(x_ptr + at, 3.0)
    else:
        for i in range(rounds):
            tl.store(x_ptr + at, at * 0.0 + i)
    tl.store(out_ptr + at, power / tl.sum(power, axis=0))


@pytest.mark.parametrize("write", ["store", "atomic", "loop"])
def test_a_load_is_not_moved_past_a_write(write: str) -> None:
    x, out = whole(BLOCK), torch.zeros(BLOCK)
    expected = x.softmax(0)
    softmax_then_clear_kernel[(1,)](x, out, 3, WRITE=write, BLOCK=BLOCK)
    torch.testing.assert_close(out, expected)


@triton.jit
def reduce_then_clear_kernel(x_ptr, out_ptr, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)
    at = rows[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + at)
    reduced = tl.sum(x, axis=1) if OP == "sum" else tl.max(x, axis=1)
    tl.store(x_ptr + at, tl.full((R, C), 50.0, tl.float32))
    tl.store(out_ptr + rows, reduced)


@pytest.mark.parametrize("columns", [2, 4, 8])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_a_reduction_along_a_short_axis_is_not_moved_past_a_store(op: str, columns: int) -> None:
    x, out = whole(16, columns), torch.zeros(16)
    expected = x.sum(1) if op == "sum" else x.amax(1)
    reduce_then_clear_kernel[(1,)](x, out, OP=op, R=16, C=columns)
    assert torch.equal(out, expected)


# -- stores over what they were computed from -----------------------------------------------------

FROM = 256  # where the tile of the in-place moves is loaded


@triton.jit(do_not_specialize=["to", "n"])
def move_kernel(
    x_ptr, to, n, STRIDE: tl.constexpr, MASKED: tl.constexpr, FROM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    if MASKED:
        tl.store(x_ptr + to + STRIDE * at, tl.load(x_ptr + FROM + at, mask=at < n), mask=at < n)
    else:
        tl.store(x_ptr + to + STRIDE * at, tl.load(x_ptr + FROM + at))


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("stride", [1, 2, 3, -1, -2])
def test_a_moved_tile_is_loaded_whole_before_it_is_stored(stride: int, masked: bool) -> None:
    for to in (FROM, 255, 257, 248, 264, 319, 320, 192, 193, 160, 352, 383, 200):
        for n in (BLOCK, 37, 1, 0) if masked else (BLOCK,):
            x = torch.arange(1024).float()
            expected = x.clone()
            expected[to + stride * torch.arange(n)] = x[FROM : FROM + n]
            move_kernel[(1,)](x, to, n, STRIDE=stride, MASKED=masked, FROM=FROM, BLOCK=BLOCK)
            assert torch.equal(x, expected), (to, n)


@triton.jit
def scatter_kernel(x_ptr, index_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + tl.load(index_ptr + at), tl.load(x_ptr + at) + 1)


@pytest.mark.parametrize("first", [0, 5, BLOCK, 150])
def test_a_scattered_tile_is_loaded_whole_before_it_is_stored(first: int) -> None:
    """The address of the first lane says nothing about the others."""
    torch.manual_seed(first)
    index = torch.cat([torch.tensor([first]), 1 + torch.randperm(BLOCK - 1)]).int()
    index[1:][index[1:] == first] = BLOCK + 1
    x = torch.arange(200).float()
    expected = x.clone()
    expected[index.long()] = x[:BLOCK] + 1
    scatter_kernel[(1,)](x, index, BLOCK=BLOCK)
    assert torch.equal(x, expected)


@triton.jit(do_not_specialize=["by"])
def mark_after_positive_kernel(x_ptr, by, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + 16 + by + at, -1.0, mask=tl.load(x_ptr + 16 + at) > 0)


@pytest.mark.parametrize("by", [-1, 0, 1, 2, 16, BLOCK - 1])
def test_a_mask_is_loaded_whole_before_its_store(by: int) -> None:
    x = whole(BLOCK + 96)
    expected = x.clone()
    expected[16 + by : 16 + by + BLOCK][x[16 : 16 + BLOCK] > 0] = -1
    mark_after_positive_kernel[(1,)](x, by, BLOCK=BLOCK)
    assert torch.equal(x, expected)


@triton.jit
def store_at_loaded_index_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.load(x_ptr + tl.arange(0, BLOCK)), BLOCK + 1)


@triton.jit
def store_at_loaded_pointer_kernel(x_ptr, BLOCK: tl.constexpr):
    places = tl.load(x_ptr + tl.arange(0, BLOCK)).to(tl.pointer_type(tl.int64))
    tl.store(places, (x_ptr + BLOCK + 1).to(tl.int64))


@pytest.mark.parametrize("kind", ["index", "pointer"])
def test_store_addresses_are_loaded_whole_before_the_store(kind: str) -> None:
    """Each element is the index of the next one; all but the first become the last index."""
    x = torch.arange(1, BLOCK + 3)
    if kind == "index":
        store_at_loaded_index_kernel[(1,)](x, BLOCK=BLOCK)
    else:
        x.mul_(8).add_(x.data_ptr())
        store_at_loaded_pointer_kernel[(1,)](x, BLOCK=BLOCK)
        x.sub_(x.data_ptr()).div_(8, rounding_mode="floor")
    assert x.tolist() == [1] + [BLOCK + 1] * BLOCK + [BLOCK + 2]


@triton.jit
def pointers_by_lane_kernel(a_ptr, b_ptr, by, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    chosen = tl.where(at < BLOCK // 2, b_ptr, a_ptr) + at
    if SIDE == "load":
        tl.store(a_ptr + by + at, tl.load(chosen))
    else:
        tl.store(chosen + by, tl.load(a_ptr + at))


@pytest.mark.parametrize("by", [1, 8, 32])
@pytest.mark.parametrize("side", ["load", "store"])
def test_base_pointers_that_differ_by_lane(side: str, by: int) -> None:
    a, b, half = torch.arange(256.0), torch.arange(256.0) + 1000, BLOCK // 2
    expected_a, expected_b = a.clone(), b.clone()
    if side == "load":
        expected_a[by : by + BLOCK] = torch.cat([b[:half], a[half:BLOCK]])
    else:
        expected_b[by : by + half] = a[:half]
        expected_a[by + half : by + BLOCK] = a[half:BLOCK]
    pointers_by_lane_kernel[(1,)](a, b, by, SIDE=side, BLOCK=BLOCK)
    assert torch.equal(a, expected_a)
    assert torch.equal(b, expected_b)


# -- masks ----------------------------------------------------------------------------------------


@triton.jit
def transposed_mask_kernel(out_ptr, n, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    mask = (rows >= columns) & (columns < n)
    tl.store(out_ptr + rows * N + columns, tl.where(tl.trans(mask), 1.0, 2.0), mask=mask)


def test_a_mask_is_not_confused_with_its_transpose() -> None:
    out = torch.zeros(16, 16)
    transposed_mask_kernel[(1,)](out, 12, N=16)
    mask = torch.ones(16, 16).tril().bool() & (torch.arange(16) < 12)
    assert torch.equal(out, mask * torch.where(mask.T, 1.0, 2.0))


@triton.jit
def flipped_mask_kernel(out_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    mask = at < n
    tl.store(out_ptr + at, tl.where(tl.flip(mask.to(tl.int32), 0) != 0, 1.0, 2.0), mask=mask)


def test_a_mask_is_not_confused_with_its_mirror_image() -> None:
    out = torch.zeros(16)
    flipped_mask_kernel[(1,)](out, 12, N=16)
    assert out.tolist() == [2.0] * 4 + [1.0] * 8 + [0.0] * 4


# Each is a kernel's mask and, called with torch tensors, its own reference.
@triton.jit
def up_to(i, low, high):
    return i <= high


@triton.jit
def above(i, low, high):
    return i > low


@triton.jit
def from_on(i, low, high):
    return i >= low


@triton.jit
def between(i, low, high):
    return (i >= low) & (i < high)


@triton.jit
def between_turned(i, low, high):
    return (high > i) & (low <= i)


@triton.jit
def below_both(i, low, high):
    return (i < high) & (i < low)


@triton.jit
def below_either(i, low, high):
    return (i < high) | (i < low)


@triton.jit
def not_below(i, low, high):
    return ~(i < high)


@triton.jit
def falling(i, low, high):
    return (high - i) > low


@triton.jit
def doubled(i, low, high):
    return 2 * i < high


CONDITIONS = (
    up_to, above, from_on, between, between_turned, below_both, below_either, not_below, falling,
    doubled,
)  # fmt: skip
LIMITS = (
    (0, 0), (0, 1), (1, 0), (-3, 256), (5, 255), (7, 3), (256, 257), (63, 65), (2, 64), (15, 16),
    (-5, -2), (3, 300), (0, 2**31 - 1), (-(2**31), 2**31 - 1),
)  # fmt: skip


@triton.jit(do_not_specialize=["low", "high"])
def masked_kernel(x_ptr, out_ptr, low, high, CONDITION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = CONDITION(at, low, high)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask, other=-20.0))
    tl.store(out_ptr + BLOCK + at, tl.load(x_ptr + at, mask=mask) + 1, mask=mask)
    tl.store(out_ptr + 2 * BLOCK, tl.sum(tl.load(x_ptr + at, mask=mask, other=-20.0), axis=0))
    tl.store(out_ptr + 2 * BLOCK + 1, tl.max(tl.load(x_ptr + at, mask=mask, other=5.0), axis=0))
    tl.store(out_ptr + 2 * BLOCK + 2, tl.sum(tl.load(x_ptr + at, mask=mask, other=0.0), axis=0))


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.fn.__name__)
def test_a_mask_holds_where_its_condition_holds(condition: Any) -> None:
    block = 256
    x, at = whole(block), torch.arange(block, dtype=torch.int32)
    for low, high in LIMITS:
        out = torch.zeros(2 * block + 3)
        masked_kernel[(1,)](x, out, low, high, CONDITION=condition, BLOCK=block)
        mask = condition.fn(at, low, high)
        filled = torch.where(mask, x, -20.0)
        ends = [filled.sum(), torch.where(mask, x, 5.0).max(), x[mask].sum()]
        expected = torch.cat([filled, mask * (x + 1), torch.stack(ends)])
        assert torch.equal(out, expected), (low, high)


@triton.jit
def index_in_mask_kernel(x_ptr, out_ptr, n, R: tl.constexpr, C: tl.constexpr):
    columns = tl.arange(0, C)[None, :]
    at = tl.arange(0, R)[:, None] * C + columns
    x = tl.load(x_ptr + at)
    first = tl.argmax(x, axis=0)[None, :] == 0
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=(columns >= n) & first, other=77.0))


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_bound_and_the_index_of_a_maximum_in_one_mask(rows: int) -> None:
    """Along an axis of extent one the index is a constant, and its operand is still a tile."""
    x, out = whole(rows, 16), torch.zeros(rows, 16)
    index_in_mask_kernel[(1,)](x, out, 3, R=rows, C=16)
    mask = (torch.arange(16) >= 3) & (x.amax(0) == x[0])
    assert torch.equal(out, torch.where(mask, x, 77.0))


# -- operands, pointers and offsets from one place to another -------------------------------------


@triton.jit(noinline=True)
def repeated_product(a_ptr, b_ptr, out_ptr, rounds, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, total = tl.load(a_ptr + at), tl.zeros((N, N), tl.float32)
    for _ in range(rounds):
        total = tl.dot(a, tl.load(b_ptr + at), total)
    tl.store(out_ptr + at, total)


@triton.jit
def two_calls_kernel(a_ptr, b_ptr, c_ptr, out_ptr, rounds, N: tl.constexpr):
    repeated_product(a_ptr, c_ptr, out_ptr, rounds, N)
    repeated_product(b_ptr, c_ptr, out_ptr + N * N, rounds, N)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_function_called_twice_multiplies_its_own_operands(dtype: torch.dtype) -> None:
    a, b, c = whole(3, 16, 16).to(dtype)
    out = torch.zeros(2, 16, 16)
    two_calls_kernel[(1,)](a, b, c, out, 2, N=16)
    assert torch.equal(out, 2 * torch.stack([a, b]).float() @ c.float())


@triton.jit(do_not_specialize=["flag"])
def product_in_branch_kernel(a_ptr, b_ptr, out_ptr, flag, rounds, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, total = tl.load(a_ptr + at), tl.zeros((N, N), tl.float32)
    if flag > 0:
        for _ in range(rounds):
            total = tl.dot(a, tl.load(b_ptr + at), total)
    for _ in range(rounds):
        total = tl.dot(a, tl.load(b_ptr + at), total)
    tl.store(out_ptr + at, total)


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_an_operand_staged_in_a_branch_is_not_reused_after_it(
    dtype: torch.dtype, flag: int
) -> None:
    (a, b), out = whole(2, 16, 16).to(dtype), torch.zeros(16, 16)
    product_in_branch_kernel[(1,)](a, b, out, flag, 2, N=16)
    assert torch.equal(out, (2 + 2 * flag) * (a.float() @ b.float()))


@triton.jit
def growing_step_kernel(x_ptr, out_ptr, rounds, step, MOVED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = x_ptr + at if MOVED == "pointer" else at
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(rounds):
        total += tl.load(place if MOVED == "pointer" else x_ptr + place)
        place += step
        step *= 2
    tl.store(out_ptr + at, total)


@pytest.mark.parametrize("moved", ["pointer", "offset"])
def test_a_step_that_grows_is_added_before_it_grows(moved: str) -> None:
    x, out = whole(1024), torch.zeros(16)
    growing_step_kernel[(1,)](x, out, 4, 16, MOVED=moved, BLOCK=16)
    assert torch.equal(out, sum(x[start : start + 16] for start in (0, 16, 48, 112)))


# -- loops that carry a value ---------------------------------------------------------------------


@triton.jit
def column_kernel(x_ptr, out_ptr, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Along axis 0 of an Nx1 tile where M is zero, along axis 1 of an MxNx1 tile otherwise."""
    AXIS: tl.constexpr = 0 if M == 0 else 1
    at = tl.arange(0, N)[:, None]
    if M > 0:
        at = tl.arange(0, M)[:, None, None] * N + at[None, :, :]
    x = tl.load(x_ptr + at)
    if OP == "cumsum":
        tl.store(out_ptr + at, tl.cumsum(x, AXIS))
    else:
        reduced = (
            tl.sum(x, AXIS, keep_dims=True) if OP == "sum" else tl.max(x, AXIS, keep_dims=True)
        )
        tl.store(out_ptr + at, tl.broadcast_to(reduced, at.shape))


@pytest.mark.parametrize("shape", [(0, 8), (0, 256), (4, 16), (2, 64)], ids=str)
@pytest.mark.parametrize("op", ["sum", "max", "cumsum"])
def test_reducing_a_column_of_extent_one_reads_every_row(op: str, shape: tuple[int, int]) -> None:
    blocks, rows = shape
    x = whole(max(blocks, 1), rows)
    out = torch.zeros_like(x)
    column_kernel[(1,)](x, out, OP=op, M=blocks, N=rows)
    expected = {"sum": x.sum(1, True), "max": x.amax(1, True), "cumsum": x.cumsum(1)}[op]
    assert torch.equal(out, expected.expand_as(out))


def scan_columns(x_ptr, out_ptr, REVERSE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at), 0, reverse=REVERSE))


def compiler_named(name: str) -> tuple[str, ...] | None:
    """The command of clang or zig, if it is installed."""
    if name == "zig":
        here = importlib.util.find_spec("ziglang") is not None
        return (sys.executable, "-m", "ziglang", "cc") if here else None
    return (name,) if shutil.which(name) else None


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("columns", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("compiler", ["default", "clang", "zig"])
def test_scans_of_narrow_tiles_carry_from_row_to_row(
    compiler: str, columns: int, reverse: bool
) -> None:
    command = settings.current().cc if compiler == "default" else compiler_named(compiler)
    if command is None and compiler != "default":
        pytest.skip(f"{compiler} is not installed")
    x, out = whole(64, columns), torch.zeros(64, columns)
    scan: Callable[..., Any] = triton.jit(scan_columns)  # a new function, not compiled yet
    with settings.override(cc=command):
        scan[(1,)](x, out, REVERSE=reverse, R=64, C=columns)
    assert torch.equal(out, x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0))


# -- code that grows ------------------------------------------------------------------------------


@triton.jit
def squares_kernel(x_ptr, out_ptr, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at)
    for _ in tl.static_range(TURNS):
        y = y * y * 0.5 + 0.25
    tl.store(out_ptr + at, y)


@pytest.mark.parametrize("turns", [40, 300])
def test_long_chains_of_operations_compile(turns: int) -> None:
    x, out = torch.rand(32, dtype=torch.float64), torch.empty(32, dtype=torch.float64)
    squares_kernel[(1,)](x, out, TURNS=turns, BLOCK=32)
    wanted = x.clone()
    for _ in range(turns):
        wanted = wanted * wanted * 0.5 + 0.25
    torch.testing.assert_close(out, wanted)


@triton.jit
def steps_kernel(x_ptr, out_ptr, step, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    pointers = x_ptr + at
    places = at
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(TURNS):
        total += tl.load(pointers) + tl.load(x_ptr + places)
        pointers += step
        places += step
    tl.store(out_ptr + at, total)


@pytest.mark.parametrize("turns", [10, 150])
def test_long_chains_of_pointer_and_offset_steps_compile(turns: int) -> None:
    x, out = torch.rand(16 + 2 * turns), torch.empty(16)
    steps_kernel[(1,)](x, out, 2, TURNS=turns, BLOCK=16)
    rows = torch.stack([x[2 * k : 2 * k + 16] for k in range(turns)])
    torch.testing.assert_close(out, 2 * rows.sum(0))


@triton.jit
def narrow_places_kernel(place_ptr, x_ptr, out_ptr, MIDDLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = tl.load(place_ptr + at)
    tl.store(out_ptr + at, tl.load(x_ptr + MIDDLE + (place + place)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_narrow_integers_wrap_also_in_addresses(dtype: torch.dtype) -> None:
    limit = torch.iinfo(dtype).max
    places = torch.tensor([limit, limit // 2 + 6, -limit - 1, 3], dtype=dtype)
    x, out = torch.arange(2.0 * limit + 4), torch.empty(4)
    narrow_places_kernel[(1,)](places, x, out, MIDDLE=limit + 1, BLOCK=4)
    assert torch.equal(out, x[(places + places).long() + limit + 1])
