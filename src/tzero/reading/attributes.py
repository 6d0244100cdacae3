"""Classes, objects and functions: what runs when an attribute of theirs is read, and whether they
are what they were.

Enters: whatever a program holds. Leaves: the functions that are behind a name in it, and something
to compare it with later. It must not know host functions or guards.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import inspect
import operator
import types
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

__all__ = [
    "GONE",
    "INSIDE",
    "MAKING",
    "REMAKING",
    "Look",
    "behind",
    "followed",
    "has_more",
    "is_made",
    "is_same",
    "is_set_by_class",
    "look_at",
    "namespace",
    "parts_of",
    "run_by",
]

_FIELDS = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    type(inspect.getattr_static(collections.namedtuple("_Pair", "x"), "x")),
)
"""What classes have in C under the names of fields and methods: it does not change."""


INSIDE = frozenset(
    [
        *("__globals__", "__dict__", "__closure__", "__builtins__", "__getattribute__"),
        *("__subclasses__", "__wrapped__", "__func__", "cell_contents"),
        *("f_globals", "f_locals", "f_builtins", "f_back", "gi_frame"),
    ]
)
"""Attributes by which everything can be come to."""

MAKING = frozenset(
    [
        *("__init__", "__new__", "__post_init__", "__init_subclass__"),
        *("__setattr__", "__delattr__", "__set_name__"),
    ]
)
"""Methods that run when an object or a class is made, or changed, only."""

REMAKING = frozenset(
    [*("type", "__class__", "replace", "_replace", "_make", "copy", "deepcopy"), *MAKING]
)
"""Names by which an object of a class that is not named is made of another one."""


def namespace(kind: type) -> dict[str, Any]:
    """The dict of a class itself, of which `vars` shows only a copy that cannot be written: native
    code watches dicts. Nobody is to write to it.

    >>> class Own:
    ...     by = 2
    >>> namespace(Own)["by"]
    2
    """
    (found,) = gc.get_referents(vars(kind))
    assert type(found) is dict
    return found


class Look(NamedTuple):
    """What a class is: its line of ancestors, and what is in those that are watched."""

    kind: type
    line: tuple[type, ...]
    held: tuple[tuple[type, tuple[str, ...], tuple[Any, ...]], ...]

    def holds(self) -> bool:
        """Whether it still is. By identity: what is in a class may compare as it likes."""
        return self.kind.__mro__ is self.line and all(
            len(vars(kind)) == len(names)
            and all(map(operator.eq, vars(kind), names))
            and all(map(operator.is_, vars(kind).values(), values))
            for kind, names, values in self.held
        )


def look_at(kind: type, watched: list[type]) -> Look:
    """A class as it is now.

    >>> class Own:
    ...     by = 2
    >>> look = look_at(Own, [Own])
    >>> Own.by = 3
    >>> look.holds()
    False
    """
    held = tuple((each, tuple(vars(each)), tuple(vars(each).values())) for each in watched)
    return Look(kind, kind.__mro__, held)


def behind(thing: Any) -> Any:
    """What runs, or is found, where a class has something under a name.

    >>> behind(property(len)) is len, behind(3)
    (True, 3)
    """
    if isinstance(thing, (property, types.DynamicClassAttribute)):
        return thing.fget
    if isinstance(thing, (staticmethod, classmethod)):
        return behind(thing.__func__)
    if isinstance(thing, functools.cached_property):
        return thing.func
    return None if isinstance(thing, (*_FIELDS, enum.Enum)) else thing


def is_made(function: Any) -> bool:
    """Whether nobody has written a function: those of data classes and named tuples are made."""
    return isinstance(function, FunctionType) and function.__code__.co_filename == "<string>"


def run_by(value: Any, name: str) -> Iterator[FunctionType]:
    """The functions that run when an attribute of an object, a class or a module is read.

    >>> class Own:
    ...     @property
    ...     def by(self): return 2
    >>> [each.__name__ for each in run_by(Own(), "by")]
    ['by']
    """
    of = [type(value), *([value] if isinstance(value, type) else [])]
    places = [inspect.getattr_static(kind, name, None) for kind in of]
    hooks = [inspect.getattr_static(type(value), each, None) for each in _HOOKS]
    if isinstance(value, ModuleType):
        hooks.append(vars(value).get("__getattr__"))
    for place in places:
        hooks.append(inspect.getattr_static(type(place), "__get__", None))
        if not isinstance(place, (FunctionType, staticmethod, classmethod)):  # these run if called
            hooks.append(behind(place))
    yield from (each for each in hooks if isinstance(each, FunctionType))


_HOOKS = ("__getattr__", "__getattribute__")


# -- attributes -----------------------------------------------------------------------------------

GONE = object()
"""In place of an attribute that is not there."""


def followed(value: Any, chain: list[str]) -> Any:
    """An attribute of an attribute; `GONE` where there is none, an error where it raises.

    >>> followed(3, ["real", "imag"]), followed(3, ["by"]) is GONE
    (0, True)
    """
    try:
        return functools.reduce(getattr, chain, value)
    except AttributeError:
        return GONE
    except Exception as error:  # a property's: whoever reads it in earnest is told
        return error


def is_set_by_class(value: Any, name: str) -> bool:
    """Whether a class has the say on an attribute, whatever someone puts on its object."""
    return hasattr(type(inspect.getattr_static(type(value), name, None)), "__set__")


def has_more(value: Any, names: set[str]) -> bool:
    """Whether someone has put an attribute of one of these names on a data class's object that a
    value is or holds."""
    if type(value) in (list, tuple, dict):
        return any(
            has_more(item, names) for item in (value.values() if type(value) is dict else value)
        )
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    fields = {field.name for field in dataclasses.fields(value)}
    put = getattr(value, "__dict__", {}).keys() - fields
    held = (getattr(value, name, None) for name in fields)
    return not put.isdisjoint(names) or any(has_more(item, names) for item in held)


# -- functions ------------------------------------------------------------------------------------


def is_same(now: Any, found: Any) -> bool:
    """Whether a function is the same; methods are made anew each time."""
    if isinstance(found, (types.MethodType, BuiltinFunctionType, types.MethodWrapperType)):
        return type(now) is type(found) and bool(now == found)
    return now is found


def parts_of(function: FunctionType) -> tuple[Any, ...]:
    """What in a function someone may replace."""
    named = function.__kwdefaults__
    return (function.__code__, _Each(function.__defaults__), _Each(named and (*named.values(),)))


class _Each(tuple[Any, ...]):
    """Values that are the same if each is the very same."""

    __slots__ = ()

    def __new__(cls, items: Any) -> _Each:
        return super().__new__(cls, items or ())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Each) and len(self) == len(other)
        return same and all(one is two for one, two in zip(self, other, strict=True))  # type: ignore[call-overload]

    __hash__ = tuple.__hash__
