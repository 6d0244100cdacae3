"""Guards: facts about globals, closures and attributes that must hold for a plan to be replayed.

Enters: a namespace, a name in it, and what was found there. Leaves: a guard that says whether that
is still so. It must not know how the value was found or what is done when a guard fails.

    Same     the name holds the same object
    Equal    the name holds a value of the same type that compares equal
    Absent   the namespace does not have the name
    Check    a function of the present value returns true

`plans/describe.py` numbers the four kinds for native code; `plans/wrapper.py` writes them as
Python. A guard on a new kind of value is a `Check`, unless one of the others says it; facts
of tensors are in `tzero.arguments.tensor_facts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any

__all__ = ["Absent", "Check", "Equal", "Guard", "Same", "same_value"]


def same_value(one: Any, other: Any) -> bool:
    """Whether two plain values are the same: `1` and `True` are not.

    >>> same_value(1, 1), same_value(1, True)
    (True, False)
    """
    if one is other:
        return True
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """A name in a namespace. `where` is a dict, or the cell of a closure, which has no names."""

    text: str
    where: dict[str, Any] | CellType = dataclasses.field(repr=False)
    name: str
    value: Any

    def now(self) -> Any:
        """The present value; KeyError or ValueError if there is none."""
        return (
            self.where.cell_contents if isinstance(self.where, CellType) else self.where[self.name]
        )

    def holds(self) -> bool:
        """Whether the fact still holds."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Watched)
            and type(self) is type(other)
            and self._same_place(other)
            and self.name == other.name
            and (self.value is other.value or same_value(self.value, other.value))
        )

    def _same_place(self, other: _Watched) -> bool:
        return self.where is other.where

    def __hash__(self) -> int:
        return hash((self.text, self.name))


@dataclass(frozen=True, slots=True, eq=False)
class Same(_Watched):
    """The name holds the same object.

    >>> where = {"a": [1]}
    >>> Same("a", where, "a", where["a"]).holds(), Same("a", where, "a", [1]).holds()
    (True, False)
    """

    def holds(self) -> bool:
        """Whether the fact still holds."""
        try:
            return self.now() is self.value
        except (KeyError, ValueError):
            return False


@dataclass(frozen=True, slots=True, eq=False)
class Equal(_Watched):
    """The name holds a value of the same type that compares equal.

    >>> Equal("BLOCK", {"BLOCK": 64}, "BLOCK", 64).holds()
    True
    """

    def holds(self) -> bool:
        """Whether the fact still holds."""
        try:
            now = self.now()
        except (KeyError, ValueError):
            return False
        return now is self.value or (type(now) is type(self.value) and bool(now == self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Absent(_Watched):
    """The namespace does not have the name, as for a builtin that a global would hide. `value` is
    what the name means then, if that is known.

    >>> Absent("no global 'len'", {}, "len").holds()
    True
    """

    value: Any = None

    def holds(self) -> bool:
        """Whether the fact still holds."""
        try:
            self.now()
        except (KeyError, ValueError):
            return True
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Check(_Watched):
    """`check`, called with the present value, returns true. Its exceptions reach the caller.

    >>> Check("len(a)", {"a": [1]}, "a", [1], lambda now: len(now) == 1).holds()
    True
    """

    check: Callable[[Any], bool]

    def holds(self) -> bool:
        """Whether the fact still holds."""
        try:
            now = self.now()
        except (KeyError, ValueError):
            return False
        return self.check(now)

    def _same_place(self, other: _Watched) -> bool:
        """`where` is often a dict made for this guard, so the text identifies the place too."""
        return self.where is other.where or self.text == other.text


Guard = Same | Equal | Absent | Check
