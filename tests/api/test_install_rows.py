"""Programs around autotuners, heuristics and hooks observe the same with `tzero.install`."""

from __future__ import annotations

import tzero
from tests.api.rows_wrappers import ROWS, Program, Row
from tests.launches.looking import restored
from tests.rows import by_row
from tests.tiers import can_launch


def observed(program: Program) -> list[str]:
    """What a program tells of itself."""
    seen: list[str] = []
    with restored():
        program(lambda *values: seen.append(repr(values)))
    return seen


@by_row(ROWS)
def test_a_program_observes_the_same(row: Row) -> None:
    can_launch(2)
    expected = observed(row.run)
    tzero.install()
    try:
        found = observed(row.run)
    finally:
        tzero.uninstall()
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=False)):
        assert mine == theirs, f"{row.name}, observation {number}"
    assert len(found) == len(expected)
