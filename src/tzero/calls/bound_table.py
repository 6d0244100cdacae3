"""`BoundTable`: the bound kernels of one kernel by raw key, least recently used evicted.

    raw key ──► BoundKernel                                   no value joined the key
            └─► Family ── raw key and its extras ──► BoundKernel

Enters: raw keys, bound kernels, and extras: facts that `specialize` adds to the keys of one raw
key. Leaves: the bound kernel of a call, or none. It must not know how bound kernels are made or
called.

The table is read without a lock; `lock` protects changes. A bound kernel never moves to another
key: when an extra joins, bound kernels without it are dropped, and the next calls bind again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from tzero import locks
from tzero.arguments.extract import unwrapped
from tzero.arguments.key import Key, UnsupportedType
from tzero.calls.bound import BoundKernel
from tzero.calls.specialize import EVERYTHING, Extra
from tzero.errors import InvalidArgument

__all__ = ["BoundTable", "Family"]

R = TypeVar("R")
Raw = tuple[Hashable, ...]


class Family:
    """The bound kernels that share a raw key and differ in extras; it is in the table under that
    key.

    >>> Family((Extra("argument", 0),), 7).extras[0].kind
    'argument'
    """

    __slots__ = ("extras", "last_used", "members")

    def __init__(self, extras: tuple[Extra, ...], last_used: int) -> None:
        self.extras = extras
        self.last_used = last_used
        self.members: set[Raw] = set()


class BoundTable(Generic[R]):
    """The bound kernels of one kernel.

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
        self.lock = locks.lock()  # protects changes; `__eq__` of keys may run under it
        self.table: dict[Raw, BoundKernel[R] | Family] = {}
        self._kernel = kernel
        self._parameters = parameters
        self._dropped = dropped  # called for each bound kernel that is removed

    def found(self, base: Raw, args: tuple[Any, ...], number: int) -> BoundKernel[R] | None:
        """The bound kernel of a call, if there is one; `number` becomes its last use."""
        entry: Any = self.table.get(base)
        if entry.__class__ is Family:
            entry = self.table.get(self.full(base, entry.extras, args))
        if entry is not None:
            entry.last_used = number
        return entry  # type: ignore[no-any-return] # only bound kernels stand under full keys

    def key(self, base: Raw, args: tuple[Any, ...]) -> Key:
        """The key of a call: its raw key, and the extras that have joined so far."""
        entry = self.table.get(base)
        return Key(self.full(base, entry.extras, args) if isinstance(entry, Family) else base)

    def full(self, base: Raw, extras: Sequence[Extra], args: tuple[Any, ...]) -> Raw:
        """A raw key followed by the values of extras for the arguments."""
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
        """Add a bound kernel, and evict down to `most`; returns how many were evicted."""
        with self.lock:
            family = self.table.get(base)
            if isinstance(family, Family):
                family.members.add(bound.key)
            self.table[bound.key] = bound
            return self._shrink(most)

    def join(self, base: Raw, extra: Extra, number: int) -> None:
        """Add an extra to the keys of a raw key, from now on and for all threads."""
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
            # EVERYTHING includes all other extras, so it replaces them.
            extras = (extra,) if extra == EVERYTHING else (*known, extra)
            self.table[base] = Family(extras, number)

    def bound_kernels(self) -> list[BoundKernel[R]]:
        """All bound kernels that calls may find."""
        with self.lock:
            entries = list(self.table.values())  # a copy: a destructor may call this kernel
        return [entry for entry in entries if isinstance(entry, BoundKernel)]

    def clear(self) -> None:
        """Remove everything."""
        with self.lock:
            self.table = {}

    def _shrink(self, most: int) -> int:
        """Evict the least recently used. Families without members count too, because each call with
        new arguments may leave one."""
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
                if not entry.members:  # a family is removed with its last member
                    del self.table[base]
        return sum(map(self._tell_dropped, gone.values()))

    def _tell_dropped(self, entry: BoundKernel[R] | Family) -> bool:
        """Report a removed entry; returns whether it was a bound kernel."""
        if isinstance(entry, Family):
            return False
        self._dropped(entry)
        return True
