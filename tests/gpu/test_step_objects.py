# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call"
"""Steps as CUDA graphs with a cache among their arguments: each cache has a graph, which goes with
it, and whatever changes of the cache is seen."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tzero

pytestmark = pytest.mark.gpu

ROWS, WIDTH = 4096, 1024


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Cache:
    def __init__(self) -> None:
        self.keys = [torch.zeros(ROWS, WIDTH, device="cuda") for _ in range(2)]
        self.scale = 2.0

    def update(self, layer: int, x: Tensor, at: Tensor) -> Tensor:
        self.keys[layer].index_copy_(0, at, x * self.scale)
        return self.keys[layer]


class Output(dict[str, Any]):
    pass


def step(x: Tensor, at: Tensor, cache: Cache) -> Output:
    made = Output()
    for layer in range(2):
        x = torch.tanh(x + cache.update(layer, x, at).sum(0, keepdim=True))
    made["x"], made["cache"] = x, cache
    return made


def both(kernel: Any, caches: tuple[Cache, Cache], count: int = 5) -> None:
    """Steps with both caches, which must give the same bits."""
    for k in range(count):
        x, at = torch.randn(1, WIDTH, device="cuda"), torch.tensor([k], device="cuda")
        found, wanted = kernel(x, at, caches[1]), step(x, at, caches[0])
        assert type(found) is Output and found["cache"] is caches[1]
        assert torch.equal(found["x"], wanted["x"])
        assert all(map(torch.equal, caches[0].keys, caches[1].keys))


def launched(kernel: Any) -> int:
    return sum(int(each.launched) for each in kernel.capturing.made())


def test_a_step_with_a_cache_is_launched_as_a_graph() -> None:
    kernel: Any = tzero.kernel(graph=True)(step)
    both(kernel, (Cache(), Cache()), 8)
    assert kernel.stats().recordings == 1
    assert kernel.stats().native_replays == 6


def test_caches_take_turns_and_what_changes_of_one_is_seen() -> None:
    kernel: Any = tzero.kernel(graph=True)(step)
    every = [(Cache(), Cache()) for _ in range(3)]
    for k in range(6):
        for caches in every:
            both(kernel, caches, 3)
        assert launched(kernel) > 0
        for cache in every[k % 3]:
            if k < 2:
                cache.keys[0] = cache.keys[0] * 0.5
            elif k < 4:
                cache.keys[1].data = cache.keys[1].data.clone().mul_(0.5)
            else:
                cache.scale = -1.0


def test_the_memory_of_a_cache_that_is_gone_is_free() -> None:
    kernel: Any = tzero.kernel(graph=True)(step)
    size = 2 * ROWS * WIDTH * 4
    before = 0
    gc.collect()
    gc.disable()
    try:
        for k in range(12):
            caches = Cache(), Cache()
            both(kernel, caches)
            del caches
            torch.cuda.synchronize()
            used = torch.cuda.memory_allocated()
            before = before or used
            assert used - before < size / 2, f"after {k + 1} caches"
    finally:
        gc.enable()
    assert len(list(kernel.capturing.made())) <= 2


def test_a_copy_of_a_cache_has_a_graph_of_its_own() -> None:
    kernel: Any = tzero.kernel(graph=True)(step)
    caches = Cache(), Cache()
    both(kernel, caches)
    others = copy.deepcopy(caches)
    for pair in (others, caches, others):
        both(kernel, pair)
