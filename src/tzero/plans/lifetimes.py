"""`Lifetimes`: the objects among the arguments of a kernel's calls, and what ends when one is gone.

Enters: objects that count by identity, with the calls they were seen in and the plans made for
them. Leaves: whether a call is repeated. It must not know how calls are recorded.

An object that is new in each call would have each of them recorded, at many times the cost of the
call. So a call is recorded when it is repeated with the same objects. Objects are held by weak
references. When one is gone its plans end, with what they hold of it; that may be at any moment, in
any thread, so no lock is taken.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from tzero import settings
from tzero.plans.table import Table

__all__ = ["Lifetimes"]

_MOST_CALLS = 4096
"""How many kinds of calls are known of one object before all are forgotten, with their plans."""


class _Seen:
    """One object: hashes of the calls it was in, and where its plans are."""

    __slots__ = ("calls", "places", "reference")

    def __init__(self, reference: weakref.ref[Any]) -> None:
        self.reference = reference
        self.calls: set[int] = set()
        self.places: dict[tuple[int, Hashable], weakref.ref[Table]] = {}

    def end(self) -> None:
        """End its plans."""
        places, self.places = self.places, {}
        for (_, key), reference in list(places.items()):
            table = reference()
            if table is not None:
                table.drop(key)


class Lifetimes:
    """What is known of the objects that are arguments of one kernel.

    >>> class Cache: ...
    >>> cache, known = Cache(), Lifetimes()
    >>> known.is_repeated([cache], 1), known.is_repeated([cache], 1)
    (False, True)
    """

    def __init__(self) -> None:
        self._known: dict[int, _Seen] = {}

    def is_repeated(self, objects: Sequence[Any], call: int) -> bool:
        """Whether a call, by its hash, was seen before with all of these objects; it is now."""
        found = self._of(objects)
        is_known = all(call in each.calls for each in found)
        for each in found:
            if len(each.calls) >= _MOST_CALLS:
                each.end()
                each.calls.clear()
            each.calls.add(call)
        return is_known

    def note(self, objects: Sequence[Any], table: Table, key: Hashable) -> None:
        """What a table has under a key ends with any of the objects."""
        for each in self._of(objects):
            each.places[id(table), key] = weakref.ref(table)

    def _of(self, objects: Sequence[Any]) -> list[_Seen]:
        """What is known of objects; that of others ends if there are too many."""
        found = [self._one(each) for each in objects]
        most = max(settings.current().max_specializations, len(objects))
        if len(self._known) > most:
            others = [each for each in list(self._known) if self._known.get(each) not in found]
            for oldest in others[: len(self._known) - most]:
                _end(self._known, oldest)
        return found

    def _one(self, value: Any) -> _Seen:
        found = self._known.get(id(value))
        if found is None or found.reference() is not value:
            gone = functools.partial(_gone, weakref.ref(self), id(value))
            found = self._known[id(value)] = _Seen(weakref.ref(value, gone))
        return found

    def __len__(self) -> int:
        return len(self._known)


def _gone(lifetimes: weakref.ref[Lifetimes], address: int, reference: weakref.ref[Any]) -> None:
    found = lifetimes()
    known = {} if found is None else found._known
    seen = known.get(address)
    if seen is not None and seen.reference is reference:
        _end(known, address)


def _end(known: dict[int, _Seen], address: int) -> None:
    seen = known.pop(address, None)
    if seen is not None:
        seen.end()
