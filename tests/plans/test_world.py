"""Everything that a host function depends on besides its arguments: after a change, the next call
gives what the host function would.

Each case must fail without its guard; that is tested in Python, where guards can be removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plans import cases_followed, cases_modes, cases_modules, cases_tensors, cases_world
from tests.plans.case import Case
from tests.plans.hosts import scaled
from tests.plans.tiers import NotReplayed, Pair, available, verifying
from tests.rows import by_row
from tzero.adapters import torch_modes
from tzero.plans import wrapper

SUBJECTS = (cases_world, cases_modules, cases_tensors, cases_modes, cases_followed)
CASES = tuple(case for subject in SUBJECTS for case in subject.CASES)


def run(case: Case, pair: Callable[..., Pair]) -> None:
    """Call before the change, after it, and after it is undone."""
    found = pair(case.host)
    if case.refused:
        found.refuses(case.build, case.refused)
    else:
        found.replays(case.build)
    with pytest.MonkeyPatch.context() as patch, case.changed(patch):
        found(*case.build())
        found(*case.build())
    found(*case.build())
    found(*case.build())


@by_row(CASES, "case")
def test_after_a_change_the_call_is_right(case: Case, pair: Any) -> None:
    run(case, pair)


def every_guard_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wrapper, "_holds", lambda plan, facts: lambda: True)


def modes_never_differ(patch: pytest.MonkeyPatch) -> None:
    now = torch_modes.now()
    patch.setattr(torch_modes, "now", lambda: now)


def modes_are_never_an_obstacle(patch: pytest.MonkeyPatch) -> None:
    modes_never_differ(patch)
    patch.setattr(torch_modes, "obstacle", lambda: "")


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "world": every_guard_holds,
    "modes": modes_never_differ,
    "obstacle": modes_are_never_an_obstacle,
}


def test_every_guard_has_a_case_and_a_mutation() -> None:
    assert {case.guard for case in CASES} == {*MUTATIONS, "none"}


@by_row([c for c in CASES if c.guard in MUTATIONS and not c.refused], "case")
def test_a_case_fails_without_its_guard(case: Case, monkeypatch: Any) -> None:
    if verifying():
        pytest.skip("verify mode does not need guards")
    available(1)
    MUTATIONS[case.guard](monkeypatch)
    with pytest.raises(AssertionError) as failed:
        run(case, lambda host: Pair(1, host))
    assert not isinstance(failed.value, NotReplayed), "the mutation does not remove its guard"


def test_cases_have_unique_names() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


NUMBER = 0.0


def reads_number(x):
    return scaled(x, NUMBER)


def test_a_global_that_changes_all_the_time_is_right_each_time(pair: Any, monkeypatch: Any) -> None:
    found: Pair = pair(reads_number)
    for k in range(60):
        monkeypatch.setitem(globals(), "NUMBER", float(k % 3))
        found(torch.randn(3))
    told = [reason for reason in found.reasons() if "changes all the time" in reason]
    assert len(told) == 1
