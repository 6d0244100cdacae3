"""Calls that cannot be replayed give tier 0's results, and one event with the reason and line."""

from __future__ import annotations

import inspect
import re
from typing import Any

from tests.plans import refused_tensors, refused_world
from tests.plans.refusing import Refused
from tests.plans.tiers import Pair
from tests.rows import by_row

ALL = (*refused_tensors.ROWS, *refused_world.ROWS)


def place(host: Any) -> str:
    """The file and line of the mark, as a `Refusal` prints them; empty without a mark."""
    lines, first = inspect.getsourcelines(host)
    marked = [k for k, line in enumerate(lines) if "# here" in line]
    assert len(marked) <= 1
    return f"{inspect.getsourcefile(host)}:{first + marked[0]}" if marked else ""


@by_row(ALL)
def test_a_refusal_says_why_and_where_once(row: Refused, pair: Any) -> None:
    found: Pair = pair(row.host)
    reason = found.refuses(row.build, row.words)
    if place(row.host):
        assert reason.endswith(f", at {place(row.host)}")


def test_reasons_are_sentences_about_the_host_function() -> None:
    assert all(re.fullmatch(r"[\w\s.,:'()_-]+", row.words) for row in ALL)
