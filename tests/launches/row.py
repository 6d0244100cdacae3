"""A row: one fact that may change between two launches, and what must happen then.

Enters: decorated functions. Leaves: tables of `Row`s, which `rows.ROWS` collects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.rows import Rows

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
    "tuple_shape",
    "descriptor_block",
)
"""Every check of a launch, by name; a test build of native code can leave out each of them."""

INSTALLED_GUARDS = (
    "compiled_hooks",
    "compiled_attributes",
    "compiled_class",
    "compiled_driver",
    "heuristics_dict",
)
"""The checks of launches that only `tzero.install` makes; `test_installed` has their rows."""

TWIN_GUARDS = ("argument_type",)
"""Checks that native code cannot leave out: how it reads a number depends on its type."""

Run = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario, and the guards without which it fails."""

    name: str
    guards: tuple[str, ...]
    run: Run


def table() -> Rows[Row]:
    """A table; its rows are added with the guards that each fails without."""
    return Rows(_row)


def _row(name: str, run: Run, *guards: str) -> Row:
    unknown = set(guards) - {*GUARDS, *INSTALLED_GUARDS, *TWIN_GUARDS}
    if unknown:
        raise ValueError(f"no such guards: {sorted(unknown)}")
    return Row(name, guards, run)
