"""Guards: facts about globals, closures and attributes that must hold for a plan to be replayed.

Enters: a namespace, a name in it, and what was found there. Leaves: a guard that says whether that
is still so. It must not know how the value was found or what is done when a guard fails.

    Same     the name holds the same object
    Equal    the name holds a value of the same type that compares equal
    Absent   the namespace does not have the name
    Check    a function of the present value returns true

Some checks are so frequent that native code does them itself, without calling the function:

    Code     a function has the same code, defaults and name
    OfClass  an object has the same class
    OwnDict  an object keeps its attributes in the same dict
    Held     an object is alive, and has the same class and dict; only this refers to it weakly
    Bases    a class has the same bases
    Items    a container holds the same items
    Item     a list holds the same item at some place
    Result   a function without arguments returns the same object, or an equal number or string
    Setting  the same, of a function of tzero's that only reads
    Files    files and directories have not been changed
    Kept     a cache has not evicted an entry

`plans/describe.py` numbers the kinds for native code; `plans/wrapper.py` writes them as Python. A
guard on a new kind of value is a `Check`, unless one of the others says it; facts of tensors are in
`tzero.arguments.tensor_facts`.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any, Self

from tzero.reading.attributes import own_dict

__all__ = [
    "Absent",
    "Bases",
    "Check",
    "Code",
    "Equal",
    "Files",
    "Guard",
    "Held",
    "Item",
    "Items",
    "Kept",
    "OfClass",
    "OwnDict",
    "Result",
    "Same",
    "Setting",
    "result_guard",
    "same_value",
]


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


class Kept(Check):
    """A cache that holds only so many entries has not evicted one. An entry that is evicted may be
    used again for others, so that it is the same object.

    >>> cache = {1: "one"}
    >>> guard = Kept.of("one of two", cache, 1, 2, lambda: False)
    >>> guard.holds(), cache.update({2: "two"}), guard.holds()
    (True, None, False)
    """

    @classmethod
    def of(
        cls, text: str, cache: dict[Any, Any], key: Any, most: int, is_same: Callable[[], bool]
    ) -> Kept:
        """The guard for a cache as it is now, with room for `most` entries; `is_same` says whether
        it has evicted nothing, once it is full."""
        entry = cache[key]

        def same(now: Any) -> bool:
            return now is entry and (len(cache) < most or is_same())

        return cls(text, cache, key, (entry, most), same)


class Code(Check):
    """A function has the same code, defaults and name.

    >>> def helper(x=1): return x
    >>> guard = Code.of("helper", helper)
    >>> helper.__defaults__ = (2,)
    >>> guard.holds()
    False
    """

    @classmethod
    def of(cls, text: str, function: FunctionType) -> Code:
        """The guard for a function as it is now."""
        parts = (function.__code__, function.__defaults__, function.__name__)
        named = _named_defaults(function)

        def same(now: Any) -> bool:
            found = (now.__code__, now.__defaults__, now.__name__)
            return all(map(operator.is_, found, parts)) and _are_same(_named_defaults(now), named)

        return cls(text, {"of": function}, "of", (*parts, named), same)


class OfClass(Check):
    """An object has the same class.

    >>> OfClass.of("x", 3).holds()
    True
    """

    @classmethod
    def of(cls, text: str, value: object) -> OfClass:
        """The guard for an object as it is now."""
        kind = type(value)
        return cls(text, {"of": value}, "of", kind, lambda now: type(now) is kind)


class OwnDict(Check):
    """An object keeps its attributes in the same dict.

    >>> class Own: pass
    >>> own = Own()
    >>> guard = OwnDict.of("own", own)
    >>> own.by = 2
    >>> guard.holds()
    True
    >>> own.__dict__ = {"by": 3}
    >>> guard.holds()
    False
    """

    @classmethod
    def of(cls, text: str, value: object) -> OwnDict:
        """The guard for an object as it is now."""
        own = own_dict(value)
        return cls(text, {"of": value}, "of", own, lambda now: own_dict(now) is own)


class Held(Check):
    """An object is alive, has the same class, and keeps its attributes in the same dict. As long as
    that holds no other object has its address.

    >>> class Own: pass
    >>> own = Own()
    >>> guard = Held.of("own", weakref.ref(own))
    >>> guard.holds()
    True
    >>> del own
    >>> guard.holds()
    False
    """

    @classmethod
    def of(cls, text: str, reference: weakref.ref[Any]) -> Held:
        """The guard for an object as it is now."""
        value = reference()
        kind, own = type(value), own_dict(value)

        def same(now: weakref.ref[Any]) -> bool:
            found = now()
            return type(found) is kind and (own is None or own_dict(found) is own)

        return cls(text, {"of": reference}, "of", (kind, own), same)

    def __eq__(self, other: object) -> bool:
        """The same class and dict are meant, whatever the dict holds by now."""
        return (
            isinstance(other, Held)
            and self.text == other.text
            and all(map(operator.is_, self.value, other.value))
        )

    __hash__ = Check.__hash__


class Bases(Check):
    """A class has the same bases.

    >>> Bases.of("int", int).holds()
    True
    """

    @classmethod
    def of(cls, text: str, kind: type) -> Bases:
        """The guard for a class as it is now."""
        line = kind.__mro__
        return cls(text, {"of": kind}, "of", line, lambda now: now.__mro__ is line)


class Items(Check):
    """A list, tuple or dict holds the same objects, or equal numbers and strings, in this order.

    >>> items = [1, "a"]
    >>> guard = Items.of("items", items)
    >>> items.append(2)
    >>> guard.holds()
    False
    """

    @classmethod
    def of(cls, text: str, value: Any) -> Items:
        """The guard for a container as it is now."""
        before = items_of(value)
        same: Callable[[Any], bool] = lambda now: _are_same(items_of(now), before)  # noqa: E731
        return cls(text, {"of": value}, "of", before, same)


class Item(Check):
    """A list holds the same object, or an equal number or string, at some place.

    >>> items = [1, "a"]
    >>> guard = Item.of("items[1]", items, 1)
    >>> items[1] = "b"
    >>> guard.holds()
    False
    """

    @classmethod
    def of(cls, text: str, value: list[Any], place: int) -> Item:
        """The guard for a list as it is now."""
        before = value[place]

        def same(now: Any) -> bool:
            return -len(now) <= place < len(now) and is_same_item(now[place], before)

        return cls(text, {"of": value}, "of", (place, before), same)


class Result(Check):
    """A function without arguments returns the same object, or an equal number or string.

    >>> import torch
    >>> Result.of("the default dtype", torch.get_default_dtype, torch.float32).holds()
    True
    """

    @classmethod
    def of(cls, text: str, function: Callable[[], Any], result: Any) -> Self:
        """The guard for a function that has just returned something."""
        same: Callable[[Any], bool] = lambda now: is_same_item(now(), result)  # noqa: E731
        return cls(text, {"of": function}, "of", result, same)


class Setting(Result):
    """A `Result` of a function of tzero's own that only reads, so that nothing that was checked
    before it has to be checked again.

    >>> Setting.of("a setting", lambda: 1, 1).holds()
    True
    """


def result_guard(function: Callable[[], Any]) -> Check:
    """A guard on what a function without arguments returns now. A device is compared by value,
    because each call makes another object.

    >>> import torch
    >>> type(result_guard(torch.get_num_threads)) is Result
    True
    """
    result, text = function(), f"the result of {function.__name__}()"
    if is_same_item(function(), result):
        return Result.of(text, function, result)
    equal: Callable[[Any], bool] = lambda now: bool(now() == result)  # noqa: E731
    return Check(text, {"of": function}, "of", result, equal)


class Files(Check):
    """Files and directories were last changed at the same time, or do not exist as before.

    >>> guard = Files.of("a file of the library", [os.__file__])
    >>> guard.holds()
    True
    """

    @classmethod
    def of(cls, text: str, paths: Sequence[str]) -> Files:
        """The guard for files and directories as they are now."""
        encoded = [os.fsencode(path) for path in paths]
        times = tuple(each for path in encoded for each in (path, _changed_at(path)))
        same: Callable[[Any], bool] = lambda now: all(  # noqa: E731
            _changed_at(path) == times[2 * k + 1] for k, path in enumerate(now)
        )
        return cls(text, {"of": encoded}, "of", times, same)


def _changed_at(path: bytes) -> int:
    """When a file was last changed, in nanoseconds; -1 if it cannot be found."""
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return -1


def _named_defaults(function: FunctionType) -> tuple[Any, ...] | None:
    named = function.__kwdefaults__
    return None if named is None else items_of(named)


def _are_same(found: tuple[Any, ...] | None, before: tuple[Any, ...] | None) -> bool:
    """Whether the items of two containers are the same, or neither is there."""
    if found is None or before is None:
        return found is before
    return len(found) == len(before) and all(map(is_same_item, found, before))


def items_of(value: Any) -> tuple[Any, ...]:
    """What a container holds; of a mapping, keys and values in turn.

    >>> items_of({"a": 1})
    ('a', 1)
    """
    if type(value) in (list, tuple) or (type(value) in _DICTS and not value):
        return tuple(value)
    if type(value) in _DICTS or isinstance(value, Mapping):
        return tuple(each for pair in list(value.items()) for each in pair)
    return tuple(value)


_DICTS = (dict, collections.OrderedDict)  # a check by type is faster than by `Mapping`


def is_same_item(now: Any, before: Any) -> bool:
    """Whether an item is the same object, or an equal number or string.

    >>> is_same_item(1000, 10**3), is_same_item(1, True), is_same_item([], [])
    (True, False, False)
    """
    if now is before:
        return True
    return type(now) is type(before) and type(now) in (int, str, bytes) and bool(now == before)


Guard = Same | Equal | Absent | Check
