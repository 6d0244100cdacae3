"""What the readers of a host function have found so far.

Enters: guards, names and helper functions, from `names`, `values` and `classes`. Leaves: all
of them, or `Unreplayable`, with the line being read. It must not know how they are found.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, NamedTuple

from tzero.reading.guards import Check, Equal, Guard, Same

__all__ = ["Findings", "Line", "Unreplayable", "Variable"]


class Unreplayable(Exception):
    """Why a host function cannot be replayed, the line that prevents it, and whether it prevents
    that for good. What does not last comes from outside of the host function, unless it `passes`:
    then it is a state of what the function reads."""

    def __init__(
        self, reason: str, file: str, line: int, lasts: bool = True, passes: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason, self.file, self.line = reason, file, line
        self.lasts, self.passes = lasts and not passes, passes


class Line(NamedTuple):
    """A line of a source file."""

    file: str
    number: int


class Variable(NamedTuple):
    """A value, the namespace and name that it is read from, and what to call it in messages."""

    text: str
    where: dict[str, Any] | CellType
    name: str
    value: Any

    @classmethod
    def unnamed(cls, text: str, value: Any) -> Variable:
        """A value that was reached without a name, such as a default of a parameter."""
        return cls(text, {"value": value}, "value", value)

    def same(self) -> Same:
        """A guard that it stays the same object."""
        return Same(*self)

    def equal(self) -> Equal:
        """A guard that it stays equal."""
        return Equal(*self)

    def check(self, check: Callable[[Any], bool]) -> Check:
        """A guard that calls `check` with its present value."""
        return Check(*self, check)


class Findings:
    """Guards, names and helpers; and the line being read, for messages."""

    def __init__(self) -> None:
        self.guards: dict[Any, Guard] = {}
        self.helpers: dict[FunctionType, None] = {}  # a set that keeps its order
        self.names: set[str] = set()  # every global and attribute that the code loads
        self.attributes: set[str] = set()  # loaded from locals, and unknown to torch.Tensor
        self.of_tensors: set[str] = set()  # those that torch.Tensor has
        self.loaded: set[str] = set()  # of both, those that an object itself may hide
        self.catches = False  # whether an `except` may hide that an attribute is missing
        self.line = Line("", 0)

    def add(self, guard: Guard) -> None:
        """Keep a guard, unless there is one like it. A name may have several different checks."""
        text = guard.text if isinstance(guard, Check) else ""
        self.guards.setdefault((id(guard.where), guard.name, type(guard), text), guard)

    def refuse(self, reason: str) -> Unreplayable:
        """The exception to raise at the line being read."""
        return Unreplayable(reason, *self.line)
