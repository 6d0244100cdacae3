"""Classes, methods, and attributes that someone puts on things: a change of one is a change of the
call, or the host function runs each time. Most of these were once replayed as they had been."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from tests.plans.case import Case
from tests.plans.cases_classes import CASES
from tests.plans.hosts import scaled
from tests.plans.test_world import MUTATIONS, run
from tests.plans.tiers import NotReplayed, Pair, available, of_tier, verifying


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_change_of_a_class_is_a_change_of_the_call(case: Case, pair: Any) -> None:
    run(case, pair)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.guard == "world" and not c.refused], ids=lambda case: case.name
)
def test_a_case_fails_when_its_guard_is_out(case: Case, monkeypatch: Any) -> None:
    if verifying():
        pytest.skip("verify mode does without guards")
    available(1)
    MUTATIONS[case.guard](monkeypatch)
    with pytest.raises(AssertionError) as failed:
        run(case, lambda host: Pair(1, host))
    assert not isinstance(failed.value, NotReplayed), "the mutation is not about its guard"


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("case", [c for c in CASES if not c.refused], ids=lambda case: case.name)
def test_such_plans_are_native(case: Case) -> None:
    found = Pair(available(2), case.host)
    found.replays(case.build)
    assert not [reason for reason in found.reasons() if "replayed in Python" in reason]


def of_builtins(x: torch.Tensor) -> torch.Tensor:
    return scaled(x, ITEMS_OF_BUILTINS[0])  # type: ignore[name-defined, no-any-return]  # noqa: F821


def test_what_is_in_a_list_among_the_builtins_counts(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [2.0]
    monkeypatch.setattr(builtins, "ITEMS_OF_BUILTINS", items, raising=False)
    kernel, x = of_tier(tier, of_builtins), torch.ones(3)
    for factor in (2.0, 2.0, 3.0, 2.0):
        items[0] = factor
        assert kernel(x).tolist() == [factor] * 3
