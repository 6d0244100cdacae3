"""Attributes of objects, classes and modules: which functions run when one is read, and whether
classes and functions have changed.

Enters: any value. Leaves: the functions behind an attribute, and snapshots to compare with later.
It must not know host functions or guards.
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
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

__all__ = [
    "CONSTRUCTION",
    "COPYING",
    "INTROSPECTION",
    "MISSING",
    "Snapshot",
    "class_dict",
    "follow",
    "functions_run",
    "has_added",
    "holds_only_fields",
    "implementation",
    "is_data_descriptor",
    "is_generated",
    "is_hooked",
    "is_same",
    "may_be_hidden",
    "own_dict",
    "snapshot",
]

_FIELDS = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    type(inspect.getattr_static(collections.namedtuple("_Pair", "x"), "x")),
)
"""Descriptors in C, behind fields and methods; they do not change."""

INTROSPECTION = frozenset(
    [
        *("__globals__", "__dict__", "__closure__", "__builtins__", "__getattribute__"),
        *("__subclasses__", "__wrapped__", "__func__", "cell_contents"),
        *("f_globals", "f_locals", "f_builtins", "f_back", "gi_frame"),
    ]
)
"""Attributes through which code can reach anything."""

CONSTRUCTION = frozenset(
    [
        *("__init__", "__new__", "__post_init__", "__init_subclass__"),
        *("__setattr__", "__delattr__", "__set_name__"),
    ]
)
"""Methods that run only when an object or a class is created or modified."""

COPYING = frozenset(
    [*("type", "__class__", "replace", "_replace", "_make", "copy", "deepcopy"), *CONSTRUCTION]
)
"""Names by which code creates an object from another one, without naming its class."""


def class_dict(kind: type) -> dict[str, Any]:
    """The dict behind `vars` of a class, which is only a proxy: native code watches dicts. It is
    not to be written to.

    >>> class Own:
    ...     by = 2
    >>> class_dict(Own)["by"]
    2
    """
    (found,) = gc.get_referents(vars(kind))
    assert type(found) is dict
    return found


def own_dict(value: Any) -> dict[str, Any] | None:
    """The dict of an object's own attributes, if it has one; hooks of its class do not run.

    >>> own_dict(types.SimpleNamespace(by=2)), own_dict(3)
    ({'by': 2}, None)
    """
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


class Snapshot(NamedTuple):
    """A class as it was: its MRO, and the contents of the classes in it that are watched."""

    kind: type
    mro: tuple[type, ...]
    held: tuple[tuple[type, tuple[str, ...], tuple[Any, ...]], ...]

    def holds(self) -> bool:
        """Whether the class is unchanged. Contents are compared by identity, since their `__eq__`
        may do anything."""
        return self.kind.__mro__ is self.mro and all(
            len(vars(kind)) == len(names)
            and all(map(operator.eq, vars(kind), names))
            and all(map(operator.is_, vars(kind).values(), values))
            for kind, names, values in self.held
        )


def snapshot(kind: type, watched: list[type]) -> Snapshot:
    """A class as it is now.

    >>> class Own:
    ...     by = 2
    >>> before = snapshot(Own, [Own])
    >>> Own.by = 3
    >>> before.holds()
    False
    """
    held = tuple((each, tuple(vars(each)), tuple(vars(each).values())) for each in watched)
    return Snapshot(kind, kind.__mro__, held)


def implementation(thing: Any) -> Any:
    """What runs, or is returned, when an attribute is read that a class holds as `thing`.

    >>> implementation(property(len)) is len, implementation(3)
    (True, 3)
    """
    if isinstance(thing, (property, types.DynamicClassAttribute)):
        return thing.fget
    if isinstance(thing, (staticmethod, classmethod)):
        return implementation(thing.__func__)
    if isinstance(thing, functools.cached_property):
        return thing.func
    return None if isinstance(thing, (*_FIELDS, enum.Enum)) else thing


def is_generated(function: Any) -> bool:
    """Whether a function was generated, as those of dataclasses and named tuples are."""
    if not isinstance(function, FunctionType) or function.__code__.co_filename != "<string>":
        return False
    return function.__name__.startswith("__")  # others are the program's, run by `exec`


def functions_run(value: Any, name: str) -> Iterator[FunctionType]:
    """The functions that run when an attribute of an object, a class or a module is read.

    >>> class Own:
    ...     @property
    ...     def by(self): return 2
    >>> [each.__name__ for each in functions_run(Own(), "by")]
    ['by']
    """
    of = [type(value), *([value] if isinstance(value, type) else [])]
    places = [inspect.getattr_static(kind, name, None) for kind in of]
    hooks = [inspect.getattr_static(type(value), each, None) for each in _HOOKS]
    if isinstance(value, ModuleType):
        hooks.append(vars(value).get("__getattr__"))
    for place in places:
        hooks.append(inspect.getattr_static(type(place), "__get__", None))
        if not isinstance(place, (FunctionType, staticmethod, classmethod)):  # run only if called
            hooks.append(implementation(place))
    yield from (each for each in hooks if isinstance(each, FunctionType))


_HOOKS = ("__getattr__", "__getattribute__")


# -- attributes -----------------------------------------------------------------------------------

MISSING = object()
"""Stands for an attribute that does not exist."""


def follow(value: Any, chain: Sequence[str]) -> Any:
    """``value.a.b``; `MISSING` if there is no such attribute, the exception if reading it raises.

    >>> follow(3, ["real", "imag"]), follow(3, ["by"]) is MISSING
    (0, True)
    """
    try:
        return functools.reduce(getattr, chain, value)
    except AttributeError:
        return MISSING
    except Exception as error:  # raised by a property; the caller decides
        return error


def is_data_descriptor(value: Any, name: str) -> bool:
    """Whether the class defines an attribute so that none on the object can hide it."""
    return hasattr(type(inspect.getattr_static(type(value), name, None)), "__set__")


def may_be_hidden(name: str) -> bool:
    """Whether a tensor may have an attribute of its own in the place of one of its class.

    >>> may_be_hidden("view"), may_be_hidden("shape"), may_be_hidden("factor")
    (True, False, True)
    """
    return not hasattr(type(inspect.getattr_static(torch.Tensor, name, None)), "__set__")


def is_hooked(kind: type) -> bool:
    """Whether code of a class runs whenever an attribute of its objects is read, ``__class__``
    among them, which `isinstance` reads.

    >>> is_hooked(int), is_hooked(type("Own", (), {"__class__": property(lambda self: int)}))
    (False, True)
    """
    return any(
        isinstance(vars(each).get("__getattribute__"), FunctionType) or "__class__" in vars(each)
        for each in kind.__mro__[:-1]
    )


def holds_only_fields(kind: type) -> bool:
    """Whether the objects of a dataclass hold nothing besides fields and attributes in a dict: they
    are no containers or exceptions too, have no other slots, and compute no field.

    >>> @dataclasses.dataclass
    ... class Table(dict):
    ...     by: int
    >>> holds_only_fields(Table)
    False
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    for each in kind.__mro__:
        if each.__flags__ & _HEAP_TYPE == 0 and each is not object:
            return False
        for name, held in vars(each).items():
            if type(held) is types.MemberDescriptorType and name not in fields:
                return False
            if name in fields and isinstance(held, (property, functools.cached_property)):
                return False
    return True


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: written in Python, mostly


def has_added(value: Any, names: set[str]) -> bool:
    """Whether a value is or holds a dataclass instance with an attribute, of one of these names,
    that is not a field."""
    if type(value) in (list, tuple, dict):
        return any(
            has_added(item, names) for item in (value.values() if type(value) is dict else value)
        )
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    fields = {field.name for field in dataclasses.fields(value)}
    added = getattr(value, "__dict__", {}).keys() - fields
    held = (getattr(value, name, None) for name in fields)
    return not added.isdisjoint(names) or any(has_added(item, names) for item in held)


# -- functions ------------------------------------------------------------------------------------


def is_same(now: Any, found: Any) -> bool:
    """Whether a callable is the same; each read of a method creates a new object."""
    if isinstance(found, (types.MethodType, BuiltinFunctionType, types.MethodWrapperType)):
        return type(now) is type(found) and bool(now == found)
    return now is found
