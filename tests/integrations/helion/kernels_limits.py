# mypy: allow-untyped-decorators, allow-any-generics
"""What Helion does on a GPU and not on the CPU: each row with how it fails, and why."""

from __future__ import annotations

from typing import NamedTuple

import helion.language as hl
import torch
from torch import Tensor

from tests.integrations.helion.kernels_tiles import matrix
from tests.integrations.helion.row import limit, row

NO_COUNT = "Helion asks how many multiprocessors the device has, and answers only for GPUs"


@limit("TODO: implement for other devices", NO_COUNT)
@row("persistent loops, blocked", matrix, lambda x: x + 1, block_sizes=[8, 8],
     pid_type="persistent_blocked")  # fmt: skip
def persistent_blocked(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


@limit("TODO: implement for other devices", NO_COUNT)
@row("persistent loops, interleaved", matrix, lambda x: x + 1, block_sizes=[8, 8],
     pid_type="persistent_interleaved")  # fmt: skip
def persistent_interleaved(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


@limit("TODO: implement for other devices", NO_COUNT)
@row("`hl.barrier` between loops", lambda: (torch.randn(64),), lambda x: x * 2 + 1,
     block_sizes=[16, 16], pid_type="persistent_blocked")  # fmt: skip
def barrier(x: Tensor) -> Tensor:
    middle = torch.empty_like(x)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        middle[tile] = x[tile] * 2
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile] = middle[tile] + 1
    return out


@limit("_helion_inline_assembly: 'tt.elementwise_inline_asm'", "the assembly is that of one GPU")
@row("`hl.inline_asm_elementwise`", lambda: (torch.arange(32, dtype=torch.int32),), lambda x: x + 1,
     block_sizes=[16])  # fmt: skip
def inline_assembly(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.inline_asm_elementwise(
            "add.s32 $0, $1, 1;", "=r,r", [x[tile]], torch.int32, is_pure=True, pack=1
        )
    return out


@limit(
    "prims::inductor_seeds() Expected a value of type 'Device'",
    "Helion draws the seed on the current accelerator, and there is none",
)
@row("`torch.rand_like` in the kernel", lambda: (torch.ones(64),), lambda x: x, block_sizes=[16])
def rand_like(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.ceil(torch.rand_like(x[tile]) + 1e-9)
    return out


ANYWHERE = "Helion's own"


@limit("Error in codegen for node var_extra_1", f"{ANYWHERE}: it lowers `var_mean`, and not `var`")
@row("`torch.var`", matrix, lambda x: x.var(1), block_sizes=[4])
def variance(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.var(x[tile, :], dim=-1)
    return out


@limit("Tensor-likes are not close!", f"{ANYWHERE}: lanes beyond the row count in the variance")
@row("`torch.var_mean` of rows whose length is no power of two", matrix,
     lambda x: x.var(1, correction=0), block_sizes=[4])  # fmt: skip
def variance_masked(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        var, _ = torch.var_mean(x[tile, :], dim=-1, keepdim=True, correction=0)
        out[tile] = var.squeeze(-1)
    return out


@limit("Tensor-likes are not close!", f"{ANYWHERE}: lanes beyond the row are zeros in the product")
@row("`hl.cumprod` from the end, of rows whose length is no power of two",
     lambda: (torch.rand(8, 6) + 0.5,), lambda x: x.flip(1).cumprod(1).flip(1),
     block_sizes=[4])  # fmt: skip
def cumulative_product_masked(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.cumprod(x[tile, :], dim=1, reverse=True)
    return out


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@limit("AttributeError: 'dict' object has no attribute 'first'",
       f"{ANYWHERE}: attributes are read before the loop, not in it")  # fmt: skip
@row("an attribute of a named tuple, read in the loop",
     lambda: (Pair(torch.randn(50), torch.randn(50)),), lambda p: p.first * p.second,
     block_sizes=[16])  # fmt: skip
def attribute_inside(pair: Pair) -> Tensor:
    out = torch.empty_like(pair.first)
    for tile in hl.tile(out.size(0)):
        out[tile] = pair.first[tile] * pair.second[tile]
    return out
