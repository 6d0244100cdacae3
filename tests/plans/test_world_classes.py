"""Classes, methods and added attributes: if one changes, the next call is made anew, or the host
function runs each time. Most of these were once replayed wrongly."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from tests.plans import cases_attributes, cases_classes
from tests.plans.case import Case
from tests.plans.hosts import scaled
from tests.plans.test_world import MUTATIONS, run
from tests.plans.tiers import NotReplayed, Pair, available, of_tier, verifying
from tests.rows import by_row

CASES = (*cases_classes.CASES, *cases_attributes.CASES)


@by_row(CASES, "case")
def test_after_a_change_the_call_is_right(case: Case, pair: Any) -> None:
    run(case, pair)


@by_row([c for c in CASES if c.guard == "world" and not c.refused], "case")
def test_a_case_fails_without_its_guard(case: Case, monkeypatch: Any) -> None:
    if verifying():
        pytest.skip("verify mode does not need guards")
    available(1)
    MUTATIONS[case.guard](monkeypatch)
    with pytest.raises(AssertionError) as failed:
        run(case, lambda host: Pair(1, host))
    assert not isinstance(failed.value, NotReplayed), "the mutation does not remove its guard"


@pytest.mark.usefixtures("replaying")
@by_row([c for c in CASES if not c.refused], "case")
def test_plans_that_use_classes_are_native(case: Case) -> None:
    found = Pair(available(2), case.host)
    found.replays(case.build)
    assert not [reason for reason in found.reasons() if "replayed in Python" in reason]


def of_builtins(x: torch.Tensor) -> torch.Tensor:
    return scaled(x, ITEMS_OF_BUILTINS[0])  # type: ignore[name-defined, no-any-return]  # noqa: F821


def test_the_contents_of_a_list_in_builtins_are_guarded(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [2.0]
    monkeypatch.setattr(builtins, "ITEMS_OF_BUILTINS", items, raising=False)
    kernel, x = of_tier(tier, of_builtins), torch.ones(3)
    for factor in (2.0, 2.0, 3.0, 2.0):
        items[0] = factor
        assert kernel(x).tolist() == [factor] * 3
