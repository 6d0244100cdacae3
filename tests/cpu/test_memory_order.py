"""Program order: loads see the stores before them and none after, also through aliases."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def store_then_load_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    first = tl.load(x_ptr + at)
    tl.store(x_ptr + at, first + 1)
    second = tl.load(x_ptr + BLOCK - 1 - at)
    tl.store(x_ptr + at, second * 2)
    third = tl.load(x_ptr + at)
    tl.store(out_ptr + at, first)
    tl.store(out_ptr + BLOCK + at, second)
    tl.store(out_ptr + 2 * BLOCK + at, third)


def test_loads_see_stores_before_them_and_none_after() -> None:
    x = torch.arange(BLOCK, dtype=torch.float32)
    out = torch.zeros(3, BLOCK)
    original = x.clone()
    store_then_load_kernel[(1,)](x, out, BLOCK=BLOCK)
    second = (original + 1).flip(0)
    assert torch.equal(out, torch.stack([original, second, second * 2]))


@triton.jit
def shift_in_place_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at + 1, x)


def test_whole_tile_is_loaded_before_any_of_it_is_stored() -> None:
    x = torch.arange(BLOCK + 1, dtype=torch.float32)
    shift_in_place_kernel[(1,)](x, BLOCK=BLOCK)
    assert x.tolist() == [0, *range(BLOCK)]


@triton.jit
def reverse_in_place_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(x_ptr + BLOCK - 1 - at, x + y)
    tl.store(y_ptr + at, x - y)


def test_two_arguments_that_are_one_tensor() -> None:
    x = torch.arange(BLOCK, dtype=torch.float32)
    reverse_in_place_kernel[(1,)](x, x, BLOCK=BLOCK)
    assert torch.equal(x, torch.zeros(BLOCK))

    x = torch.arange(2 * BLOCK, dtype=torch.float32)
    a, b = x[:BLOCK].clone(), x[4 : BLOCK + 4].clone()
    expected = x.clone()
    expected[:BLOCK] = (a + b).flip(0)
    expected[4 : BLOCK + 4] = a - b
    reverse_in_place_kernel[(1,)](x, x[4:], BLOCK=BLOCK)
    assert torch.equal(x, expected)


@triton.jit
def load_across_branch_kernel(x_ptr, out_ptr, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    before = tl.load(x_ptr + at)
    if flag > 0:
        tl.store(x_ptr + at, before * 10)
    after = tl.load(x_ptr + at)
    tl.store(out_ptr + at, before + after)


@pytest.mark.parametrize("flag", [-5, 5])
def test_stores_inside_branches_are_seen_after_them(flag: int) -> None:
    x, out = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK)
    original = x.clone()
    load_across_branch_kernel[(1,)](x, out, flag, BLOCK=BLOCK)
    assert torch.equal(out, original * (11 if flag > 0 else 2))


@triton.jit
def running_sum_kernel(x_ptr, rounds, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for i in range(rounds):
        previous = tl.load(x_ptr + i * BLOCK + at)
        current = tl.load(x_ptr + (i + 1) * BLOCK + at)
        tl.store(x_ptr + (i + 1) * BLOCK + at, previous + current)


def test_loop_loads_what_the_round_before_stored() -> None:
    x = torch.randn(6, BLOCK, dtype=torch.float64)
    expected = x.cumsum(0)
    running_sum_kernel[(1,)](x, 5, BLOCK=BLOCK)
    torch.testing.assert_close(x, expected)


@triton.jit(noinline=True)
def negate_in_place(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, -tl.load(x_ptr + at))


@triton.jit
def used_late_kernel(x_ptr, out_ptr, rounds, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Loads, then changes the memory in one of several ways, then uses what was loaded."""
    at = tl.arange(0, BLOCK)
    tile = tl.load(x_ptr + at)
    head = tl.load(x_ptr + 1)
    if KIND == "loop":
        for i in range(rounds):
            tl.store(x_ptr + at, at * 0.0 - i)
    elif KIND == "while":
        while rounds > 0:
            tl.store(x_ptr + at, at * 0.0 - rounds)
            rounds -= 1
    elif KIND == "branch":
        if rounds > 1:
            tl.store(x_ptr + at, at * 0.0)
    elif KIND == "atomic":
        tl.atomic_add(x_ptr + at, 100.0)
    elif KIND == "exchange":
        tl.atomic_xchg(x_ptr + 1, 100.0)
    elif KIND == "call":
        negate_in_place(x_ptr, BLOCK)
    else:
        same = tl.make_tensor_descriptor(x_ptr, [BLOCK], [1], [BLOCK])
        same.store([0], tl.full((BLOCK,), -1.0, tl.float32))
    tl.store(out_ptr + at, tl.where(at % 2 == 0, tile, head))
    tl.store(out_ptr + BLOCK, tl.sum(tile, axis=0))


@pytest.mark.parametrize(
    "kind", ["loop", "while", "branch", "atomic", "exchange", "call", "descriptor"]
)
def test_loaded_values_do_not_change_with_memory(kind: str) -> None:
    x, out = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK + 1)
    before = x.clone()
    used_late_kernel[(1,)](x, out, 3, KIND=kind, BLOCK=BLOCK)
    assert not torch.equal(x, before)
    expected = torch.where(torch.arange(BLOCK) % 2 == 0, before, before[1])
    assert torch.equal(out, torch.cat([expected, before.sum()[None]]))


@triton.jit
def carried_load_kernel(x_ptr, out_ptr, rounds, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    previous = tl.load(x_ptr + at)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(rounds):
        current = tl.load(x_ptr + at)
        tl.store(x_ptr + at, current * 2 + previous)
        total += previous * (i + 1)
        previous = current
    tl.store(out_ptr + at, total)


def test_loads_carried_to_the_next_round_keep_their_values() -> None:
    x, out = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK)
    value, previous, total = x.clone(), x.clone(), torch.zeros(BLOCK)
    carried_load_kernel[(1,)](x, out, 4, BLOCK=BLOCK)
    for i in range(4):
        value, previous, total = value * 2 + previous, value, total + previous * (i + 1)
    assert torch.equal(out, total)
    assert torch.equal(x, value)


@triton.jit
def transpose_in_place_kernel(x_ptr, N: tl.constexpr):
    rows = tl.arange(0, N)[:, None]
    columns = tl.arange(0, N)[None, :]
    tl.store(x_ptr + rows * N + columns, tl.trans(tl.load(x_ptr + rows * N + columns)))
    tl.store(x_ptr + columns * N + rows, tl.load(x_ptr + rows * N + columns) + 1)


def test_transposition_in_place() -> None:
    x = torch.arange(16 * 16, dtype=torch.float32).reshape(16, 16)
    expected = x + 1
    transpose_in_place_kernel[(1,)](x, N=16)
    assert torch.equal(x, expected)


@triton.jit
def branch_results_kernel(x_ptr, out_ptr, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if flag > 0:  # noqa: SIM108
        tile = tl.load(x_ptr + at) + 1
    else:
        tile = tl.load(x_ptr + BLOCK - 1 - at)
    tl.store(x_ptr + at, at * 0.0 - 5)
    tl.store(out_ptr + at, tile)


@pytest.mark.parametrize("flag", [-3, 3])
def test_results_of_branches_are_loaded_in_the_branch(flag: int) -> None:
    x, out = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK)
    expected = x + 1 if flag > 0 else x.flip(0)
    branch_results_kernel[(1,)](x, out, flag, BLOCK=BLOCK)
    assert torch.equal(out, expected)


@triton.jit
def other_types_alias_kernel(x_ptr, bits_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(bits_ptr + at, tl.full((BLOCK,), 0x3F800000, tl.int32))
    tl.store(out_ptr + at, tl.load(x_ptr + at))


def test_one_memory_as_two_types() -> None:
    x, out = torch.zeros(BLOCK), torch.zeros(BLOCK)
    other_types_alias_kernel[(1,)](x, x.view(torch.int32), out, BLOCK=BLOCK)
    assert out.eq(1.0).all()


@triton.jit
def overlapping_store_kernel(out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, at.to(tl.float32))
    tl.store(out_ptr + at // 2, at.to(tl.float32) * 0 + 5.0)


def test_stores_land_in_program_order() -> None:
    out = torch.zeros(BLOCK)
    overlapping_store_kernel[(1,)](out, BLOCK=BLOCK)
    expected = torch.arange(BLOCK, dtype=torch.float32)
    expected[: BLOCK // 2] = 5
    assert torch.equal(out, expected)
