# mypy: allow-untyped-decorators, allow-any-generics
"""Calls: constants, numbers, closures, containers, keys, static and dynamic shapes, host code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import helion.language as hl
import torch
from torch import Tensor

from tests.integrations.helion.row import row

FACTOR = 3.0
"""Read by a kernel as a global."""


@row("`hl.constexpr`: an argument that code is made for", lambda: (torch.randn(50), True),
     lambda x, up: x + 1, block_sizes=[16])  # fmt: skip
def constant(x: Tensor, up: hl.constexpr) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        if up:
            out[tile] = x[tile] + 1
        else:
            out[tile] = x[tile] - 1
    return out


@row("`hl.specialize` of a size, shapes dynamic", lambda: (torch.randn(9, 8),),
     lambda x: x.sum(1), static_shapes=False, block_sizes=[4])  # fmt: skip
def specialized(x: Tensor) -> Tensor:
    n = hl.specialize(x.size(1))
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for j in hl.static_range(n):
            total += x[tile, j]
        out[tile] = total
    return out


@row("`hl.specialize` of a number", lambda: (torch.randn(50), 3), lambda x, n: x * 3,
     block_sizes=[16])  # fmt: skip
def specialized_number(x: Tensor, n: int) -> Tensor:
    times = hl.specialize(n)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for _turn in hl.static_range(times):
            total += x[tile]
        out[tile] = total
    return out


@row("numbers as arguments", lambda: (torch.randn(50), 2.5, 7), lambda x, a, b: x * a + b,
     block_sizes=[16])  # fmt: skip
def numbers(x: Tensor, scale: float, plus: int) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * scale + plus
    return out


@row("a default that is left out", lambda: (torch.randn(50),), lambda x: x * 4,
     block_sizes=[16])  # fmt: skip
def defaulted(x: Tensor, scale: float = 4.0) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * scale
    return out


@row("a global of the module", lambda: (torch.randn(50),), lambda x: x * FACTOR, block_sizes=[16])
def reads_global(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * FACTOR
    return out


def halved(x: Tensor) -> Tensor:
    return x * 0.5


@row("a function of the module, called in the kernel", lambda: (torch.randn(50),),
     lambda x: x * 0.5, block_sizes=[16])  # fmt: skip
def calls_function(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = halved(x[tile])
    return out


@row("a function as an argument", lambda: (torch.randn(50), halved), lambda x, f: f(x),
     block_sizes=[16])  # fmt: skip
def takes_function(x: Tensor, function: Callable) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


@row("a function that is left out", lambda: (torch.randn(50),), lambda x: x * 0.5,
     block_sizes=[16])  # fmt: skip
def defaulted_function(x: Tensor, function: Callable = lambda x: x * 0.5) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    return scaled


@row("a function with a number in its closure", lambda: (torch.randn(50), scaled_by(1.5)),
     lambda x, f: x * 1.5, block_sizes=[16])  # fmt: skip
def takes_closure(x: Tensor, function: Callable) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


@row("a list of tensors", lambda: ([torch.randn(50), torch.randn(50)],), lambda xs: xs[0] + xs[1],
     block_sizes=[16])  # fmt: skip
def takes_list(xs: list[Tensor]) -> Tensor:
    out = torch.empty_like(xs[0])
    for tile in hl.tile(out.size(0)):
        out[tile] = xs[0][tile] + xs[1][tile]
    return out


@row("a dict of tensors", lambda: ({"a": torch.randn(50), "b": torch.randn(50)},),
     lambda d: d["a"] - d["b"], block_sizes=[16])  # fmt: skip
def takes_dict(named: dict[str, Tensor]) -> Tensor:
    out = torch.empty_like(named["a"])
    for tile in hl.tile(out.size(0)):
        out[tile] = named["a"][tile] - named["b"][tile]
    return out


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@row("a named tuple of tensors", lambda: (Pair(torch.randn(50), torch.randn(50)),),
     lambda p: p.first * p.second, block_sizes=[16])  # fmt: skip
def takes_named_tuple(pair: Pair) -> Tensor:
    first, second = pair.first, pair.second
    out = torch.empty_like(first)
    for tile in hl.tile(out.size(0)):
        out[tile] = first[tile] * second[tile]
    return out


@dataclasses.dataclass(frozen=True)
class Weights:
    scale: Tensor
    plus: float


@row("a dataclass with a tensor and a number", lambda: (torch.randn(50),
     Weights(torch.randn(50), 2.0)), lambda x, w: x * w.scale + 2, block_sizes=[16])  # fmt: skip
def takes_dataclass(x: Tensor, weights: Weights) -> Tensor:
    scale = weights.scale
    plus = weights.plus
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * scale[tile] + plus
    return out


@row("a tensor that may be None", lambda: (torch.randn(50), None), lambda x, y: x,
     block_sizes=[16])  # fmt: skip
def optional(x: Tensor, y: Tensor | None) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        if y is not None:
            out[tile] = x[tile] + y[tile]
        else:
            out[tile] = x[tile]
    return out


@row("a dtype as an argument", lambda: (torch.randn(50), torch.float64), lambda x, d: x.to(d),
     block_sizes=[16])  # fmt: skip
def takes_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.size(), dtype=dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile].to(dtype)
    return out


@row("`key=`: a function that decides what is told apart", lambda: (torch.randn(50), 2),
     lambda x, n: x * 2, key=lambda x, n: n, static_shapes=False, block_sizes=[16])  # fmt: skip
def keyed(x: Tensor, n: int) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * n
    return out


@row("dynamic shapes, one dimension", lambda: (torch.randn(77), torch.randn(77)), torch.add,
     static_shapes=False, block_sizes=[16])  # fmt: skip
def dynamic_1d(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


@row("dynamic shapes, matmul", lambda: (torch.randn(20, 33), torch.randn(33, 18)), torch.matmul,
     static_shapes=False, block_sizes=[16, 16, 16], rtol=1e-4, atol=1e-4)  # fmt: skip
def dynamic_matmul(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@row("dynamic shapes, a reduction", lambda: (torch.randn(7, 29),), lambda x: x.softmax(1),
     static_shapes=False, block_sizes=[4])  # fmt: skip
def dynamic_softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=1)
    return out


@row("host code before and after the loop", lambda: (torch.randn(12, 8),),
     lambda x: (x.t().contiguous() * 2).sum(0), block_sizes=[8, 8], atol=1e-4)  # fmt: skip
def host_code(x: Tensor) -> Tensor:
    turned = x.t().contiguous()
    out = torch.empty_like(turned)
    for tile in hl.tile(turned.size()):
        out[tile] = turned[tile] * 2
    return out.sum(0)


@row("an `if` on the host, over a size", lambda: (torch.randn(50),), lambda x: x * 2,
     block_sizes=[16])  # fmt: skip
def host_if(x: Tensor) -> Tensor:
    factor = 2.0 if x.size(0) < 64 else 3.0
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


@row("an assertion on the host", lambda: (torch.randn(50), torch.randn(50)), torch.mul,
     block_sizes=[16])  # fmt: skip
def host_assert(x: Tensor, y: Tensor) -> Tensor:
    assert x.size() == y.size(), "sizes differ"
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * y[tile]
    return out


@row("nothing returned: an output that the caller gives",
     lambda: (torch.randn(50), torch.zeros(50)), lambda x, out: None,
     block_sizes=[16])  # fmt: skip
def into_output(x: Tensor, out: Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
