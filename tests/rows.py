"""Tables of test rows: functions with facts about them, each of which becomes a test.

Enters: decorated functions. Leaves: rows with names, in the order they are written, which
`by_row` gives to a test.

    ROWS = Rows(Refused)

    @ROWS.add("it prints", vector)          # Refused("prints", prints, "it prints", vector)
    def prints(x): ...

    @by_row(ROWS)
    def test_it_says_why(row: Refused) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import pytest


class Named(Protocol):
    """A row has a name, which is the id of its tests."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)
F = TypeVar("F", bound=Callable[..., Any])


class Rows(list[R], Generic[R]):
    """The rows of one subject. `make` gets a function's name, the function, and the arguments of
    the decorator."""

    def __init__(self, make: Callable[..., R]) -> None:
        super().__init__()
        self._make = make

    def add(self, *facts: Any, **more: Any) -> Callable[[F], F]:
        """Add a function as a row; the decorator leaves it as it is."""

        def add(function: F) -> F:
            self.append(self._make(function.__name__, function, *facts, **more))
            return function

        return add


def by_row(rows: Iterable[Named], name: str = "row") -> pytest.MarkDecorator:
    """Run a test once for each row; their names, which must differ, are the ids."""
    found = list(rows)
    ids = [row.name for row in found]
    assert len(set(ids)) == len(ids), f"two rows are called {sorted(ids)}"
    return pytest.mark.parametrize(name, found, ids=ids)
