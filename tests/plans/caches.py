# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""A cache in an object, as models have them, and the same steps with two of them, of which one is
an argument of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tzero
from tests.plans.tiers import verifying

__all__ = ["Cache", "Layer", "Steps", "kernel", "step"]

kernel: Any = tzero.kernel(graph=True)


class Layer:
    def __init__(self, width: int = 4) -> None:
        self.keys = torch.zeros(8, width)
        self.scale = 2.0

    def update(self, x: Tensor, at: Tensor) -> Tensor:
        self.keys.index_copy_(0, at, x * self.scale)
        return self.keys


class Cache:
    factor = 3.0

    def __init__(self, layers: int = 2, width: int = 4) -> None:
        self.layers = [Layer(width) for _ in range(layers)]
        self.shift = 0.5

    def summed(self, x: Tensor, at: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer.update(x, at).sum(0, keepdim=True)[:, : x.shape[1]]
        return x * self.factor + self.shift


def step(x: Tensor, at: Tensor, cache: Any) -> Tensor:
    return cache.summed(x, at)


def tensors(cache: Any) -> list[Tensor]:
    return [layer.keys for layer in cache.layers]


class Steps:
    """The same steps with two caches, of which the second is an argument of a kernel."""

    def __init__(self, make: Callable[[], Any] = Cache, function: Any = step) -> None:
        torch.manual_seed(0)
        self.caches = make(), make()
        self.plain, self.kernel = function, kernel(function)
        self.number = 0

    def make(self, count: int = 4) -> None:
        for _ in range(count):
            self.number += 1
            x, at = torch.randn(1, 4), torch.tensor([self.number % 8])
            found = self.kernel(x, at, self.caches[1])
            assert torch.equal(found, self.plain(x, at, self.caches[0]))
            pairs = zip(*map(tensors, self.caches), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)

    def replays(self, count: int = 3) -> None:
        """The latest of several calls are replayed."""
        self.make(3)
        before = self.kernel.stats().native_replays
        self.make(count)
        why = self.why()
        assert verifying() or self.kernel.stats().native_replays == before + count, why

    def why(self) -> str:
        example = torch.randn(1, 4), torch.tensor([0]), self.caches[1]
        return str(self.kernel.explain(*example).refusal)
