"""Classes of the program that a host function uses: dataclasses, named tuples, enums, exceptions.

    a class is named, or an object of one is read ──► use()
    all code was read, so all names are known     ──► finish(): its methods are read, and one guard
                                                      says that no class has changed

Enters: classes. Leaves: their methods and class attributes, given to the reader of values, and one
guard for all; or `Unreplayable` for other classes, as their objects may hold anything. It must not
know bytecode.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from tzero.reading.attributes import CONSTRUCTION, COPYING, Snapshot, implementation, snapshot
from tzero.reading.findings import Findings, Line, Variable
from tzero.reading.guards import Check
from tzero.reading.kinds import is_plain
from tzero.reading.purity import is_library

__all__ = ["Classes"]


class Reads(Protocol):
    """What `Classes` needs of the reader of values."""

    def read(self, variable: Variable, /) -> None:
        """Read a value."""

    def helper(self, text: str, function: FunctionType, /) -> None:
        """Read the code of a function."""


class _Use(NamedTuple):
    """How a class is used: its name in messages, whether it may be called, and the line."""

    text: str
    called: bool
    line: Line


class Classes:
    """The classes of the program that have been met so far."""

    def __init__(self, found: Findings, values: Reads) -> None:
        self._found = found
        self._values = values
        self._uses: dict[type, _Use] = {}
        self._members: set[int] = set()  # the ids of enum members that were read

    def use(self, text: str, kind: type, called: bool = True) -> None:
        """A class that the code names, and may call; or, not `called`, the class of an object."""
        if is_library(kind):
            return
        known = self._uses.get(kind)
        if known is not None and known.called >= called:
            return
        fields = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        if not fields and not issubclass(kind, (enum.Enum, BaseException)):
            raise self._found.refuse(
                f"it uses {text}, a class that is no dataclass, named tuple, enum or exception"
            )
        if not is_library(type(kind)):
            raise self._found.refuse(f"it uses {text}, a class with a metaclass of the program")
        self._uses[kind] = _Use(text, called, self._found.line)
        if issubclass(kind, enum.Enum):
            for member in kind.__members__.values():
                self.enum_member(text, member)
        if called and dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                if field.default_factory is not dataclasses.MISSING:
                    made = f"the default factory of {text}.{field.name}"
                    self._values.read(Variable.unnamed(made, field.default_factory))

    def enum_member(self, text: str, member: enum.Enum) -> None:
        """A member of an enum: its class and its attributes may change."""
        if is_library(type(member)) or id(member) in self._members:
            return
        self._members.add(id(member))
        self.use(text, type(member), called=False)
        for name, value in list(vars(member).items()):
            if not name.startswith("_") or (name == "_value_" and not is_plain(value)):
                self._values.read(Variable(f"{text}.{name}", vars(member), name, value))

    def finish(self) -> None:
        """Read what the code may reach in the classes, and add a guard on the classes."""
        done: set[tuple[type, str]] = set()
        while todo := [each for each in self._reachable() if each[:2] not in done]:
            for kind, name, use in todo:
                done.add((kind, name))
                self._found.line = use.line
                self._content(f"{use.text}.{name}", name, implementation(vars(kind)[name]))
        if self._uses:
            lines = {kind: [c for c in kind.__mro__ if not is_library(c)] for kind in self._uses}
            taken = [snapshot(kind, watched) for kind, watched in lines.items()]
            held = {"snapshots": taken}
            self._found.add(Check("the classes that it uses", held, "snapshots", None, _unchanged))

    def _reachable(self) -> Iterator[tuple[type, str, _Use]]:
        """Class attributes that the code may reach, by name or implicitly (dunders)."""
        copies = bool(COPYING & self._found.names)
        for used, use in list(self._uses.items()):
            for kind in used.__mro__:
                for name in [] if is_library(kind) else list(vars(kind)):
                    special = name.startswith("__") and not name.startswith("__annotat")
                    if name in CONSTRUCTION and not (use.called or copies):
                        continue
                    if special or name in self._found.names:
                        yield kind, name, use

    def _content(self, text: str, name: str, thing: Any) -> None:
        if isinstance(thing, FunctionType):
            self._values.helper(text, thing)
        elif not is_plain(thing) and (callable(thing) or not name.startswith("__")):
            self._values.read(Variable.unnamed(text, thing))


def _unchanged(snapshots: list[Snapshot]) -> bool:
    return all(each.holds() for each in snapshots)
