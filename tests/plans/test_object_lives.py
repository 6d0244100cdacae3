# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Objects among the arguments of a step are not kept alive, and may be new in each call; threads
and copies of models have their own."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.plans.caches import Cache, Steps, kernel, step
from tests.plans.tiers import verifying
from tests.steps import stand_in
from tzero import settings
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    with torch.no_grad():
        yield stand_in(monkeypatch)


# -- lifetimes -------------------------------------------------------------------------------------


def test_plans_end_with_the_object_and_keep_nothing_of_it() -> None:
    steps = Steps()
    steps.replays()
    cache = steps.caches[1]
    gone = [weakref.ref(each) for each in (cache, cache.layers[0], cache.layers[0].keys)]
    before = len(steps.kernel.planner._lifetimes)
    gc.collect()
    gc.disable()
    try:
        steps.caches = Cache(), Cache()
        del cache
        assert verifying() or [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
    assert steps.kernel._count() == 0
    assert (before, len(steps.kernel.planner._lifetimes)) == (1, 0)
    steps.replays()


def test_a_kernel_goes_before_its_objects() -> None:
    steps = Steps()
    steps.replays()
    reference, cache = weakref.ref(steps.kernel), steps.caches[1]
    del steps
    gc.collect()
    assert reference() is None
    del cache


def test_an_object_that_its_parts_refer_to_is_not_kept_alive() -> None:
    steps = Steps()
    for cache in steps.caches:
        cache.layers[0].owner = cache
    steps.make(5)
    assert "a plan would keep it alive" in steps.why()
    reference = weakref.ref(steps.caches[1])
    steps.caches = Cache(), Cache()
    del cache
    gc.collect()
    assert reference() is None


HELD: list[Any] = []


def test_an_object_that_is_also_in_a_global_is_not_kept_alive() -> None:
    def from_both(x: Tensor, at: Tensor, cache: Cache) -> Tensor:
        return cache.summed(x, at) + HELD[0].shift

    steps = Steps(Cache, from_both)
    HELD[:] = [steps.caches[1]]
    steps.make(5)
    assert "a plan would keep it alive" in steps.why()
    reference = weakref.ref(steps.caches[1])
    steps.caches = Cache(), Cache()
    HELD.clear()
    gc.collect()
    assert reference() is None


def test_objects_made_for_each_call_are_never_recorded() -> None:
    taken = kernel(step)
    for k in range(80):
        x, at = torch.randn(1, 4), torch.tensor([k % 8])
        assert torch.equal(taken(x, at, Cache()), step(x, at, Cache()))
    assert taken.stats().recordings == 0
    assert len(taken.planner._lifetimes) <= 1


def test_the_number_of_objects_with_plans_is_bounded() -> None:
    with settings.override(max_specializations=4):
        steps, kept = Steps(), []
        for _ in range(10):
            steps.caches = Cache(), Cache()
            steps.make(4)
            kept.append(steps.caches)
        (bound,) = steps.kernel.table.bound_kernels()
        assert len(bound.plans.plans()) <= 4
        assert len(steps.kernel.planner._lifetimes) <= 4
        for caches in kept:
            steps.caches = caches
            steps.make(1)


# -- threads, copies -------------------------------------------------------------------------------


def test_threads_with_objects_of_their_own_share_a_kernel() -> None:
    taken, failed = kernel(step), []

    def run(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for shift in range(4):
                caches = Cache(), Cache()
                caches[0].shift = caches[1].shift = float(seed * 10 + shift)
                for k in range(12):
                    x, at = torch.randn(1, 4, generator=generator), torch.tensor([k % 8])
                    if not torch.equal(taken(x, at, caches[0]), step(x, at, caches[1])):
                        failed.append((seed, k))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


named = kernel(step)
named.__module__, named.__qualname__ = __name__, "named"


def test_a_pickled_kernel_is_the_kernel() -> None:
    caches = Cache(), Cache()
    for k in range(6):
        x, at = torch.randn(1, 4), torch.tensor([k])
        found = pickle.loads(pickle.dumps(named))(x, at, caches[0])
        assert torch.equal(found, step(x, at, caches[1]))


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, at: Tensor, cache: Any = None) -> Any:
        return cache.summed(self.linear(x), at)


class Model(Module):
    forward = kernel(Module.forward)


def test_a_copy_of_a_model_whose_forward_was_replaced_runs_the_copy() -> None:
    model, cache = Module(), Cache()
    model.forward = kernel(model.forward)
    x, at = torch.randn(1, 4), torch.tensor([1])
    for _ in range(4):
        model(x, at, cache=cache)
    other = copy.deepcopy(model)
    other.linear.weight.mul_(2)
    caches = copy.deepcopy(cache), copy.deepcopy(cache)
    for _ in range(4):
        wanted = caches[0].summed(other.linear(x), at)
        assert torch.equal(other(x, at, cache=caches[1]), wanted)
    assert verifying() or other.forward.stats().native_replays == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_a_model_has_plans_of_its_own(copied: Any) -> None:
    model, cache = Model().requires_grad_(False), Cache()
    x, at = torch.randn(1, 4), torch.tensor([1])
    for _ in range(4):
        model(x, at, cache=cache)
    other = copied(model)
    other.linear.weight.mul_(2)
    caches = copy.deepcopy(cache), copy.deepcopy(cache)
    for _ in range(4):
        wanted = caches[0].summed(other.linear(x), at)
        assert torch.equal(other(x, at, cache=caches[1]), wanted)
    assert verifying() or other.forward.stats().native_replays == 2
