"""Guards: facts about globals, closures and attributes that must hold for a plan to be replayed.

Enters: where a value was read, and what it was. Leaves: a `Guard` that says whether it still is.
It must not know how the value was found or what is done when a guard fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any, Literal

__all__ = ["Guard", "same_value"]


def same_value(one: Any, other: Any) -> bool:
    """Whether two plain values are the same: `1` and `True` are not.

    >>> same_value(1, 1), same_value(1, True)
    (True, False)
    """
    if one is other:
        return True
    return type(one) is type(other) and repr(one) == repr(other)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A name that the host function reads from a namespace, and what it must be there. `where` is
    the dict of a module, or a closure's cell, which has no names.

    `how` says what "the same" means: the very object (`is`), an equal plain value (`equals`),
    that `check`, a function of the present value, says yes (`asks`), or that there is no such name
    (`absent`), as for a builtin that a global may come to hide.

    >>> Guard("BLOCK", {"BLOCK": 64}, "BLOCK", 64, "equals").holds()
    True
    """

    words: str
    where: dict[str, Any] | CellType = dataclasses.field(repr=False)
    name: str
    value: Any
    how: Literal["is", "equals", "asks", "absent"]
    check: Callable[[Any], bool] | None = None

    def now(self) -> Any:
        """What it is now; KeyError or ValueError where there is nothing."""
        return (
            self.where.cell_contents if isinstance(self.where, CellType) else self.where[self.name]
        )

    def holds(self) -> bool:
        """Whether it still is what it was."""
        try:
            now = self.now()
        except (KeyError, ValueError):
            return self.how == "absent"
        if now is self.value and self.how in ("is", "equals"):
            return True
        if self.how == "equals":
            return type(now) is type(self.value) and bool(now == self.value)
        return self.how == "asks" and self.check is not None and self.check(now)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Guard)
            and (self.where is other.where or self._asks_like(other))
            and (self.name, self.how) == (other.name, other.how)
            and (self.value is other.value or same_value(self.value, other.value))
        )

    def _asks_like(self, other: Guard) -> bool:
        return self.how == other.how == "asks" and self.words == other.words

    def __hash__(self) -> int:
        return hash((self.words, self.name))
