"""Control flow: branches, loops, returns, device functions, constexpr decisions and tuples.

Inputs are chosen so that programs of one launch take different paths.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16


def numbers(*shape: int) -> Tensor:
    return torch.arange(1, 1 + math.prod(shape), dtype=torch.float32).reshape(shape)


@triton.jit
def branch_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    if pid % 3 == 0:
        y = x + 1.0
        z = pid * 10
    elif pid % 3 == 1:
        y = x * 2.0
        z = pid * 20
    else:
        y = -x
        z = 7
    tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), y + z)


def test_branches_yield_tiles_and_scalars() -> None:
    x, out = numbers(BLOCK), torch.zeros(6, BLOCK)
    branch_kernel[(6,)](x, out, BLOCK=BLOCK)
    expected = [x + 1, x * 2 + 20, -x + 7, x + 1 + 30, x * 2 + 80, -x + 7]
    torch.testing.assert_close(out, torch.stack(expected))


@triton.jit
def effects_in_branch_kernel(out_ptr, limit):
    pid = tl.program_id(0)
    if pid < limit:
        tl.store(out_ptr + pid, 1.0)
        if pid % 2 == 0:
            tl.store(out_ptr + pid, 2.0)
    else:
        if pid == limit:
            tl.store(out_ptr + pid, 3.0)


def test_stores_happen_only_in_the_branch_taken() -> None:
    out = torch.zeros(8)
    effects_in_branch_kernel[(8,)](out, 4)
    assert out.tolist() == [2, 1, 2, 1, 3, 0, 0, 0]


@triton.jit
def early_return_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid * BLOCK >= n:
        return
    at = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    if tl.sum(x, axis=0) < 0:
        tl.store(out_ptr + at, -x, mask=at < n)
        return
    if pid == 1:
        tl.store(out_ptr + at, x * 100.0, mask=at < n)
        return
    tl.store(out_ptr + at, x, mask=at < n)


def test_early_returns_leave_the_rest_undone() -> None:
    x = numbers(5 * BLOCK)
    x[2 * BLOCK : 3 * BLOCK] *= -1
    out = torch.zeros_like(x)
    n = 4 * BLOCK - 3
    early_return_kernel[(5,)](x, out, n, BLOCK=BLOCK)
    expected = x.clone()
    expected[BLOCK : 2 * BLOCK] *= 100
    expected[2 * BLOCK : 3 * BLOCK] *= -1
    expected[n:] = 0
    torch.testing.assert_close(out, expected)


@triton.jit
def collatz_kernel(start_ptr, steps_ptr):
    pid = tl.program_id(0)
    value = tl.load(start_ptr + pid)
    steps = 0
    while value != 1:
        if value % 2 == 0:  # noqa: SIM108
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(steps_ptr + pid, steps)


def test_while_loop_runs_as_often_as_each_program_needs() -> None:
    start = torch.tensor([1, 2, 3, 6, 7, 27])
    steps = torch.full_like(start, -1)
    collatz_kernel[(6,)](start, steps)
    assert steps.tolist() == [0, 1, 7, 8, 16, 111]


@triton.jit
def while_tile_kernel(x_ptr, out_ptr, limit, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    rounds = 0
    while tl.max(x, axis=0) < limit and rounds < 100:
        x = x + tl.where(x % 2 == 0, 1.0, 2.0)
        rounds += 1
    tl.store(out_ptr + at, x)
    tl.store(out_ptr + BLOCK + at, tl.full((BLOCK,), 0.0, tl.float32) + rounds)


def test_while_loop_carries_a_tile_and_a_count() -> None:
    x, out = numbers(BLOCK), torch.zeros(2, BLOCK)
    while_tile_kernel[(1,)](x, out, 60.0, BLOCK=BLOCK)
    expected, rounds = x.clone(), 0
    while expected.max() < 60:
        expected = expected + torch.where(expected % 2 == 0, 1.0, 2.0)
        rounds += 1
    torch.testing.assert_close(out[0], expected)
    assert rounds > 10
    assert out[1].eq(rounds).all()


@triton.jit
def swap_kernel(a_ptr, b_ptr, c_ptr, out_ptr, rounds, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + at)
    b = tl.load(b_ptr + at)
    c = tl.load(c_ptr + at)
    for _ in range(rounds):
        a, b, c = b, c, a + 1.0
    tl.store(out_ptr + at, a)
    tl.store(out_ptr + BLOCK + at, b)
    tl.store(out_ptr + 2 * BLOCK + at, c)


@pytest.mark.parametrize("rounds", [0, 2, 3, 7])
def test_loop_carried_tiles_trade_places(rounds: int) -> None:
    a, b, c = numbers(BLOCK), numbers(BLOCK) * 100, -numbers(BLOCK)
    out = torch.zeros(3, BLOCK)
    swap_kernel[(1,)](a, b, c, out, rounds, BLOCK=BLOCK)
    for _ in range(rounds):
        a, b, c = b, c, a + 1
    torch.testing.assert_close(out, torch.stack([a, b, c]))


@triton.jit
def swap_in_while_kernel(out_ptr, n):
    a = n * 0
    b = n * 0 + 1
    while n > 0:
        a, b = b, a + b
        n -= 1
    tl.store(out_ptr, a)
    tl.store(out_ptr + 1, b)


def test_loop_carried_scalars_trade_places() -> None:
    out = torch.zeros(2, dtype=torch.int32)
    swap_in_while_kernel[(1,)](out, 20)
    assert out.tolist() == [6765, 10946]


@triton.jit
def nested_loops_kernel(out_ptr, rows, columns, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    at = tl.arange(0, BLOCK)
    for i in range(rows):
        inner = tl.zeros((BLOCK,), dtype=tl.int32)
        for j in range(i, columns, 2):
            if j % 3 == 0:
                for k in tl.static_range(2):
                    inner += at * j + k
            else:
                inner -= i
        total = total * 2 + inner
    tl.store(out_ptr + at, total)


def test_nested_loops_with_branches() -> None:
    out = torch.zeros(BLOCK, dtype=torch.int32)
    nested_loops_kernel[(1,)](out, 5, 11, BLOCK=BLOCK)
    at = torch.arange(BLOCK, dtype=torch.int32)
    total = torch.zeros_like(at)
    for i in range(5):
        inner = torch.zeros_like(at)
        for j in range(i, 11, 2):
            inner = inner + (2 * at * j + 1 if j % 3 == 0 else -i)
        total = total * 2 + inner
    assert torch.equal(out, total.int())


@triton.jit
def range_kernel(out_ptr, first, last, step):
    count = 0
    for i in range(first, last, step):
        tl.store(out_ptr + count, i)
        count += 1  # noqa: SIM113


@pytest.mark.parametrize(
    ("first", "last", "step"), [(0, 5, 1), (3, 20, 4), (-5, 5, 3), (5, 5, 1), (7, 2, 1)]
)
def test_range_with_run_time_bounds(first: int, last: int, step: int) -> None:
    out = torch.full((16,), -99, dtype=torch.int32)
    range_kernel[(1,)](out, first, last, step)
    expected = list(range(first, last, step))
    assert out.tolist() == expected + [-99] * (16 - len(expected))


@triton.jit
def downward_kernel(out_ptr, FIRST: tl.constexpr):
    count = 0
    for i in range(FIRST, 0, -3):
        tl.store(out_ptr + count, i)
        count += 1  # noqa: SIM113


def test_range_counts_down() -> None:
    out = torch.zeros(6, dtype=torch.int32)
    downward_kernel[(1,)](out, FIRST=10)
    assert out.tolist() == [10, 7, 4, 1, 0, 0]


@triton.jit
def wide_range_kernel(out_ptr, first, last):
    total = tl.zeros((), dtype=tl.int64)
    for i in range(first, last):
        total += i
    tl.store(out_ptr, total)


def test_range_over_64_bit_bounds() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    wide_range_kernel[(1,)](out, 1 << 40, (1 << 40) + 3)
    assert out.item() == 3 * (1 << 40) + 3


@triton.jit
def static_range_kernel(out_ptr, COUNT: tl.constexpr):
    total = 1
    for i in tl.static_range(1, COUNT, 2):
        if i % 3 != 0:
            total *= i
    tl.store(out_ptr, total)


def test_static_range_is_unrolled_with_constants() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    static_range_kernel[(1,)](out, COUNT=12)
    assert out.item() == 1 * 5 * 7 * 11


@triton.jit(noinline=True)
def poly(x, a, b):
    return x * x * a + b


@triton.jit(noinline=True)
def clamp_scalar(x, limit):
    if x > limit:
        return limit
    if x < -limit:
        return -limit
    return x


@triton.jit(noinline=True)
def store_twice(ptr, value):
    tl.store(ptr, value)
    tl.store(ptr + 1, value * 2)


@triton.jit(noinline=True)
def tile_and_sum(x_ptr, scale, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK)) * scale
    return x, tl.sum(x, axis=0)


@triton.jit
def scalar_calls_kernel(out_ptr, scalars_ptr):
    pid = tl.program_id(0)
    y = poly(pid * 1.0, 2.0, pid + 0.5)
    tl.store(out_ptr + pid, poly(y, 0.5, 1.0))
    store_twice(scalars_ptr + 2 * pid, clamp_scalar(pid * 3 - 5, 4))


def test_noinline_functions_with_several_returns_and_stores() -> None:
    out, scalars = torch.zeros(5), torch.zeros(5, 2, dtype=torch.int32)
    scalar_calls_kernel[(5,)](out, scalars)
    pid = torch.arange(5)
    y = pid * pid * 2.0 + pid + 0.5
    torch.testing.assert_close(out, y * y * 0.5 + 1)
    clamped = (pid * 3 - 5).clamp(-4, 4)
    assert scalars.tolist() == [[c, 2 * c] for c in clamped.tolist()]


@triton.jit
def tile_call_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    first, total = tile_and_sum(x_ptr, 1.0 + pid, BLOCK)
    second, _ = tile_and_sum(x_ptr + BLOCK, 10.0, BLOCK)
    tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), first + second + total)


def test_noinline_function_returns_a_tile_and_a_scalar() -> None:
    x, out = numbers(2, BLOCK), torch.zeros(2, BLOCK)
    tile_call_kernel[(2,)](x, out, BLOCK=BLOCK)
    scale = torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close(out, x[0] * scale + 10 * x[1] + x[0].sum() * scale)


@triton.jit(noinline=True)
def pair_or_swap(a, b, swap):
    if swap:
        return b, a
    return a, b


@triton.jit
def early_tuple_kernel(out_ptr):
    pid = tl.program_id(0)
    first, second = pair_or_swap(pid + 10, pid + 20, pid % 2 == 1)
    tl.store(out_ptr + 2 * pid, first)
    tl.store(out_ptr + 2 * pid + 1, second)


def test_noinline_function_returns_early_with_a_tuple() -> None:
    out = torch.zeros(3, 2, dtype=torch.int32)
    early_tuple_kernel[(3,)](out)
    assert out.tolist() == [[10, 20], [21, 11], [12, 22]]


@triton.jit(noinline=True)
def own_program_id(axis_sum):
    return axis_sum + tl.program_id(0) * 10 + tl.num_programs(0)


@triton.jit
def program_in_function_kernel(out_ptr):
    tl.store(out_ptr + tl.program_id(0), own_program_id(tl.program_id(0)))


def test_noinline_function_knows_its_program() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    program_in_function_kernel[(4,)](out)
    assert out.tolist() == [4, 15, 26, 37]


@triton.jit
def constexpr_kernel(x_ptr, out_ptr, bias_ptr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    HALF: tl.constexpr = BLOCK // 2
    at = tl.arange(0, HALF)
    x = tl.load(x_ptr + at)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at)
    if MODE == "double":
        y = x * 2
    elif MODE == "square" and HALF > 4:
        y = x * x
    else:
        y = tl.full((HALF,), HALF, tl.float32) if MODE == "size" else x
    tl.store(out_ptr + at, y)


@pytest.mark.parametrize("mode", ["double", "square", "size", "plain"])
@pytest.mark.parametrize("biased", [False, True])
def test_constexpr_decisions(mode: str, biased: bool) -> None:
    x, out = numbers(BLOCK // 2), torch.zeros(BLOCK // 2)
    bias = numbers(BLOCK // 2) * 0.5 if biased else None
    constexpr_kernel[(1,)](x, out, bias, MODE=mode, BLOCK=BLOCK)
    y = x + bias if bias is not None else x
    expected = {"double": y * 2, "square": y * y, "size": y * 0 + BLOCK // 2, "plain": y}[mode]
    torch.testing.assert_close(out, expected)


@triton.jit
def arithmetic_kernel(out_ptr, n, m, NEXT: tl.constexpr):
    tl.store(out_ptr + 0, tl.cdiv(n, m))
    tl.store(out_ptr + 1, tl.minimum(n, m))
    tl.store(out_ptr + 2, tl.maximum(n, m))
    tl.store(out_ptr + 3, n // m)
    tl.store(out_ptr + 4, n % m)
    tl.store(out_ptr + 5, tl.cdiv(NEXT, 7))
    tl.store(out_ptr + 6, triton.next_power_of_2(NEXT))
    tl.store(out_ptr + 7, n if n > m else m)
    tl.store(out_ptr + 8, min(n, m, 5))
    tl.store(out_ptr + 9, max(n, m) + tl.abs(m - n))


@pytest.mark.parametrize(("n", "m"), [(100, 7), (6, 64)])
def test_scalar_arithmetic(n: int, m: int) -> None:
    out = torch.full((10,), -1, dtype=torch.int32)
    arithmetic_kernel[(1,)](out, n, m, NEXT=33)
    expected = [-(-n // m), min(n, m), max(n, m), n // m, n % m, 5, 64, max(n, m)]
    assert out.tolist() == [*expected, min(n, m, 5), max(n, m) + abs(m - n)]


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@triton.jit
def tuple_kernel(inputs, sizes, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(len(inputs)):
        total += tl.load(inputs[i] + at, mask=at < sizes[i], other=0.0)
    tl.store(out_ptr + at, total)


def test_tuple_of_tensors_and_of_numbers_as_arguments() -> None:
    inputs = tuple(numbers(BLOCK) * 10**i for i in range(3))
    out = torch.zeros(BLOCK)
    tuple_kernel[(1,)](inputs, (BLOCK, 3, 1), out, BLOCK=BLOCK)
    expected = inputs[0].clone()
    expected[:3] += inputs[1][:3]
    expected[:1] += inputs[2][:1]
    torch.testing.assert_close(out, expected)


@triton.jit
def named_tuple_kernel(pair, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(pair.first + at) - tl.load(pair.second + at))


def test_named_tuple_as_argument() -> None:
    pair = Pair(numbers(BLOCK), numbers(BLOCK) * 3)
    out = torch.zeros(BLOCK)
    named_tuple_kernel[(1,)](pair, out, BLOCK=BLOCK)
    torch.testing.assert_close(out, pair.first - pair.second)


@triton.jit
def nested_tuple_kernel(nested, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inner, y_ptr = nested
    x_ptr, affine = inner
    scale, shift = affine
    tl.store(out_ptr + at, tl.load(x_ptr + at) * scale + shift + tl.load(y_ptr + at))


def test_nested_tuple_as_argument() -> None:
    x, y, out = numbers(BLOCK), numbers(BLOCK) * 100, torch.zeros(BLOCK)
    nested_tuple_kernel[(1,)](((x, (2.5, 1)), y), out, BLOCK=BLOCK)
    torch.testing.assert_close(out, x * 2.5 + 1 + y)


@triton.jit
def divmod_of(a, b):
    return a // b, a % b


@triton.jit
def function_argument_kernel(out_ptr, a, b, FN: tl.constexpr):
    first, second = FN(a, b)
    tl.store(out_ptr, first)
    tl.store(out_ptr + 1, second)


def test_device_function_as_constexpr_argument() -> None:
    out = torch.zeros(2, dtype=torch.int32)
    function_argument_kernel[(1,)](out, 47, 9, FN=divmod_of)
    assert out.tolist() == [5, 2]


@triton.jit
def branch_on_loaded_kernel(flags_ptr, a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    flag = tl.load(flags_ptr + pid)
    source = a_ptr if flag else b_ptr
    result = tl.load(source + at)
    tl.store(out_ptr + pid * BLOCK + at, result)


def test_pointer_chosen_at_run_time() -> None:
    flags = torch.tensor([True, False, False, True])
    a, b, out = numbers(BLOCK), -numbers(BLOCK), torch.zeros(4, BLOCK)
    branch_on_loaded_kernel[(4,)](flags, a, b, out, BLOCK=BLOCK)
    torch.testing.assert_close(out, torch.stack([a, b, b, a]))


@triton.jit
def moving_pointer_kernel(x_ptr, out_ptr, rounds, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile_ptr = x_ptr + at
    head_ptr = x_ptr
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    heads = 0.0
    for _ in range(rounds):
        total += tl.load(tile_ptr)
        heads += tl.load(head_ptr)
        tile_ptr += BLOCK
        head_ptr += BLOCK
    tl.store(out_ptr + at, total + heads)


def test_pointers_move_through_a_loop() -> None:
    x, out = numbers(4, BLOCK), torch.zeros(BLOCK)
    moving_pointer_kernel[(1,)](x, out, 4, BLOCK=BLOCK)
    torch.testing.assert_close(out, x.sum(0) + x[:, 0].sum())
