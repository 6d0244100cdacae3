"""A row: one fact that may change between two launches, and what is demanded then.

Enters: functions, decorated. Leaves: `Row` values, which `rows.ROWS` collects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GUARDS = (
    "alignment",
    "integer_one",
    "integer_16",
    "integer_width",
    "dtype",
    "tensor_type",
    "constants",
    "options",
    "defaults",
    "globals",
    "knob_debug",
    "knob_instrumentation",
    "stages_hook",
    "launch_hooks",
    "pre_run_hooks",
    "own_debug",
    "driver",
    "device",
    "stream",
    "cache",
    "grid",
)
"""Every check that a launch makes, by name; the native twin can leave each of them out in tests."""

TWIN_GUARDS = ("argument_type",)
"""Checks that native code cannot be built without: it reads a number as what it is."""

Run = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario: what it is called, the guards without which it fails, and the scenario."""

    name: str
    guards: tuple[str, ...]
    run: Run


class Rows(list[Row]):
    """The rows of one subject, in the order they are written."""

    def row(self, *guards: str) -> Callable[[Run], Run]:
        """Add a function as a row that fails without each of these guards."""
        unknown = set(guards) - {*GUARDS, *TWIN_GUARDS}
        if unknown:
            raise ValueError(f"no such guards: {sorted(unknown)}")

        def add(run: Run) -> Run:
            self.append(Row(run.__name__, guards, run))
            return run

        return add
