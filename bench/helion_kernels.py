# mypy: allow-untyped-decorators
"""Sums of 2, 8 and 16 tensors in Helion, and a broadcasting one, with one configuration each.

In a module of its own because it needs Helion, which the `bench` extra installs.
"""

from __future__ import annotations

import helion
import helion.language as hl
import torch
from torch import Tensor

__all__ = ["SUMS", "broadcast_add"]

_CONFIG = helion.Config(block_sizes=[1024], num_warps=4, num_stages=2)


@helion.kernel(config=_CONFIG)
def add2(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(a)
    for tile in hl.tile(out.size(0)):
        out[tile] = a[tile] + b[tile]
    return out


@helion.kernel(config=_CONFIG)
def add8(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
         h: Tensor) -> Tensor:  # fmt: skip
    out = torch.empty_like(a)
    for tile in hl.tile(out.size(0)):
        out[tile] = (
            a[tile] + b[tile] + c[tile] + d[tile] + e[tile] + f[tile] + g[tile] + h[tile]
        )  # fmt: skip
    return out


@helion.kernel(config=_CONFIG)
def add16(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor,
          a2: Tensor, b2: Tensor, c2: Tensor, d2: Tensor, e2: Tensor, f2: Tensor, g2: Tensor,
          h2: Tensor) -> Tensor:  # fmt: skip
    out = torch.empty_like(a)
    for tile in hl.tile(out.size(0)):
        first = a[tile] + b[tile] + c[tile] + d[tile] + e[tile] + f[tile] + g[tile] + h[tile]
        second = a2[tile] + b2[tile] + c2[tile] + d2[tile] + e2[tile] + f2[tile]
        out[tile] = first + second + g2[tile] + h2[tile]
    return out


SUMS = {2: add2, 8: add8, 16: add16}


@helion.kernel(config=helion.Config(block_sizes=[1, 1024], num_warps=4, num_stages=2))
def broadcast_add(a: Tensor, b: Tensor) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    out = torch.empty(a.shape, dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    for tile in hl.tile(out.size()):
        out[tile] = a[tile] + b[tile]
    return out
