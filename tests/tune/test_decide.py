"""A first call chooses a config, and later calls use it."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tzero
from tests.tune.kernels import LARGE, SMALL, WRONG, X, double, kernel, observed
from tzero import Config, Space
from tzero.errors import InvalidArgument, InvalidKernel
from tzero.tune.kernel_search import KernelSearch

pytestmark = pytest.mark.usefixtures("own_memory")


def test_a_first_call_finds_a_config_and_later_calls_use_it(tier: int) -> None:
    made = kernel()
    for _ in range(4):
        torch.testing.assert_close(made(X), X * 2)
    bound = made.bind(X)
    assert bound.choice is not None
    assert bound.choice.how == "tuned"
    assert bound.config == bound.choice.variant
    assert bound.config in (SMALL, LARGE)
    assert re.search("tuned: the (fastest|first) of 2 that were timed", str(made.explain(X)))


def test_each_shape_is_tuned_by_itself() -> None:
    made = kernel()
    made(X)
    made(X[:10])
    assert len(made.tuning.searches) == 2


def test_a_remembered_config_is_not_timed_again() -> None:
    kernel()(X)
    made = kernel()
    found, watching = observed()
    with watching:
        made(X)
    choice = made.bind(X).choice
    assert choice is not None
    assert choice.how == "cached"
    assert made.tuning.searches == {}
    assert any("an earlier search found it" in each for each in found)


def test_binding_times_nothing() -> None:
    made = kernel()
    bound = made.bind(X)
    assert bound.choice is None
    assert made.tuning.searches == {}
    assert "to be chosen at the first call" in str(made.explain(X))


def test_one_config_is_pinned() -> None:
    made = tzero.kernel(config=SMALL)(double)
    made(X)
    assert str(made.bind(X).choice) == f"{SMALL!r} (pinned: config= asks for it)"
    assert "(pinned: config= asks for it)" in str(made.explain(X))


def test_a_config_that_was_set_is_pinned_and_nothing_is_timed() -> None:
    made = kernel()
    made.bind(X).set_config(LARGE)
    made(X)
    assert made.tuning.searches == {}
    assert made.bind(X).choice.how == "pinned"  # type: ignore[union-attr]


def test_concurrent_first_calls_share_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel()
    begun: list[int] = []
    plain = KernelSearch.run

    def counted(*given: Any) -> Any:
        begun.append(1)
        return plain(*given)

    monkeypatch.setattr(KernelSearch, "run", counted)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(made(X))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(begun) == 1
    assert all(torch.equal(each, X * 2) for each in results)


def test_a_kernel_in_a_recorded_kernel_is_tuned_and_its_timing_is_not_recorded(tier: int) -> None:
    inner = kernel()

    @tzero.kernel
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(inner(x))

    for _ in range(3):
        torch.testing.assert_close(outer(X), X * 4)
    assert inner.bind(X).choice.how == "tuned"  # type: ignore[union-attr]
    plan = outer.explain(X).plan
    if tier:
        assert plan is not None
        assert str(plan).count("launch scale_kernel") == 2


def test_tuning_for_another_shape_keeps_the_plans_of_outer_kernels() -> None:
    inner = kernel()

    @tzero.kernel
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    outer(X)
    before = inner.changes
    for n in range(20, 24):
        inner(X[:n])
    assert inner.changes == before
    assert outer.explain(X).refusal == ""


class Passing(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def test_where_nothing_can_be_timed_a_later_call_decides() -> None:
    made = kernel()
    found, watching = observed()
    with watching, Passing():
        torch.testing.assert_close(made(X), X * 2)
    assert any("not timed now: a torch dispatch mode is on" in each for each in found)
    assert "nothing can be timed now" in str(made.bind(X).choice)
    assert made.tuning.searches == {}
    torch.testing.assert_close(made(X), X * 2)
    assert made.bind(X).choice.how == "tuned"  # type: ignore[union-attr]


@pytest.mark.parametrize("configs", [[], Space(BLOCK=[16], where=lambda config: False)])
def test_an_empty_space_is_an_error(configs: Any) -> None:
    with pytest.raises((InvalidKernel, InvalidArgument), match=r"empty|allows none"):
        kernel(configs)


@pytest.mark.parametrize("when", ["while it is recorded", "before it is kept"])
def test_a_config_that_is_set_during_a_call_is_used_by_later_calls(
    tier: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def ask() -> None:
        if not asked:
            asked.append(1)
            made.bind(X).set_config(WRONG)  # as another thread may

    made = kernel()
    made.bind(X).set_config(SMALL)
    planner = made.planner
    if planner is None:
        pytest.skip("tier 0 keeps nothing")
    place = "_record" if when == "before it is kept" else "_subject"
    before = getattr(planner, place)

    def then(*given: Any, **named: Any) -> Any:
        result = before(*given, **named)
        ask()
        return result

    monkeypatch.setattr(planner, place, then)
    made(X)
    assert asked
    for _ in range(4):
        assert torch.equal(made(X), X * 3)


def test_a_config_that_is_set_during_a_search_is_kept() -> None:
    def setting(x: torch.Tensor, config: Config) -> torch.Tensor:
        bound = made.bind(x)
        if bound.undecided:
            bound.set_config(WRONG)  # as another thread may
        return double(x, config)

    made = tzero.kernel(configs=[SMALL, LARGE])(setting)
    real = X.clone()
    assert torch.equal(made(real), real * 3)
    assert made.bind(real).choice.how == "pinned"  # type: ignore[union-attr]


def test_a_first_call_under_another_default_device_is_tuned() -> None:
    made = kernel()
    with torch.device("meta"):
        assert torch.equal(made(X), X * 2)
    assert made.bind(X).choice.how == "tuned"  # type: ignore[union-attr]
