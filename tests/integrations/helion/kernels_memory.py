# mypy: allow-untyped-decorators, allow-any-generics
"""Memory: tensors as indices, jagged data, atomics of every kind, random numbers, Triton inside."""

from __future__ import annotations

import helion.language as hl
import torch
from torch import Tensor

from tests.integrations.helion.row import row


@row("a gather: rows of a table by index", lambda: (torch.randn(10, 24),
     torch.randint(0, 10, (17,))), lambda table, at: table[at], block_sizes=[8, 16])  # fmt: skip
def embedding(table: Tensor, at: Tensor) -> Tensor:
    n, d = at.size(0), table.size(1)
    out = torch.empty([n, d], dtype=table.dtype, device=table.device)
    for tile_n, tile_d in hl.tile([n, d]):
        out[tile_n, tile_d] = table[at[tile_n], tile_d]
    return out


@row("a scatter: a store by index", lambda: (torch.randn(16), torch.randperm(16)),
     lambda x, at: torch.empty(16).scatter(0, at, x), block_sizes=[8])  # fmt: skip
def scattered(x: Tensor, at: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.store(out, [at[tile]], x[tile])
    return out


@row("`torch.gather`", lambda: (torch.randn(8, 16), torch.randint(0, 16, (8, 4))),
     lambda x, at: x.gather(1, at), block_sizes=[4])  # fmt: skip
def torch_gather(x: Tensor, at: Tensor) -> Tensor:
    out = torch.empty(at.size(), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.gather(x[tile, :], 1, at[tile, :])
    return out


LENGTHS = (3, 0, 12, 7, 1)


def jagged() -> tuple[Tensor, Tensor]:
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    return torch.randn(int(ends[-1]), 8), ends


def jagged_sums(data: Tensor, ends: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in data.split(LENGTHS)])


@row("jagged rows, with masks of our own", jagged, jagged_sums, block_sizes=[4, 8, 4], atol=1e-4)
def jagged_masked(data: Tensor, ends: Tensor) -> Tensor:
    rows, width = ends.size(0) - 1, data.size(1)
    flat = data.view(-1)
    out = torch.zeros([rows, width], dtype=data.dtype, device=data.device)
    for tile_b in hl.tile(rows):
        starts = ends[tile_b]
        count = ends[tile_b.index + 1] - starts
        most = count.amax()
        for tile_m in hl.tile(width):
            total = hl.zeros([tile_b, tile_m], dtype=torch.float32)
            for tile_k in hl.tile(0, most):
                at = starts[:, None] + tile_k.index[None, :]
                flat_at = at[:, :, None] * width + tile_m.index[None, None, :]
                inside = (tile_k.index[None, :] < count[:, None])[:, :, None]
                inside = inside & (tile_m.index < width)[None, None, :]
                total = total + hl.load(flat, [flat_at], extra_mask=inside).sum(dim=1)
            out[tile_b, tile_m] = total
    return out


@row("`hl.jagged_tile`", lambda: (torch.randn(6, 20), torch.tensor([3, 20, 0, 7, 12, 1])),
     lambda x, n: torch.stack([r[:e].sum() for r, e in zip(x, n, strict=True)]),
     block_sizes=[4, 8], atol=1e-4)  # fmt: skip
def jagged_tile(x: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros([x.size(0)], dtype=x.dtype, device=x.device)
    for tile_b in hl.tile(x.size(0)):
        count = lengths[tile_b]
        total = hl.zeros([tile_b], dtype=torch.float32)
        for tile_k in hl.jagged_tile(count):
            total = total + x[tile_b, tile_k].sum(dim=1)
        out[tile_b] = total
    return out


@row("a histogram by `hl.atomic_add`", lambda: (torch.randint(0, 8, (100,)),),
     lambda x: torch.bincount(x, minlength=8).int(), block_sizes=[32])  # fmt: skip
def histogram(x: Tensor) -> Tensor:
    out = torch.zeros([8], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile]], 1)
    return out


def integers(n: int = 64) -> tuple[Tensor]:
    return (torch.randint(0, 1 << 20, (n,), dtype=torch.int32),)


def folded(x: Tensor) -> tuple[Tensor, ...]:
    every, some, odd = -1, 0, 0
    for value in x.tolist():
        every, some, odd = every & value, some | value, odd ^ value
    return tuple(torch.tensor([v], dtype=torch.int32) for v in (every, some, odd))


@row("`hl.atomic_and`, `atomic_or`, `atomic_xor`", integers, folded)
def atomic_bits(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    every = torch.full([1], -1, dtype=torch.int32, device=x.device)
    some = torch.zeros([1], dtype=torch.int32, device=x.device)
    odd = torch.zeros([1], dtype=torch.int32, device=x.device)
    for i in hl.grid(x.size(0)):
        value = x[i]
        hl.atomic_and(every, [0], value)
        hl.atomic_or(some, [0], value)
        hl.atomic_xor(odd, [0], value)
    return every, some, odd


@row("`hl.atomic_max`, `atomic_min`", integers, lambda x: (x.amax(0, True), x.amin(0, True)),
     block_sizes=[16])  # fmt: skip
def atomic_extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.zeros([1], dtype=torch.int32, device=x.device)
    low = torch.full([1], 1 << 30, dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_max(top, [0], x[tile].amax())
        hl.atomic_min(low, [0], x[tile].amin())
    return top, low


@row("`hl.atomic_xchg` and the value that was there", integers, lambda x: (x * 0 + 5, x),
     block_sizes=[16])  # fmt: skip
def atomic_exchange(x: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        before[tile] = hl.atomic_xchg(x, [tile], 5)
    return x, before


@row("`hl.atomic_cas`", lambda: (torch.arange(64, dtype=torch.int32) % 2,),
     lambda x: torch.where(x == 0, 9, x), block_sizes=[16], since="1.5.1")  # fmt: skip
def atomic_compare(x: Tensor) -> Tensor:
    for tile in hl.tile(x.size(0)):
        hl.atomic_cas(x, [tile], 0, 9)
    return x


@row("`hl.rand`", lambda: (torch.zeros(4096),), lambda x: torch.tensor(0.5), block_sizes=[256],
     atol=2e-2)  # fmt: skip
def random_uniform(x: Tensor) -> Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.rand([tile], seed=42)
    return x.mean()


@row("`hl.randint`", lambda: (torch.zeros(512, dtype=torch.int32),),
     lambda x: (torch.tensor(3, dtype=torch.int32), torch.tensor(8, dtype=torch.int32)),
     block_sizes=[128])  # fmt: skip
def random_integers(x: Tensor) -> tuple[Tensor, Tensor]:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.randint([tile], low=3, high=9, seed=7)
    return x.amin(), x.amax()


@row("dropout: random numbers by a seed that is an argument", lambda: (torch.ones(4096), 11),
     lambda x, seed: torch.tensor(1.0), block_sizes=[512], atol=5e-2)  # fmt: skip
def dropout(x: Tensor, seed: int) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        keep = hl.rand([tile], seed=seed) > 0.25
        out[tile] = torch.where(keep, x[tile] / 0.75, 0.0)
    return out.mean()


@row("`hl.inline_triton`", lambda: (torch.randn(64),), lambda x: x * 3 + 1,
     block_sizes=[16])  # fmt: skip
def inline_triton(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        out[tile] = hl.inline_triton("{0} * 3 + 1", args=(value,), output_like=value)
    return out


@row("`hl.triton_kernel`: a Triton function inside", lambda: (torch.randn(64),), lambda x: x * x,
     block_sizes=[16])  # fmt: skip
def inner_triton(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        out[tile] = hl.triton_kernel(
            "def squared(v):\n    return v * v\n", args=(value,), output_like=value
        )
    return out


@row("`hl.stacktensor_like`: tensors by their addresses", lambda: stacked(),
     lambda pointers, like: like.expand(3, -1) * torch.tensor([[1.0], [2.0], [3.0]]),
     block_sizes=[8])  # fmt: skip
def stacked_tensors(pointers: Tensor, like: Tensor) -> Tensor:
    count = hl.specialize(pointers.size(0))
    out = torch.empty([count, like.size(0)], dtype=like.dtype, device=like.device)
    for tile in hl.tile(like.size(0)):
        out[:, tile] = hl.stacktensor_like(like, pointers[:])[tile]
    return out


KEPT = [torch.arange(16.0) * factor for factor in (1, 2, 3)]


def stacked() -> tuple[Tensor, Tensor]:
    pointers = torch.tensor([t.data_ptr() for t in KEPT], dtype=torch.uint64)
    return pointers, KEPT[0].clone()


@row("integers of 64 bits", lambda: (torch.randint(0, 1 << 60, (50,)),),
     lambda x: (x >> 3) ^ (x % 7), block_sizes=[16])  # fmt: skip
def wide_integers(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile] >> 3) ^ (x[tile] % 7)
    return out


@row("booleans", lambda: (torch.rand(50) > 0.5, torch.rand(50) > 0.5),
     lambda x, y: (x & ~y) | (y & ~x), block_sizes=[16])  # fmt: skip
def booleans(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile] & ~y[tile]) | (y[tile] & ~x[tile])
    return out


@row("float64", lambda: (torch.randn(50, dtype=torch.float64),), lambda x: torch.log1p(x.abs()),
     block_sizes=[16], rtol=1e-12, atol=1e-12)  # fmt: skip
def doubles(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.log1p(x[tile].abs())
    return out


@row("float16 in, float32 out", lambda: (torch.randn(50).half(),), lambda x: x.float().tanh(),
     block_sizes=[16], atol=1e-4)  # fmt: skip
def widened(x: Tensor) -> Tensor:
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.tanh(x[tile].to(torch.float32))
    return out


@row("float8 as storage", lambda: (torch.randn(64).to(torch.float8_e5m2),),
     lambda x: x.float() * 2, block_sizes=[16])  # fmt: skip
def float8(x: Tensor) -> Tensor:
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile].to(torch.float32) * 2
    return out


@row("`device_print`", lambda: (torch.randn(16),), lambda x: x, block_sizes=[16])
def printing(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.device_print("x =", x[tile])
        out[tile] = x[tile]
    return out
