"""What prevents a replay may pass: calls are then replayed again, and what changes to and fro is
recorded once for each state."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import tzero
from tests.plans.hosts import scaled
from tests.plans.tiers import Pair
from tests.tiers import of_tier
from tzero.plans import table

pytestmark = pytest.mark.usefixtures("replaying")

X = torch.arange(4, dtype=torch.float32)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).requires_grad_(False)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.linear(x), 3.0 if self.training else 2.0)


def of_model(tier: int) -> tuple[Model, Any]:
    model = Model()
    return model, of_tier(tier, model.step)


def replays(kernel: Any) -> int:
    stats = kernel.stats()
    return int(stats.native_replays + stats.python_replays)


def test_hooks_that_are_removed(tier: int) -> None:
    model, kernel = of_model(tier)
    for times in (4, 40):
        with torch.no_grad():
            kernel(X)
            handle = model.linear.register_full_backward_hook(lambda module, given, result: None)
            for _ in range(times):
                assert torch.equal(kernel(X), model.step(X))
            assert "has hooks" in kernel.explain(X).refusal
            handle.remove()
            before = replays(kernel)
            for _ in range(200):
                kernel(X)
        assert replays(kernel) > before + 60
        assert torch.equal(kernel(X), model.step(X))
        assert not kernel.explain(X).refusal


def test_hooks_that_are_there_at_first(tier: int) -> None:
    model, kernel = of_model(tier)
    handle = model.linear.register_forward_hook(lambda module, given, result: None)
    kernel(X)
    handle.remove()
    for _ in range(3):
        kernel(X)
    assert replays(kernel) == 2


def test_a_weight_that_changes_for_a_time(tier: int) -> None:
    model, kernel = of_model(tier)
    for k in range(100):
        model.linear.weight = nn.Parameter(torch.full((4, 4), float(k)), requires_grad=False)
        assert torch.equal(kernel(X), model.step(X))
    assert kernel.stats().recordings < 25
    for _ in range(200):
        kernel(X)
    assert replays(kernel) > 50
    assert torch.equal(kernel(X), model.step(X))


def test_a_weight_that_changes_now_and_then(tier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_WORTHWHILE", 4)
    model, kernel = of_model(tier)
    for k in range(40):
        model.linear.weight = nn.Parameter(torch.full((4, 4), float(k)), requires_grad=False)
        for _ in range(6):
            assert torch.equal(kernel(X), model.step(X))
    assert kernel.stats().recordings == 40
    assert replays(kernel) == 40 * 5


def test_a_plan_lets_go_of_weights_that_were_replaced(tier: int) -> None:
    model, kernel = of_model(tier)
    seen = []
    for _ in range(4):
        model.linear.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        seen.append(weakref.ref(model.linear.weight))
        kernel(X)
        kernel(X)
    gc.collect()
    assert [each() is None for each in seen] == [True, True, True, False]


def test_a_flag_that_changes_to_and_fro_is_recorded_twice(tier: int) -> None:
    model, kernel = of_model(tier)
    for k in range(60):
        model.train(k % 3 == 0)
        assert torch.equal(kernel(X), model.step(X))
    assert kernel.stats().recordings == 2
    assert replays(kernel) == 58


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def halved(x):
    return scaled(X, 2.0) + torch.ones(4).sum() + x / 2


def test_the_default_dtype_changes_to_and_fro(tier: int) -> None:
    found = Pair(tier, halved)
    for k in range(12):
        with default_dtype((torch.float32, torch.float64)[k % 2]):
            found(torch.arange(4))
    assert found.kernel.stats().recordings == 2
    assert replays(found.kernel) == 10


READS_A_VALUE = True


def sometimes(x):
    out = scaled(x, 2.0)
    return out * float(out.sum()) if READS_A_VALUE else out


def test_a_reason_that_seems_to_last_is_looked_at_again(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_LONG_WAIT", 8)
    found = Pair(tier, sometimes)
    for _ in range(30):
        found(X)
    assert found.kernel.stats().recordings == 0
    monkeypatch.setitem(globals(), "READS_A_VALUE", False)
    for _ in range(40):
        found(X)
    assert replays(found.kernel) > 0
    assert not found.kernel.explain(X).refusal


@pytest.mark.usefixtures("exact")  # with open sizes a second call records it by its source
def test_a_sealed_process_records_nothing_again(tier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_LONG_WAIT", 2)
    kernel = of_tier(tier, sometimes)
    kernel(X)
    plain = kernel.stats()
    with tzero.seal("error"):
        for _ in range(20):
            kernel(X)
    assert kernel.stats().recordings == plain.recordings == 0
