"""Every row with Triton's own launches, those in Python and the native ones.

A row that passes with Triton's own launches demands nothing that Triton does not do.
"""

from __future__ import annotations

import pytest

from tests.launches.row import GUARDS, Row
from tests.launches.rows import ROWS
from tests.rows import by_row


@by_row(ROWS)
def test_a_launch_is_what_triton_would_have_launched(row: Row, make, device) -> None:
    row.run(make, device)


@pytest.mark.parametrize("guard", GUARDS)
def test_every_guard_has_a_row(guard: str) -> None:
    assert [row for row in ROWS if guard in row.guards]


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
