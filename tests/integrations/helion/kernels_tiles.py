# mypy: allow-untyped-decorators, allow-any-generics
"""Tiles: one to three dimensions, orders, masks, views, indices, dtypes, loops over loops."""

from __future__ import annotations

import helion.language as hl
import torch
from torch import Tensor

from tests.integrations.helion.row import row


def one(n: int = 100) -> tuple[Tensor]:
    return (torch.randn(n),)


def two(n: int = 100) -> tuple[Tensor, Tensor]:
    return torch.randn(n), torch.randn(n)


def matrix(m: int = 20, n: int = 36) -> tuple[Tensor]:
    return (torch.randn(m, n),)


@row("a tile in one dimension", lambda: two(128), torch.add, block_sizes=[32])
def tile_1d(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


@row("a mask where tiles do not divide the size", two, torch.add, block_sizes=[32])
def tile_masked(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


@row("tiles in two dimensions", matrix, lambda x: x * 2, block_sizes=[8, 16])
def tile_2d(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * 2
    return out


@row(
    "tiles in three dimensions",
    lambda: (torch.randn(3, 10, 12),),
    torch.exp,
    block_sizes=[1, 8, 8],
)
def tile_3d(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(x[tile])
    return out


@row(
    "loops in another order, L2 groups",
    matrix,
    lambda x: x + 1,
    block_sizes=[8, 8],
    loop_orders=[[1, 0]],
    l2_groupings=[2],
)
def tile_reordered(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] + 1
    return out


@row("flattened loops", matrix, lambda x: x.abs(), block_sizes=[8, 8], flatten_loops=[True])
def tile_flattened(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile].abs()
    return out


@row("a grid in three axes (`pid_type=xyz`)", matrix, torch.neg, block_sizes=[8, 8], pid_type="xyz")
def tile_xyz(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = -x[tile_m, tile_n]
    return out


@row("`hl.grid`, one index at a time", matrix, lambda x: x.cos(), block_sizes=[16])
def grid_of_rows(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            out[i, tile] = x[i, tile].cos()
    return out


@row(
    "tiles between two bounds",
    one,
    lambda x: torch.cat([torch.zeros(10), x[10:90] * 3, torch.zeros(10)]),
    block_sizes=[32],
)
def tile_from_to(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(10, x.size(0) - 10):
        out[tile] = x[tile] * 3
    return out


@row("a block size given in the kernel", one, lambda x: x - 1)
def tile_block_given(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=16):
        out[tile] = x[tile] - 1
    return out


@row(
    "`hl.register_block_size`, one size for two loops",
    lambda: (torch.randn(48, 48),),
    lambda x: x.sum(1),
    block_sizes=[16, 4],
)
def block_registered(x: Tensor) -> Tensor:
    m, n = x.size()
    block = hl.register_block_size(n)
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for rows in hl.tile(m):
        total = hl.zeros([rows], dtype=torch.float32)
        for columns in hl.tile(n, block_size=block):
            total += x[rows, columns].sum(-1)
        out[rows] = total
    return out


@row(
    "`tile.index`, and indices as values",
    one,
    lambda x: x + torch.arange(100),
    block_sizes=[32],
)
def tile_index(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + tile.index
    return out


@row(
    "`tile.begin`, `tile.end`, `tile.id`, `tile.block_size`",
    lambda: (torch.zeros(64),),
    lambda x: torch.arange(64) // 16 * 16 + (torch.arange(64) // 16) + 16.0,
    block_sizes=[16],
)
def tile_properties(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + tile.begin + tile.id + tile.block_size
    return out


@row(
    "neighbours: an index with an offset and its own mask",
    one,
    lambda x: x + torch.cat([torch.zeros(1), x[:-1]]),
    block_sizes=[32],
)
def shifted(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        before = hl.load(x, [tile.index - 1], extra_mask=tile.index >= 1)
        out[tile] = x[tile] + before
    return out


@row("a row of a vector, broadcast", lambda: (torch.randn(20, 36), torch.randn(36)), torch.add,
     block_sizes=[8, 16])  # fmt: skip
def broadcast_row(x: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] + bias[tile_n]
    return out


@row("two vectors, broadcast against each other", lambda: (torch.randn(20), torch.randn(36)),
     torch.outer, block_sizes=[8, 16])  # fmt: skip
def broadcast_outer(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty([x.size(0), y.size(0)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(0)]):
        out[tile_m, tile_n] = x[tile_m][:, None] * y[tile_n][None, :]
    return out


@row("a transposed output", matrix, lambda x: x.t().contiguous(), block_sizes=[8, 16])
def transposed(x: Tensor) -> Tensor:
    m, n = x.size()
    out = torch.empty([n, m], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_n, tile_m] = x[tile_m, tile_n].transpose(0, 1)
    return out


@row(
    "views on the host: `view`, `expand`, broadcast tensors",
    lambda: (torch.randn(6, 8), torch.randn(8)),
    lambda x, y: (x + y).view(-1),
    block_sizes=[4, 8],
)
def host_views(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty([x.size(0) * x.size(1)], dtype=x.dtype, device=x.device)
    seen = out.view(x.size())
    for tile in hl.tile(x.size()):
        seen[tile] = x[tile] + y[tile]
    return out


@row("tensors with strides", lambda: (torch.randn(40, 36)[::2, ::3],), lambda x: x * x,
     block_sizes=[8, 8])  # fmt: skip
def strided(x: Tensor) -> Tensor:
    out = torch.empty(x.size(), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * x[tile]
    return out


@row(
    "reshapes inside the kernel",
    lambda: (torch.randn(16, 8),),
    lambda x: x.view(16, 2, 4).sum(1),
    block_sizes=[4],
)
def device_reshape(x: Tensor) -> Tensor:
    m, n = x.size()
    n = hl.specialize(n)
    out = torch.empty([m, n // 2], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        out[tile, :] = x[tile, :].reshape([tile, 2, n // 2]).sum(1)
    return out


@row(
    "`hl.split` and `hl.join`",
    lambda: (torch.randn(32, 2),),
    lambda x: torch.stack([x[:, 1], x[:, 0]], -1),
    block_sizes=[16],
)
def split_join(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first, second = hl.split(x[tile, :])
        out[tile, :] = hl.join(second, first)
    return out


@row("`torch.where`", two, lambda x, y: torch.where(x > y, x, y * 2), block_sizes=[32])
def where(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(x[tile] > y[tile], x[tile], y[tile] * 2)
    return out


@row("a scalar `if`", matrix, lambda x: torch.cat([x[:10] * 2, x[10:] * 3]), block_sizes=[16])
def scalar_if(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            if i < 10:
                out[i, tile] = x[i, tile] * 2
            else:
                out[i, tile] = x[i, tile] * 3
    return out


@row(
    "`hl.static_range`",
    lambda: (torch.randn(64, 4),),
    lambda x: x.sum(1),
    block_sizes=[16],
)
def unrolled(x: Tensor) -> Tensor:
    m, n = x.size()
    n = hl.specialize(n)
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        total = hl.zeros([tile], dtype=torch.float32)
        for j in hl.static_range(n):
            total += x[tile, j]
        out[tile] = total
    return out


@row(
    "a loop that ends where a tensor says",
    lambda: (torch.randn(5, 40), torch.tensor([3, 40, 0, 17, 8])),
    lambda x, ends: torch.stack([r[:e].sum() for r, e in zip(x, ends, strict=True)]),
    block_sizes=[16],
)
def dynamic_range(x: Tensor, ends: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for i in hl.grid(x.size(0)):
        end = ends[i]
        total = hl.zeros([], dtype=torch.float32)
        for tile in hl.tile(end):
            total += x[i, tile].sum()
        out[i] = total
    return out


@row("`hl.full` and `hl.arange`", lambda: (torch.randn(32, 8),),
     lambda x: x + 2.5 + torch.arange(8), block_sizes=[16])  # fmt: skip
def full_arange(x: Tensor) -> Tensor:
    n = hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        plus = hl.full([tile, n], 2.5, dtype=torch.float32)
        out[tile, :] = x[tile, :] + plus + hl.arange(n)[None, :]
    return out


@row(
    "several device loops, one after the other",
    one,
    lambda x: (x * 2, x.exp()),
    block_sizes=[32, 16],
)
def several_loops(x: Tensor) -> tuple[Tensor, Tensor]:
    doubled = torch.empty_like(x)
    raised = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        doubled[tile] = x[tile] * 2
    for tile in hl.tile(x.size(0)):
        raised[tile] = x[tile].exp()
    return doubled, raised


@row("several outputs of several dtypes", one, lambda x: (x.sin(), x > 0, (x * 8).to(torch.int32)),
     block_sizes=[32])  # fmt: skip
def several_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wave = torch.empty_like(x)
    positive = torch.empty(x.size(), dtype=torch.bool, device=x.device)
    whole = torch.empty(x.size(), dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        wave[tile] = x[tile].sin()
        positive[tile] = x[tile] > 0
        whole[tile] = (x[tile] * 8).to(torch.int32)
    return wave, positive, whole


@row("writing to an argument", one, lambda x: x * 0.5, block_sizes=[32])
def in_place(x: Tensor) -> Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * 0.5
    return x


@row(
    "loops with unroll factors and stages",
    lambda: (torch.randn(16, 64),),
    lambda x: x.sum(1),
    block_sizes=[8, 16],
    range_unroll_factors=[0, 2],
    range_num_stages=[0, 2],
)
def loop_options(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            total += x[tile_m, tile_n].sum(1)
        out[tile_m] = total
    return out


@row("block pointers (`indexing=block_ptr`)", matrix, lambda x: x + 4, block_sizes=[8, 16],
     indexing="block_ptr")  # fmt: skip
def block_pointers(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 4
    return out


@row("hints for a GPU's caches and registers", one, lambda x: x * 5, block_sizes=[32],
     load_eviction_policies=["last"], maxnreg=64)  # fmt: skip
def gpu_hints(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 5
    return out


@row("an empty tensor", lambda: one(0), lambda x: x + 1, block_sizes=[32])
def empty(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    return out


@row("tensor descriptors (`indexing=tensor_descriptor`)", lambda: matrix(32, 32), lambda x: x + 4,
     block_sizes=[8, 16], indexing="tensor_descriptor")  # fmt: skip
def tensor_descriptors(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 4
    return out
