# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""Host functions whose sizes vary from call to call: sums in five launches, and a layer of text.

Enters: tensors. Leaves: tensors. The code is what such programs are made of: views, `empty_like`,
`next_power_of_2`, a grid function. It must not know about timing or devices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.kernels import LAUNCH_BLOCK, add8_kernel, add16_kernel, add_kernel

__all__ = ["add_as", "five2", "five8", "five16", "gated_norm", "gated_norm_in_torch"]

FIVE = 5


def five2(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two tensors, launched five times."""
    out = torch.empty_like(a)
    n = out.numel()
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    for _ in range(FIVE):
        add_kernel[grid](a, b, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def five8(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
          h: Tensor) -> Tensor:  # fmt: skip
    """The sum of eight, launched five times."""
    out = torch.empty_like(a)
    n = out.numel()
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    for _ in range(FIVE):
        add8_kernel[grid](a, b, c, d, e, f, g, h, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def five16(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor,
           a2: Tensor, b2: Tensor, c2: Tensor, d2: Tensor, e2: Tensor, f2: Tensor, g2: Tensor,
           h2: Tensor) -> Tensor:  # fmt: skip
    """The sum of sixteen, launched five times."""
    out = torch.empty_like(a)
    n = out.numel()
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    for _ in range(FIVE):
        add16_kernel[grid](
            a, b, c, d, e, f, g, h, a2, b2, c2, d2, e2, f2, g2, h2, out, n, BLOCK=LAUNCH_BLOCK
        )
    return out


def add_as(a: Tensor, b: Tensor, name: str) -> Tensor:
    """The sum of two tensors. The name is not used; each is a class of calls of its own."""
    out = torch.empty_like(a)
    n = out.numel()
    add_kernel[(triton.cdiv(n, LAUNCH_BLOCK),)](a, b, out, n, BLOCK=LAUNCH_BLOCK)
    return out


# -- a layer of text -------------------------------------------------------------------------------


@triton.jit
def _add_norm(x_ptr, residual_ptr, weight_ptr, sum_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    """sum = x + residual; out = sum / rms(sum) * weight; a row per program."""
    row = tl.program_id(0).to(tl.int64) * n
    at = tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + row + at, mask=inside, other=0.0)
    total += tl.load(residual_ptr + row + at, mask=inside, other=0.0)
    tl.store(sum_ptr + row + at, total, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / n + eps)
    weight = tl.load(weight_ptr + at, mask=inside)
    tl.store(out_ptr + row + at, total * scale * weight, mask=inside)


@triton.jit
def _silu_mul(x_ptr, out_ptr, columns, total, BLOCK: tl.constexpr):
    """out = silu(first half of a row) * second half."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    first = at // columns * 2 * columns + at % columns
    gate = tl.load(x_ptr + first, mask=inside, other=0.0)
    up = tl.load(x_ptr + first + columns, mask=inside, other=0.0)
    tl.store(out_ptr + at, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def gated_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """RMS norm of x + residual, gated by its own halves; also the sum. Rows are tokens."""
    rows = x.view(-1, x.shape[-1])
    tokens, n = rows.shape
    total = torch.empty_like(rows)
    normed = torch.empty_like(rows)
    _add_norm[(tokens,)](
        rows, residual, weight, total, normed, n, eps, BLOCK=triton.next_power_of_2(n)
    )
    columns = n // 2
    out = torch.empty((tokens, columns), dtype=x.dtype, device=x.device)

    def grid(meta):
        return (triton.cdiv(tokens * columns, meta["BLOCK"]),)

    _silu_mul[grid](normed, out, columns, tokens * columns, BLOCK=1024)
    return out.view(*x.shape[:-1], columns), total.view(x.shape)


def gated_norm_in_torch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The same by operators of torch, for torch.compile and as the reference."""
    total = x + residual
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight
    gate, up = normed.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up, total
