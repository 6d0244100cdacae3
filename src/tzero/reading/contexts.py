"""Context variables that a call reads, or sets for a time.

    ACTIVE.get()       ──► a guard: it has the same value
    ACTIVE.set(x)      ──► nothing, if the call ends with the value that was there before
    ACTIVE.reset(t)    ──► likewise

Enters: a method of a `ContextVar`, before it is called. Leaves: guards in a `World`, or
`Unreplayable`. It must not know other calls.

A replay does not set the variable. Nothing notices that: code that reads it in the call is followed
or reads nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from tzero.reading.attributes import MISSING
from tzero.reading.findings import Unreplayable
from tzero.reading.world import World

__all__ = ["Contexts"]


class Contexts:
    """The context variables of one recorded call."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: dict[ContextVar[Any], Any] = {}  # what those had that the call sets

    def called(self, variable: ContextVar[Any], method: str, args: Sequence[Any]) -> None:
        """A method of a variable is about to be called."""
        if not self._world.has(variable):
            return  # made in this call
        if method == "get":
            self._read(variable, args)
        elif method == "set":
            self._before.setdefault(variable, variable.get(MISSING))
        elif method != "reset" or variable not in self._before:
            name = self._world.name(variable)
            raise Unreplayable(f"it calls {name}.{method}, which may change it", "", 0)

    def finish(self) -> None:
        """Refuse a call that leaves a variable with another value."""
        for variable, before in self._before.items():
            if variable.get(MISSING) is not before:
                name = self._world.name(variable)
                raise Unreplayable(f"it sets {name}, a context variable", "", 0)

    def _read(self, variable: ContextVar[Any], args: Sequence[Any]) -> None:
        now = variable.get(MISSING)
        if variable in self._before and now is not self._before[variable]:
            return  # the call has set it
        try:
            found = variable.get(*args)
        except LookupError:
            name = self._world.name(variable)
            raise Unreplayable(f"it reads {name}, which has no value", "", 0) from None
        text = f"the value of {self._world.name(variable)}"
        self._world.asked(text, variable, lambda now: now.get(*args), found)
