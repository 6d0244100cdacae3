"""Host functions whose sizes vary, and arguments of random sizes for each.

Enters: a source of random numbers. Leaves: arguments. The kernels specialize on what they are
given, as those of programs do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

__all__ = ["HOSTS", "Host"]


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.jit
def softmax_kernel(x, out, x_stride, out_stride, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + at, mask=at < n, other=-float("inf"))
    above = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * out_stride + at, above / tl.sum(above, axis=0), mask=at < n)


@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        rk = start + tl.arange(0, BK)
        left = (rm[:, None] < m) & (rk[None, :] < k)
        right = (rk[:, None] < k) & (rn[None, :] < n)
        one = tl.load(a + rm[:, None] * am + rk[None, :] * ak, mask=left, other=0.0)
        other = tl.load(b + rk[:, None] * bk + rn[None, :] * bn, mask=right, other=0.0)
        total += tl.dot(one, other)
    inside = (rm[:, None] < m) & (rn[None, :] < n)
    tl.store(c + rm[:, None] * cm + rn[None, :] * cn, total, mask=inside)


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@triton.jit
def add_rows_kernel(x, y, out, x_row, x_step, y_row, y_step, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    one = tl.load(x + row * x_row + at * x_step, mask=at < n)
    other = tl.load(y + row * y_row + at * y_step, mask=at < n)
    tl.store(out + row * n + at, one + other, mask=at < n)


# -- host functions --------------------------------------------------------------------------------


def add(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def add_checked(x, y):
    assert x.shape == y.shape and x.is_contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)  # noqa: E731
    add_kernel[grid](x, y, out, x.numel(), BLOCK=64)
    return out


def softmax(x):
    rows, n = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(n)
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), n, BLOCK=block)
    return out


def matmul(a, b):
    (m, k), n = a.shape, b.size(1)
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))  # noqa: E731
    matmul_kernel[grid](
        *(a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1)),
        *(c.stride(0), c.stride(1)),
        BM=16,
        BN=16,
        BK=16,
    )
    return c


def blocks_of(n, block):
    return (n + block - 1) // block


def scaled(x, by):
    out = torch.empty_like(x)
    scale_kernel[(blocks_of(x.numel(), 64),)](x, out, by, x.numel(), BLOCK=64)
    return out


def with_helpers(x):
    return scaled(scaled(x, 2.0), 3.0)


def views(x):
    flat = x.view(-1)
    half = flat[: flat.size(0) // 2]
    out = torch.empty_like(half)
    n = half.numel()
    scale_kernel[(triton.cdiv(n, 64),)](half, out, 2.0, n, BLOCK=64)
    return out, x.t(), half


def rows_of(x, n):
    rows = x.reshape(-1, n)
    out = torch.zeros(rows.size(0), n, dtype=x.dtype)
    scale_kernel[(triton.cdiv(out.numel(), 64),)](rows, out, 0.5, out.numel(), BLOCK=64)
    return out


def several(x, y):
    n = x.size(0)
    total = torch.zeros(n)
    for k in range(3):
        add_kernel[(triton.cdiv(n, 64),)](x if k else y, total, total, n, BLOCK=64)
    return total, n


def after_torch(x, y):
    z = x * 2 + y
    out = torch.empty_like(z)
    scale_kernel[(triton.cdiv(z.numel(), 64),)](z, out, 0.5, z.numel(), BLOCK=64)
    return out


def on_conditions(x):
    n = x.numel()
    block = 64
    if n > 256:
        block = 128
    elif n % 2:
        block = 32
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(n, block),)](x, out, 3.0, n, BLOCK=block)
    return out


def of_list(xs):
    outs = []
    for x in xs:
        out = torch.empty_like(x)
        scale_kernel[(math.ceil(x.numel() / 64),)](x, out, 2.0, x.numel(), BLOCK=64)
        outs.append(out)
    return outs


def by_number(x, n):
    out = x.new_zeros(n + 3)
    scale_kernel[(max(1, n // 64 + 1),)](x, out, 2.0, min(n, x.size(0)), BLOCK=64)
    return out


def broadcast(x, y):
    x, y = torch.broadcast_tensors(x, y)
    rows, n = x.shape
    out = torch.empty(x.shape)
    steps = (*x.stride(), *y.stride())
    add_rows_kernel[(rows,)](x, y, out, *steps, n, BLOCK=triton.next_power_of_2(n))
    return out, x, y


def softmax_by_class(x):
    """The rows of a tensor of any dimensions."""
    shape = x.shape
    rows = x.reshape(-1, shape[-1])
    return softmax(rows).view(shape)


class Host(NamedTuple):
    """A host function, and what makes its arguments."""

    function: Callable[..., Any]
    arguments: Callable[[random.Random], tuple[Any, ...]]


def _size(chance: random.Random) -> int:
    return chance.choice([1, 2, 3, 16, 32, 48, 64, 100, 128, 300, chance.randint(1, 400)])


def _two(chance: random.Random) -> tuple[Any, ...]:
    n = _size(chance)
    return torch.randn(n), torch.randn(n)


def _matrix(chance: random.Random) -> torch.Tensor:
    return torch.randn(chance.randint(1, 9), _size(chance))


def _matrices(chance: random.Random) -> tuple[Any, ...]:
    m, n, k = (chance.choice([5, 17, 33, 35, 40, chance.choice([1, 32])]) for _ in range(3))
    a, b = torch.randn(m, k), torch.randn(k, n)
    if chance.random() < 0.3:
        b = torch.randn(n, k).t()
    return a, b


def _rows(chance: random.Random) -> tuple[Any, ...]:
    n = chance.choice([3, 4, 16])
    return torch.randn(n * chance.randint(1, 40)), n


def _broadcast(chance: random.Random) -> tuple[Any, ...]:
    m, n = chance.choice([2, 5, 9]), chance.choice([3, 17, 33, 40])
    other = chance.choice([(m, n), (n,), (n,), (m, 1), (1, n)])
    return torch.randn(m, n), torch.randn(other)


HOSTS: dict[str, Host] = {
    "add": Host(add, _two),
    "add, checked, with a grid function": Host(add_checked, _two),
    "softmax": Host(softmax, lambda chance: (_matrix(chance),)),
    "matmul": Host(matmul, _matrices),
    "helpers": Host(with_helpers, lambda chance: (torch.randn(_size(chance)),)),
    "views": Host(views, lambda chance: (_matrix(chance),)),
    "reshape": Host(rows_of, _rows),
    "several launches": Host(several, _two),
    "after torch": Host(after_torch, _two),
    "conditions": Host(on_conditions, lambda chance: (torch.randn(_size(chance)),)),
    "lists": Host(
        of_list, lambda chance: ([torch.randn(_size(chance)), torch.randn(_size(chance))],)
    ),
    "broadcast": Host(broadcast, _broadcast),
    "numbers": Host(by_number, lambda chance: (torch.randn(_size(chance)), _size(chance))),
    "any dimensions": Host(
        softmax_by_class,
        lambda chance: (torch.randn(chance.randint(1, 4), chance.randint(1, 4), _size(chance)),),
    ),
}
