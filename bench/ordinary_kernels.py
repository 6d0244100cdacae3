# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""Host functions with what ordinary code has: a helper, a table, a heuristic, a broadcast.

Enters: tensors. Leaves: tensors. Each does the work of `kernels.add2`, so that calls differ by the
one thing alone. It must not know about timing or devices.
"""

from __future__ import annotations

import time

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.kernels import LAUNCH_BLOCK, add_kernel

__all__ = [
    "add_by_helper",
    "add_by_heuristic",
    "add_by_table",
    "add_with_clock",
    "broadcast_add",
    "nothing",
    "nothing_of_8",
]

BLOCKS = {torch.float32: LAUNCH_BLOCK, torch.float16: LAUNCH_BLOCK}


def programs(n: int) -> int:
    return triton.cdiv(n, LAUNCH_BLOCK)


def add_by_helper(a: Tensor, b: Tensor) -> Tensor:
    """A function of the program computes the grid."""
    out = torch.empty_like(a)
    n = out.numel()
    add_kernel[(programs(n),)](a, b, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def add_by_table(a: Tensor, b: Tensor) -> Tensor:
    """A global dict has the block size."""
    out = torch.empty_like(a)
    n = out.numel()
    block = BLOCKS[a.dtype]
    add_kernel[(triton.cdiv(n, block),)](a, b, out, n, BLOCK=block)
    return out


by_heuristic = triton.heuristics({"BLOCK": lambda args: LAUNCH_BLOCK})(add_kernel)


def add_by_heuristic(a: Tensor, b: Tensor) -> Tensor:
    """A heuristic has the block size."""
    out = torch.empty_like(a)
    n = out.numel()
    by_heuristic[(triton.cdiv(n, LAUNCH_BLOCK),)](a, b, out, n)
    return out


def nothing(a: Tensor) -> Tensor:
    """No work but to look at a clock, which no plan can hold."""
    time.perf_counter()
    return a


def nothing_of_8(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
                 h: Tensor) -> Tensor:  # fmt: skip
    """The same with eight tensors."""
    time.perf_counter()
    return a


def add_with_clock(a: Tensor, b: Tensor) -> Tensor:
    """A sum of two tensors that looks at a clock."""
    time.perf_counter()
    out = torch.empty_like(a)
    n = out.numel()
    add_kernel[(triton.cdiv(n, LAUNCH_BLOCK),)](a, b, out, n, BLOCK=LAUNCH_BLOCK)
    return out


@triton.jit
def _add_rows(a_ptr, b_ptr, out_ptr, a_row, a_column, b_row, b_column, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + row * a_row + at * a_column, mask=at < n)
    b = tl.load(b_ptr + row * b_row + at * b_column, mask=at < n)
    tl.store(out_ptr + row * n + at, a + b, mask=at < n)


def broadcast_add(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two tensors, broadcast as torch's is."""
    a, b = torch.broadcast_tensors(a, b)
    out = torch.empty(a.shape, dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    rows, n = a.shape
    strides = *a.stride(), *b.stride()
    _add_rows[(rows,)](a, b, out, *strides, n, BLOCK=triton.next_power_of_2(n))
    return out
