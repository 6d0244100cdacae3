"""Each kind of guard is needed: without it, in Python or natively, a row gives a stale answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hostile.conftest import follow_all
from tests.hostile.test_rows import ROWS, run
from tests.plans.tiers import available, verifying
from tzero.plans import describe
from tzero.reading import guards
from tzero.reading.guards import Absent

BY_NAME = {row.name: row for row in ROWS}

NEEDED = {
    guards.Same: "two_globals_become_one_object",
    guards.Equal: "a_global_number",
    guards.Absent: "a_class_that_gets_an_equality",
    guards.Check: "a_slot",
    guards.Code: "the_code_of_a_method",
    guards.OfClass: "the_class_of_an_object",
    guards.OwnDict: "an_object_with_another_dict",
    guards.Bases: "the_bases_of_the_class_of_an_instance",
    guards.Items: "the_length_of_a_list_of_an_object",
    guards.Item: "a_list_reached_by_two_names",
    guards.Result: "a_range_of_the_default_dtype",
    guards.Kept: "what_is_cached_is_evicted",
}


def test_every_kind_of_guard_has_a_row() -> None:
    # An import that fails is in tests/plans/cases_followed.py. A setting by which torch chooses
    # kernels matters to CUDA graphs alone: tests/plans/test_parts.py and tests/gpu/test_steps.py.
    # An argument that is held: tests/plans/test_objects.py.
    without = {guards.Files, guards.Setting, guards.Held}
    assert set(describe._GUARD_KINDS) - without == set(NEEDED)


def never_fails_in_python(kind: type, patch: pytest.MonkeyPatch) -> None:
    held = kind.holds
    patch.setattr(kind, "holds", lambda self: type(self) is kind or held(self))


def never_fails_natively(kind: type, patch: pytest.MonkeyPatch) -> None:
    described = describe._Describer._guard

    def describing(self: Any, guard: Any) -> Any:
        if type(guard) is kind:
            guard = Absent(guard.text, {}, "nothing")
        return described(self, guard)

    patch.setattr(describe._Describer, "_guard", describing)


@pytest.mark.parametrize("kind", NEEDED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("tier, mutate", [(1, never_fails_in_python), (2, never_fails_natively)])
def test_a_row_fails_without_its_kind_of_guard(
    kind: type, tier: int, mutate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verifying():
        pytest.skip("verify mode does not need guards")
    available(tier)
    follow_all(monkeypatch)
    row = BY_NAME[NEEDED[kind]]
    run(row, tier)
    mutate(kind, monkeypatch)
    with pytest.raises(AssertionError):
        run(row, tier)
