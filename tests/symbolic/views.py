"""Random tensors, and random calls of functions that make views of them."""

from __future__ import annotations

import random
from typing import Any

import torch

__all__ = ["METHODS", "call", "tensor"]

METHODS = (
    *("view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "select"),
    *("narrow", "expand", "__getitem__", "t"),
)


def tensor(chance: random.Random, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor of up to four dimensions: contiguous, transposed, expanded or with gaps; with the
    number of dimensions of another one, if that is given."""
    count = chance.randint(1, 4) if like is None else like.dim()
    sizes = [
        chance.choice([0, 1, 2, 3, 4, 6] if chance.random() < 0.3 else [1, 2, 3, 4])
        for _ in range(count)
    ]
    if like is not None:  # some sizes are those of the other one
        sizes = [n if chance.random() < 0.4 else m for n, m in zip(sizes, like.shape, strict=True)]
    kind = chance.random()
    if kind < 0.5:
        return torch.empty(sizes)
    if kind < 0.65:
        return torch.empty(sizes[::-1]).permute(*reversed(range(count)))
    if kind < 0.8:  # gaps after each row, or between rows
        gaps = chance.choice([[*sizes[:-1], sizes[-1] + 2], [sizes[0] * 2 + 1, *sizes[1:]]])
        return torch.empty(gaps)[tuple(slice(n) for n in sizes)]
    if kind < 0.9:
        return torch.empty(sizes).repeat_interleave(2, -1)[..., ::2]
    return torch.empty([1, *sizes[1:]]).expand(sizes)


def call(
    chance: random.Random, name: str, of: torch.Tensor, like: tuple[Any, ...] | None = None
) -> tuple[Any, ...]:
    """Arguments of a method of a tensor; with the structure of others, if they are given."""
    if like is not None:
        return tuple(_near(chance, each, of) for each in like)
    d, sizes = of.dim(), list(of.shape)
    dim = lambda: chance.randint(-d, d - 1)  # noqa: E731
    if name in ("view", "reshape"):
        return _sizes(chance, sizes, of.numel())
    if name == "flatten":
        return chance.choice([(), (0, -1), (1,), (0, 1), (0, 0), (-2, -1)])
    if name == "transpose":
        return dim(), dim()
    if name == "permute":
        return tuple(chance.sample(range(d), d))
    if name == "unsqueeze":
        return (chance.randint(-d - 1, d),)
    if name == "squeeze":
        return (dim(),)
    if name == "select":
        return dim(), chance.randint(-3, 3)
    if name == "narrow":
        return dim(), chance.randint(0, 3), chance.randint(0, 4)
    if name == "expand":
        return (2,) * chance.randint(0, 1) + tuple(chance.choice([-1, n, 3]) for n in sizes)
    return () if name == "t" else _key(chance, d)


def _sizes(chance: random.Random, sizes: list[int], count: int) -> tuple[Any, ...]:
    merged = [*sizes[:-2], sizes[-1] * sizes[-2]] if len(sizes) > 1 else [*sizes, 1]
    split = [2, sizes[0] // 2, *sizes[1:]]
    every = [(-1,), (count,), (sizes[0], -1), (-1, sizes[-1]), (1, count), tuple(sizes)]
    return chance.choice([*every, tuple(merged), tuple(split), ([*sizes, 1],), (*sizes[:-1], -1)])


def _key(chance: random.Random, dims: int) -> tuple[Any, ...]:
    def part() -> Any:
        start = chance.choice([None, chance.randint(-3, 3)])
        stop = chance.choice([None, chance.randint(-4, 7)])
        cut = slice(start, stop, chance.choice([None, 1, 2, 3]))
        return chance.choice([chance.randint(-2, 2), cut, cut, None, ...])

    key = [part() for _ in range(chance.randint(1, dims))]
    if key.count(...) > 1:
        key = [each for each in key if each is not ...]
    return (key[0],) if len(key) == 1 else (tuple(key),)


def _near(chance: random.Random, value: Any, of: torch.Tensor) -> Any:
    """A value like this one, with other integers now and then."""
    if type(value) is int:
        sizes = [*of.shape, of.numel()]
        return chance.choice([value, value, value, chance.randint(-2, 6), *sizes])
    if isinstance(value, (list, tuple)):
        return type(value)(_near(chance, each, of) for each in value)
    if isinstance(value, slice):
        return slice(*(_near(chance, each, of) for each in (value.start, value.stop, value.step)))
    return value
