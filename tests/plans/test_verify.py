"""Verify mode records every call again, and reports a host function that is not the same each time,
with the fact that differs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tzero
from tests.plans import elsewhere
from tests.plans.hosts import added, increased, scaled
from tests.plans.kernels import BLOCK, put, scale
from tests.plans.tiers import Pair, counted, of_tier
from tzero import settings


@pytest.fixture(autouse=True)
def verify() -> Iterator[None]:
    with settings.override(verify=True):
        yield


class Hidden:
    """A number that plans do not see: state of the interpreter, which a library function reads."""

    def __enter__(self) -> Callable[[int], None]:
        self.before = sys.getrecursionlimit()
        sys.setrecursionlimit(BASE)  # compilers raise it
        return lambda k: sys.setrecursionlimit(BASE + k)

    def __exit__(self, *error: Any) -> None:
        sys.setrecursionlimit(self.before)


BASE = sys.getrecursionlimit()


def hidden() -> int:
    return sys.getrecursionlimit() - BASE


def hidden_in_an_argument(x):
    return scaled(x, float(hidden()))


def hidden_in_a_grid(x):
    scale[(1 + hidden(),)](x, x, 2.0, x.numel(), BLOCK=BLOCK)
    return x


def hidden_in_steps(x):
    for _ in range(hidden()):
        increased(x, 1.0)
    return scaled(x, 2.0)


def hidden_in_geometry(x):
    return scaled(torch.ones(3 + hidden()), 2.0)


def hidden_in_a_view(x):
    return scaled(x[hidden() :], 2.0)


def hidden_in_the_result(x):
    return scaled(x, 2.0), hidden()


def hidden_in_a_branch(x):
    return (x + 1, scaled(x, 2.0)) if hidden() else (scaled(x, 2.0),)


def hidden_in_a_refusal(x):
    return scaled(x, x.tolist()[0] if hidden() else 2.0)


ROWS: list[tuple[Any, str, str]] = [
    (hidden_in_an_argument, "step 1", "launch scale"),
    (hidden_in_a_grid, "step 0", "launch scale[(2, 1, 1)]"),
    (hidden_in_steps, "step 0", "launch increase"),
    (hidden_in_geometry, "the tensors", "(4,)"),
    (hidden_in_a_view, "the tensors", "(4,)"),
    (hidden_in_the_result, "its result", "1"),
    (hidden_in_a_branch, "the tensors", ""),
    (hidden_in_a_refusal, "it", "not replayed"),
]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("host", "fact", "now"), ROWS)
def test_what_plans_do_not_see_is_a_drift_that_names_the_fact(
    host: Any, fact: str, now: str, tier: int
) -> None:
    kernel = of_tier(tier, host)
    with Hidden() as hide:
        for _ in range(2):
            kernel(torch.randn(5))
        hide(1)
        with pytest.raises(tzero.PlanDrift) as drift:
            kernel(torch.randn(5))
        assert (drift.value.kernel, drift.value.fact) == (host.__name__, fact)
        assert now in drift.value.now
        assert drift.value.now != drift.value.before
        hide(0)
        kernel(torch.randn(5))


def ordinary(x, y, by):
    out = torch.zeros(5)
    a, b = x.view(1, 5).split([2, 3], dim=1)
    increased(out, by)
    return (
        added(out, x + torch.rand(5)),
        torch.cat([a, b], dim=1),
        y[..., None].T,
        torch.full((2,), by),
    )


def test_ordinary_host_functions_do_not_drift(pair: Any) -> None:
    found: Pair = pair(ordinary)
    for by in (1.0, 1.0, 2.0, 1.0, 2.0, -0.0, 0.0, float("nan"), float("nan")):
        found(torch.randn(5), torch.randn(5), by)


def passed_on(out, value):
    put[(1,)](out, value)
    return out


def test_numbers_that_are_passed_on_do_not_drift(pair: Any) -> None:
    found: Pair = pair(passed_on)
    for value in (1, 2, 16, 2**40, 3, True, 1.5, 2.5):
        found(torch.zeros(1, dtype=torch.float64), value)


NUMBER = 2.0


def of_the_world(x):
    return scaled(x, NUMBER * elsewhere.NUMBER)


def test_a_change_of_the_world_is_no_drift(pair: Any, monkeypatch: Any) -> None:
    found: Pair = pair(of_the_world)
    for name, module in (("NUMBER", sys.modules[__name__]), ("NUMBER", elsewhere)):
        found(torch.randn(3))
        monkeypatch.setattr(module, name, 7.0)
        found(torch.randn(3))
        found(torch.randn(3))


def test_every_call_runs_the_host_function_once(tier: int) -> None:
    kernel = of_tier(tier, of_the_world)
    for _ in range(3):
        with counted(of_the_world) as runs:
            kernel(torch.randn(3))
        assert runs == [1]


def test_verify_mode_may_be_turned_on_and_off_between_calls(tier: int) -> None:
    kernel = of_tier(tier, hidden_in_an_argument)
    with Hidden() as hide:
        hide(2)
        with settings.override(verify=False):
            kernel(torch.ones(3))
            assert kernel(torch.ones(3)).tolist() == [2.0] * 3
        hide(5)
        with pytest.raises(tzero.PlanDrift):
            kernel(torch.ones(3))
        with settings.override(verify=False):
            assert kernel(torch.ones(3)).tolist() == [2.0] * 3  # as the plan says, which is why
