"""After each change of the world the next call gives what the plain function gives."""

from __future__ import annotations

import pytest

from tests.hostile import rows_calls, rows_known, rows_libraries, rows_objects
from tests.hostile.conftest import follow_all
from tests.hostile.row import Row
from tests.plans.test_world import every_guard_holds
from tests.plans.tiers import NotReplayed, Pair, available, verifying
from tests.rows import by_row

ROWS = (*rows_known.ROWS, *rows_calls.ROWS, *rows_objects.ROWS, *rows_libraries.ROWS)


def run(row: Row, tier: int, watched: bool = False) -> Pair:
    """Call before the change, after it, and after it is undone; `watched`: and see all events."""
    found = Pair(tier, row.host)
    found._watched = watched
    for _ in range(3):
        found(*row.build())
    with pytest.MonkeyPatch.context() as patch, row.changed(patch):
        for _ in range(2):
            found(*row.build())
    for _ in range(2):
        found(*row.build())
    return found


@by_row(ROWS)
def test_after_a_change_the_call_is_right(row: Row, tier: int, reader: str) -> None:
    run(row, tier)


@by_row([row for row in ROWS if row.guarded])
def test_a_row_fails_without_guards(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row proves something only if its call is replayed; else it says why not."""
    if verifying():
        pytest.skip("verify mode does not need guards")
    available(1)
    follow_all(monkeypatch)
    every_guard_holds(monkeypatch)
    if row.refused:
        found = run(row, 1, watched=True)
        assert row.refused in "; ".join(found.reasons())
        return
    with pytest.raises(AssertionError) as failed:
        run(row, 1)
    assert not isinstance(failed.value, NotReplayed)
