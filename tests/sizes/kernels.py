"""The kernels of generated programs, and helpers that launch them.

Enters: tensors and integers. Leaves: tensors that show how each launch was made: its grid, its
integers, its constants, and the memory it read. Few variants exist, because each is compiled.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["classed", "copied", "copy", "given", "increase", "increased", "note", "rows", "stamped"]

BLOCK = 32
_PLACES = ["n", "n1", "n2", "s0", "s1", "s2"]


@triton.jit(do_not_specialize=["a", "b", "c"], do_not_specialize_on_alignment=["log"])
def note(log, a, b, c):
    """Store the grid and three integers."""
    if tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0:
        tl.store(log + 0, tl.num_programs(0))
        tl.store(log + 1, tl.num_programs(1))
        tl.store(log + 2, tl.num_programs(2))
        tl.store(log + 3, a)
        tl.store(log + 4, b)
        tl.store(log + 5, c)


@triton.jit(do_not_specialize_on_alignment=["log"])
def classed(log, value):
    """Store an integer on which the launch specializes."""
    tl.store(log + 6, value)


@triton.jit(do_not_specialize_on_alignment=["log"])
def given(log, VALUE: tl.constexpr):
    """Store a number that is compiled in."""
    tl.store(log + 7, VALUE)


@triton.jit(do_not_specialize=_PLACES, do_not_specialize_on_alignment=["x", "out"])
def copy(x, out, n, n1, n2, s0, s1, s2, BLOCK: tl.constexpr):
    """Copy a strided tensor of three dimensions into a contiguous one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = at // (n1 * n2) * s0 + at // n2 % n1 * s1 + at % n2 * s2
    tl.store(out + at, tl.load(x + where, mask=at < n), mask=at < n)


@triton.jit(do_not_specialize=["n", "s0", "s1"], do_not_specialize_on_alignment=["x", "out"])
def rows(x, out, n, s0, s1, BLOCK: tl.constexpr):
    """Double each row of a matrix, a program each."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x + row * s0 + at * s1, mask=at < n)
    tl.store(out + row * n + at, x * 2, mask=at < n)


@triton.jit(do_not_specialize=["n", "by"], do_not_specialize_on_alignment=["x"])
def increase(x, by, n, BLOCK: tl.constexpr):
    """Add to a tensor in place, so that a duplicate launch shows."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["out"])
def stamp(out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at + 1, mask=at < n)


def copied(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of up to three dimensions into a new one by a launch."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    above = (1,) * (3 - x.dim())
    _, *sizes = (*above, *x.shape)
    grid = (triton.cdiv(max(1, x.numel()), BLOCK),)
    copy[grid](x, out, x.numel(), *sizes, *above, *x.stride(), BLOCK=BLOCK)
    return out


def increased(x: torch.Tensor, by: int) -> torch.Tensor:
    """Add a number to a contiguous tensor in place; returns it."""
    n = x.numel()
    increase[lambda meta: (triton.cdiv(n, meta["BLOCK"]) or 1,)](x, by, n, BLOCK=BLOCK)
    return x


def stamped(x: torch.Tensor) -> torch.Tensor:
    """Write 1, 2, 3... into the memory of a dense tensor; returns it."""
    n = x.numel()
    if n:
        stamp[(triton.cdiv(n, BLOCK),)](x, n, BLOCK=BLOCK)
    return x
