# mypy: allow-untyped-decorators, allow-any-generics
"""Reductions and scans: sums, extremes, softmax in one pass and two, norms, cumulative sums."""

from __future__ import annotations

import helion.language as hl
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.integrations.helion.row import row


def matrix(m: int = 12, n: int = 40) -> tuple[Tensor]:
    return (torch.randn(m, n),)


@row("a sum over a whole row", matrix, lambda x: x.sum(-1), block_sizes=[4])
def row_sum(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


@row("a sum in a reduction loop", matrix, lambda x: x.sum(-1), block_sizes=[4],
     reduction_loops=[16])  # fmt: skip
def row_sum_looped(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


@row("a sum over columns", matrix, lambda x: x.sum(0), block_sizes=[8])
def column_sum(x: Tensor) -> Tensor:
    out = torch.empty([x.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(1)):
        out[tile] = x[:, tile].sum(0)
    return out


@row("`amax`, `amin`, `mean`", matrix, lambda x: (x.amax(1), x.amin(1), x.mean(1)), block_sizes=[4])
def extremes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    low = torch.empty_like(top)
    mid = torch.empty_like(top)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :]
        top[tile] = values.amax(-1)
        low[tile] = values.amin(-1)
        mid[tile] = values.mean(-1)
    return top, low, mid


@row("`argmax` and `argmin`", matrix, lambda x: (x.argmax(1), x.argmin(1)), block_sizes=[4])
def arg_extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    low = torch.empty_like(top)
    for tile in hl.tile(x.size(0)):
        top[tile] = torch.argmax(x[tile, :], dim=-1)
        low[tile] = torch.argmin(x[tile, :], dim=-1)
    return top, low


@row("`var_mean`", lambda: matrix(12, 32), lambda x: torch.var_mean(x, 1), block_sizes=[4],
     atol=1e-4)  # fmt: skip
def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    var = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    mean = torch.empty_like(var)
    for tile in hl.tile(x.size(0)):
        wide, middle = torch.var_mean(x[tile, :], dim=-1, keepdim=True, correction=1)
        var[tile] = wide.squeeze(-1)
        mean[tile] = middle.squeeze(-1)
    return var, mean


@row("`prod`", lambda: (torch.rand(8, 6) + 0.5,), lambda x: x.prod(1), block_sizes=[4])
def product(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.prod(x[tile, :], dim=-1)
    return out


@row("a reduction to one number, with atomics", lambda: (torch.randn(200),),
     lambda x: x.sum().view(1), block_sizes=[32], atol=1e-4)  # fmt: skip
def to_scalar(x: Tensor) -> Tensor:
    out = torch.zeros([1], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [0], x[tile].sum())
    return out


@row("a reduction in two kernels' worth of loops", lambda: (torch.randn(64, 32),),
     lambda x: x.sum(0), atol=1e-4)  # fmt: skip
def split_reduction(x: Tensor) -> Tensor:
    m, n = x.size()
    parts = torch.empty([m // 16, n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m, block_size=16):
        parts[tile.id, :] = x[tile, :].sum(0)
    return parts.sum(0)


def add_two(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a, b)


@row("`hl.reduce` with a function of ours", matrix, lambda x: x.sum(1), block_sizes=[4])
def custom_reduce(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.reduce(add_two, x[tile, :], dim=1)
    return out


@row("softmax in one pass", matrix, lambda x: x.softmax(1), block_sizes=[4])
def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=1)
    return out


@row("softmax, decomposed, in reduction loops", matrix, lambda x: x.softmax(1), block_sizes=[4],
     reduction_loops=[16])  # fmt: skip
def softmax_decomposed(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :]
        raised = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[tile, :] = raised / torch.sum(raised, dim=1, keepdim=True)
    return out


@row("softmax in two passes", matrix, lambda x: x.softmax(1), block_sizes=[4, 16])
def softmax_two_pass(x: Tensor) -> Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    block_n = hl.register_block_size(n)
    block_m = hl.register_block_size(m)
    for tile_m in hl.tile(m, block_size=block_m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n]
            new = torch.maximum(top, torch.amax(values, dim=1))
            total = total * torch.exp(top - new) + torch.exp(values - new[:, None]).sum(dim=1)
            top = new
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n]
            out[tile_m, tile_n] = torch.exp(values - top[:, None]) / total[:, None]
    return out


@row(
    "layer norm",
    lambda: (torch.randn(12, 32), torch.randn(32), torch.randn(32)),
    lambda x, w, b: F.layer_norm(x, [32], w, b),
    block_sizes=[4],
    atol=1e-4,
)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :]
        var, mean = torch.var_mean(values, dim=-1, keepdim=True, correction=0)
        out[tile, :] = (values - mean) * torch.rsqrt(var + 1e-5) * weight[:] + bias[:]
    return out


@row("RMS norm in bfloat16", lambda: (torch.randn(12, 40, dtype=torch.bfloat16), torch.randn(40)),
     lambda x, w: F.rms_norm(x.float(), [40], w, 1e-6).bfloat16(), block_sizes=[4], rtol=2e-2,
     atol=2e-2)  # fmt: skip
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(values * values, dim=-1) + 1e-6)
        out[tile, :] = (values * scale[:, None] * weight[:]).to(x.dtype)
    return out


@row("cross entropy: a gather beside a reduction", lambda: (torch.randn(12, 20),
     torch.randint(0, 20, (12,))), F.cross_entropy, block_sizes=[4], atol=1e-4)  # fmt: skip
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    n, v = logits.shape
    losses = torch.zeros([n], dtype=logits.dtype, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(n):
        at = labels[tile]
        picked = hl.load(flat, [tile.index * v + at])
        rows = logits[tile, :]
        top = torch.amax(rows, dim=-1, keepdim=True)
        total = torch.sum(torch.exp(rows - top), dim=-1)
        losses[tile] = torch.log(total) + top.squeeze(-1) - picked
    return losses.mean()


@row("`hl.cumsum`", matrix, lambda x: x.cumsum(1), block_sizes=[4], atol=1e-4)
def cumulative_sum(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.cumsum(x[tile, :], dim=1)
    return out


@row("`hl.cumprod`, from the end", lambda: (torch.rand(8, 8) + 0.5,),
     lambda x: x.flip(1).cumprod(1).flip(1), block_sizes=[4])  # fmt: skip
def cumulative_product(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.cumprod(x[tile, :], dim=1, reverse=True)
    return out


@row("`torch.cumsum`", matrix, lambda x: x.cumsum(1), block_sizes=[4], atol=1e-4)
def cumulative_torch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(x[tile, :], dim=1)
    return out


@row("`hl.associative_scan` with a function of ours", matrix, lambda x: x.cummax(1).values,
     block_sizes=[4])  # fmt: skip
def running_max(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.associative_scan(larger, x[tile, :], dim=1)
    return out


def segmented(
    value: Tensor, key: Tensor, next_value: Tensor, next_key: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.where(key == next_key, value + next_value, next_value), next_key


@row("`hl.associative_scan` over a pair", lambda: (torch.randn(4, 16), torch.arange(16) // 4),
     lambda x, k: x.view(4, 4, 4).cumsum(2).view(4, 16), block_sizes=[2])  # fmt: skip
def segmented_scan(x: Tensor, keys: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :]
        groups = keys[:].float()[None, :].expand_as(values)
        total, _ = hl.associative_scan(segmented, (values, groups), dim=1)
        out[tile, :] = total
    return out


@row(
    "`torch.sort` in the kernel", lambda: matrix(8, 16), lambda x: x.sort(1).values, block_sizes=[4]
)
def sorted_rows(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values, _ = torch.sort(x[tile, :], dim=1)
        out[tile, :] = values
    return out


@row(
    "`torch.topk` in the kernel",
    lambda: matrix(8, 16),
    lambda x: x.topk(4, 1).values,
    block_sizes=[4],
)
def top_rows(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0), 4], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        values, _ = torch.topk(x[tile, :], 4, dim=1)
        out[tile, :] = values
    return out
