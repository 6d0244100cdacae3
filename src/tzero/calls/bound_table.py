"""The table of one kernel's bound kernels: families, and what is dropped when it is full.

    raw key ──► BoundKernel                                   no value joined the key
            └─► Family ── raw key and its extras ──► BoundKernel

Enters: raw keys, bound kernels, and extras that join the keys of one raw key. Leaves: the bound
kernel of a call, or none. It must not know how bound kernels are made or called.

The table is read without a lock; `lock` protects changing it. A bound kernel never moves to
another key: when an extra joins, what was bound without it is dropped, and the next calls bind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from tzero.arguments.extract import unwrapped
from tzero.arguments.key import Key, UnsupportedType
from tzero.calls.bound import BoundKernel
from tzero.calls.specialize import EVERYTHING, Extra
from tzero.errors import InvalidArgument

__all__ = ["BoundTable", "Family"]

R = TypeVar("R")
Raw = tuple[Hashable, ...]


class Family:
    """BoundTable whose raw key is one, told apart by extras; stands in the table under that key.

    >>> Family((Extra("argument", 0),), 7).extras[0].kind
    'argument'
    """

    __slots__ = ("extras", "last_used", "members")

    def __init__(self, extras: tuple[Extra, ...], last_used: int) -> None:
        self.extras = extras
        self.last_used = last_used
        self.members: set[Raw] = set()


class BoundTable(Generic[R]):
    """What a kernel has bound.

    >>> entries = BoundTable("add", ("x", "y"))
    >>> entries.found((int, int), (1, 2), 0) is None
    True
    """

    def __init__(
        self,
        kernel: str,
        parameters: Sequence[str],
        dropped: Callable[[BoundKernel[R]], None] = lambda bound: None,
    ) -> None:
        self.lock = threading.RLock()  # protects changing the table; `__eq__` of keys runs under it
        self.table: dict[Raw, BoundKernel[R] | Family] = {}
        self._kernel = kernel
        self._parameters = parameters
        self._dropped = dropped  # told of each bound kernel that no call finds any more

    def found(self, base: Raw, args: tuple[Any, ...], number: int) -> BoundKernel[R] | None:
        """The bound kernel of a call, which is then the one used last."""
        entry: Any = self.table.get(base)
        if entry.__class__ is Family:
            entry = self.table.get(self.full(base, entry.extras, args))
        if entry is not None:
            entry.last_used = number
        return entry  # type: ignore[no-any-return] # only bound kernels stand under full keys

    def key(self, base: Raw, args: tuple[Any, ...]) -> Key:
        """The key of a call, with what has joined it so far."""
        entry = self.table.get(base)
        return Key(self.full(base, entry.extras, args) if isinstance(entry, Family) else base)

    def full(self, base: Raw, extras: Sequence[Extra], args: tuple[Any, ...]) -> Raw:
        """A raw key, and behind it what some extras are for the arguments."""
        plain = unwrapped(args)
        return (*base, *((extra, self._fact(extra, plain)) for extra in extras))

    def _fact(self, extra: Extra, args: tuple[Any, ...]) -> Hashable:
        try:
            return extra.of(args)
        except UnsupportedType as error:
            alone = extra != EVERYTHING
            raise InvalidArgument(
                kernel=self._kernel,
                argument=self._parameters[extra.index] if alone else None,
                problem=f"{'' if alone else 'an argument '}is or holds {error.named}, and "
                "specialize asks for its value",
                advice=error.advice,
            ) from error

    def add(self, base: Raw, bound: BoundKernel[R], most: int) -> int:
        """Take in a bound kernel, and keep the table within its bound; returns how many went."""
        with self.lock:
            family = self.table.get(base)
            if isinstance(family, Family):
                family.members.add(bound.key)
            self.table[bound.key] = bound
            return self._shrink(most)

    def join(self, base: Raw, extra: Extra, number: int) -> None:
        """Let an extra join the keys of a raw key, from now on and for every thread."""
        entry = self.table.get(base)
        if isinstance(entry, Family) and extra in entry.extras:
            return
        with self.lock:
            entry = self.table.get(base)
            known: tuple[Extra, ...] = ()
            if isinstance(entry, Family):
                known = entry.extras
                if extra in known or EVERYTHING in known:
                    return
                for member in entry.members:
                    self._tell_dropped(self.table.pop(member))
            elif entry is not None:
                self._tell_dropped(entry)
            # All arguments in full say whatever one of them would, and stand alone.
            extras = (extra,) if extra == EVERYTHING else (*known, extra)
            self.table[base] = Family(extras, number)

    def bound_kernels(self) -> list[BoundKernel[R]]:
        """Every bound kernel that calls may find."""
        with self.lock:
            entries = list(self.table.values())  # at once: a destructor may call this kernel
        return [entry for entry in entries if isinstance(entry, BoundKernel)]

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            self.table = {}

    def _shrink(self, most: int) -> int:
        """Drop what was used least recently. A family without members counts too: each call with
        new arguments may leave one behind."""
        if len(self.table) <= most:
            return 0
        counted = [
            (entry.last_used, key)
            for key, entry in list(self.table.items())  # as above
            if isinstance(entry, BoundKernel) or not entry.members
        ]
        if len(counted) <= most:
            return 0
        counted.sort(key=lambda item: item[0])
        gone = {key: self.table.pop(key) for _, key in counted[: len(counted) - most]}
        for base, entry in list(self.table.items()):
            if isinstance(entry, Family) and not entry.members.isdisjoint(gone):
                entry.members -= gone.keys()
                if not entry.members:  # a family goes with its last member
                    del self.table[base]
        return sum(map(self._tell_dropped, gone.values()))

    def _tell_dropped(self, entry: BoundKernel[R] | Family) -> bool:
        """Say that an entry is gone; whether it is one that calls could find."""
        if isinstance(entry, Family):
            return False
        self._dropped(entry)
        return True
