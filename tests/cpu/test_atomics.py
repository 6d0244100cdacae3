"""Atomics: every operation on every type, order and scope; old values; masks; contention; locks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import FORMATS, covered

BLOCK = 32
INTEGERS = ("int32", "uint32", "int64", "uint64")
FLOATS = ("fp32", "fp64")
HALVES = ("fp16", "bf16")


@triton.jit
def update_kernel(
    ptr, value_ptr, old_ptr, n, OP: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(value_ptr + at)
    if OP == "add":
        old = tl.atomic_add(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "max":
        old = tl.atomic_max(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "min":
        old = tl.atomic_min(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "and":
        old = tl.atomic_and(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "or":
        old = tl.atomic_or(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "xor":
        old = tl.atomic_xor(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    else:
        old = tl.atomic_xchg(ptr + at, value, mask=mask, sem=SEM, scope=SCOPE)
    tl.store(old_ptr + at, old, mask=mask)


REFERENCE = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def random_values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(BLOCK).to(dtype)
    size = dtype.itemsize
    return torch.randint(0, 256, (BLOCK * size,), dtype=torch.uint8).view(dtype)


def check_update(op: str, name: str, sem: str | None = None, scope: str | None = None) -> None:
    """Update all but the last five elements, and compare memory and the old values."""
    n, dtype = BLOCK - 5, FORMATS[name].torch
    memory, value = random_values(dtype, 1), random_values(dtype, 2)
    before, old = memory.clone(), torch.zeros(BLOCK, dtype=dtype)
    update_kernel[(1,)](memory, value, old, n, OP=op, SEM=sem, SCOPE=scope, BLOCK=BLOCK)
    if name in HALVES:
        expected = (before.float() + value.float()).to(dtype)
    else:
        expected = torch.from_numpy(REFERENCE[op](before.numpy(), value.numpy()))
    assert torch.equal(memory[:n], expected[:n])
    assert torch.equal(memory[n:], before[n:])
    assert torch.equal(old[:n], before[:n])


UPDATES = [
    *((op, dtype) for op in REFERENCE for dtype in INTEGERS),
    *((op, dtype) for op in ("add", "max", "min", "xchg") for dtype in FLOATS),
    *(("add", dtype) for dtype in HALVES),
]


@pytest.mark.parametrize(
    ("op", "dtype"), [covered(f"tl.atomic_{op}", d, args=(op, d)) for op, d in UPDATES]
)
def test_update_changes_memory_and_returns_what_was_there(op: str, dtype: str) -> None:
    check_update(op, dtype)


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_every_order_and_scope(sem: str, scope: str) -> None:
    check_update("add", "int32", sem, scope)


@triton.jit
def cas_kernel(ptr, expected_ptr, new_ptr, old_ptr, SEM: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    old = tl.atomic_cas(
        ptr + at, tl.load(expected_ptr + at), tl.load(new_ptr + at), sem=SEM, scope="gpu"
    )
    tl.store(old_ptr + at, old)


@pytest.mark.parametrize(
    "name",
    [
        covered("tl.atomic_cas", d, args=(d,))
        for d in (*INTEGERS, "int16", "uint16", *HALVES, *FLOATS)
    ],
)
def test_compare_and_swap(name: str) -> None:
    dtype = FORMATS[name].torch
    memory = torch.arange(BLOCK).to(dtype)
    expected = torch.where(torch.arange(BLOCK) % 3 == 0, torch.arange(BLOCK), 99).to(dtype)
    new = (torch.arange(BLOCK) + 50).to(dtype)
    before, old = memory.clone(), torch.zeros(BLOCK, dtype=dtype)
    cas_kernel[(1,)](memory, expected, new, old, SEM="acq_rel", BLOCK=BLOCK)
    matched = torch.arange(BLOCK) % 3 == 0
    assert torch.equal(memory.double(), torch.where(matched, new.double(), before.double()))
    assert torch.equal(old.double(), before.double())


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release"])
def test_compare_and_swap_in_every_order(sem: str) -> None:
    memory, old = torch.zeros(BLOCK, dtype=torch.int32), torch.ones(BLOCK, dtype=torch.int32)
    cas_kernel[(1,)](memory, memory.clone(), old.clone(), old, SEM=sem, BLOCK=BLOCK)
    assert memory.eq(1).all()
    assert old.eq(0).all()


@triton.jit
def ticket_kernel(counter_ptr, tickets_ptr):
    ticket = tl.atomic_add(counter_ptr, 1)
    tl.store(tickets_ptr + tl.program_id(0), ticket)


def test_every_program_draws_its_own_ticket() -> None:
    programs = 2000
    counter = torch.zeros(1, dtype=torch.int32)
    tickets = torch.full((programs,), -1, dtype=torch.int32)
    ticket_kernel[(programs,)](counter, tickets)
    assert counter.item() == programs
    assert sorted(tickets.tolist()) == list(range(programs))


@triton.jit
def contended_kernel(sum_ptr, max_ptr, bits_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.atomic_add(sum_ptr + at, tl.full((BLOCK,), 1, sum_ptr.dtype.element_ty))
    tl.atomic_max(max_ptr + at, (pid * 7919 + at) % 1009)
    tl.atomic_xor(bits_ptr + at, (pid * 40503) & 0xFFFF)


@pytest.mark.parametrize("dtype", [*HALVES, *FLOATS, "int64"])
def test_no_update_is_lost_under_contention(dtype: str) -> None:
    # 256 is the last integer up to which bfloat16 counts without rounding.
    programs = 256
    total = torch.zeros(BLOCK, dtype=FORMATS[dtype].torch)
    peak, bits = (torch.zeros(BLOCK, dtype=torch.int32) for _ in range(2))
    contended_kernel[(programs,)](total, peak, bits, BLOCK=BLOCK)
    pid, at = torch.arange(programs)[:, None], torch.arange(BLOCK)[None, :]
    assert total.eq(programs).all()
    assert torch.equal(peak, ((pid * 7919 + at) % 1009).max(0).values.int())
    folded = 0
    for each in range(programs):
        folded ^= (each * 40503) & 0xFFFF
    assert bits.eq(folded).all()


@triton.jit
def same_address_kernel(count_ptr, old_ptr, bins_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(bins_ptr + at % 4, at)
    tl.store(old_ptr + at, tl.atomic_add(count_ptr + at * 0, 1))


def test_lanes_of_one_tile_may_share_an_address() -> None:
    count, bins = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    old = torch.full((BLOCK,), -1, dtype=torch.int32)
    same_address_kernel[(1,)](count, old, bins, BLOCK=BLOCK)
    assert count.item() == BLOCK
    assert sorted(old.tolist()) == list(range(BLOCK))
    assert bins.tolist() == [sum(range(r, BLOCK, 4)) for r in range(4)]


@triton.jit
def masked_off_kernel(ptr, scalar_ptr, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK).to(tl.int64)
    far = tl.where(at < 4, at, at * (1 << 40))
    tl.atomic_add(ptr + far, 1.0, mask=at < 4)
    tl.atomic_xchg(scalar_ptr + flag.to(tl.int64) * (1 << 40), 5, mask=flag == 0)


def test_masked_off_lanes_never_touch_memory() -> None:
    memory, scalar = torch.zeros(8), torch.zeros(1, dtype=torch.int32)
    masked_off_kernel[(1,)](memory, scalar, 77, BLOCK=BLOCK)
    assert memory.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert scalar.item() == 0
    masked_off_kernel[(1,)](memory, scalar, 0, BLOCK=BLOCK)
    assert scalar.item() == 5


@triton.jit
def matrix_add_kernel(ptr, x_ptr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.atomic_add(ptr + at, tl.load(x_ptr + at), sem="relaxed")


def test_two_dimensional_add() -> None:
    x, out = torch.randn(8, 16), torch.randn(8, 16)
    expected = out + x + x
    matrix_add_kernel[(2,)](out, x, R=8, C=16)
    torch.testing.assert_close(out, expected)


@triton.jit
def broadcast_add_kernel(ptr, BLOCK: tl.constexpr):
    tl.atomic_add(ptr + tl.arange(0, BLOCK), 2.5)


def test_scalar_value_is_added_everywhere() -> None:
    out = torch.zeros(BLOCK)
    broadcast_add_kernel[(3,)](out, BLOCK=BLOCK)
    assert out.eq(7.5).all()


@triton.jit
def locked_kernel(lock_ptr, total_ptr, trace_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") != 0:
        pass
    count = tl.load(trace_ptr)
    tl.store(total_ptr + at, tl.load(total_ptr + at) + at)
    tl.store(trace_ptr, count + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0, sem="release")


def test_spin_lock_guards_plain_loads_and_stores() -> None:
    programs = 500
    lock, trace = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    total = torch.zeros(BLOCK, dtype=torch.int32)
    locked_kernel[(programs,)](lock, total, trace, BLOCK=BLOCK)
    assert trace.item() == programs
    assert torch.equal(total, programs * torch.arange(BLOCK, dtype=torch.int32))
    assert lock.item() == 0


@triton.jit
def last_one_sums_kernel(x_ptr, partial_ptr, count_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at, mask=at < n, other=0), axis=0)
    tl.store(partial_ptr + pid, part)
    tl.debug_barrier()
    arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
    if arrived == tl.num_programs(0) - 1:
        total = tl.zeros((), dtype=tl.int64)
        for i in range(tl.num_programs(0)):
            total += tl.load(partial_ptr + i, volatile=True)
        tl.store(out_ptr, total)


def test_last_program_to_arrive_sees_what_all_stored() -> None:
    n = 5000
    x = torch.randint(-1000, 1000, (n,))
    programs = triton.cdiv(n, BLOCK)
    partial, out = torch.zeros(programs, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    count = torch.zeros(1, dtype=torch.int32)
    last_one_sums_kernel[(programs,)](x, partial, count, out, n, BLOCK=BLOCK)
    assert out.item() == x.sum().item()


@triton.jit
def float_extremes_kernel(max_ptr, min_ptr, values_ptr):
    value = tl.load(values_ptr + tl.program_id(0))
    tl.atomic_max(max_ptr, value)
    tl.atomic_min(min_ptr, value)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_float_extremes_of_mixed_signs(sign: float) -> None:
    values = torch.randn(300) + sign
    peak, low = torch.full((1,), -float("inf")), torch.full((1,), float("inf"))
    float_extremes_kernel[(300,)](peak, low, values)
    assert peak.item() == values.max().item()
    assert low.item() == values.min().item()


if hasattr(tl, "atomic_load"):

    @triton.jit
    def load_store_kernel(ptr, out_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        value = tl.atomic_load(ptr + at, mask=at < BLOCK - 2)
        tl.atomic_store(out_ptr + at, value * 2, mask=at < BLOCK - 2, sem="release")
        tl.atomic_store(out_ptr + BLOCK, tl.atomic_load(ptr + 1, sem="relaxed"))

    @triton.jit
    def poll_kernel(flag_ptr, data_ptr, out_ptr):
        if tl.program_id(0) == 0:
            tl.store(data_ptr, 42)
            tl.atomic_xchg(flag_ptr, 1, sem="release")
        else:
            seen = tl.atomic_poll(flag_ptr, 1)
            tl.store(out_ptr, tl.load(data_ptr))
            tl.store(out_ptr + 1, seen.to(tl.int32))
            late = tl.atomic_poll(flag_ptr, 5, timeout_ns=1000)
            tl.store(out_ptr + 2, late.to(tl.int32))

    @triton.jit
    def poll_block_kernel(flags_ptr, out_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        if tl.program_id(0) == 0:
            tl.atomic_xchg(flags_ptr + at, at + 7, sem="release")
        else:
            seen = tl.atomic_poll(flags_ptr + at, at + 7)
            late = tl.atomic_poll(
                flags_ptr + at, tl.where(at % 2 == 0, at + 7, -1), timeout_ns=1000
            )
            tl.store(out_ptr + at, seen.to(tl.int32) * 2 + late.to(tl.int32))


@pytest.mark.parametrize(
    "name",
    [
        covered("tl.atomic_load, tl.atomic_store", d, args=(d,), needs="3.9")
        for d in ("int32", "fp64", "bf16")
    ],
)
def test_atomic_load_and_store(name: str) -> None:
    dtype = FORMATS[name].torch
    memory, out = torch.arange(BLOCK).to(dtype), torch.zeros(BLOCK + 1, dtype=dtype)
    load_store_kernel[(1,)](memory, out, BLOCK=BLOCK)
    expected = (torch.arange(BLOCK + 1) * 2).to(dtype)
    expected[BLOCK - 2 :] = 0
    expected[BLOCK] = 1
    assert torch.equal(out, expected)


@pytest.mark.covers("tl.atomic_poll", "int32")
@pytest.mark.needs_triton("3.9")
def test_atomic_poll_waits_for_a_value_or_for_the_time() -> None:
    flag, data = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    out = torch.full((3,), -1, dtype=torch.int32)
    poll_kernel[(2,)](flag, data, out)
    assert out.tolist() == [42, 1, 0]


@pytest.mark.covers("tl.atomic_poll of a block", "int32")
@pytest.mark.needs_triton("3.9")
def test_atomic_poll_of_a_block_answers_for_each_element() -> None:
    flags, out = torch.zeros(BLOCK, dtype=torch.int32), torch.zeros(BLOCK, dtype=torch.int32)
    poll_block_kernel[(2,)](flags, out, BLOCK=BLOCK)
    assert out.tolist() == [3, 2] * (BLOCK // 2)
