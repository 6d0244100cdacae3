"""Reads of items and of all contents of objects.

    TABLE["add"]        ──► Same in TABLE
    for x in ITEMS      ──► Items: ITEMS holds the same objects
    sum([ITEMS, []])    ──► likewise: what a new list holds may be of the world

Enters: a container, or any object that code which is not followed reads in depth. Leaves: guards
on what is read, or `Unreplayable`. It must not know bytecode or calls, and runs no code of the
program.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from tzero import settings
from tzero.adapters import triton_launch
from tzero.adapters.python_frames import variables_of
from tzero.errors import UnsupportedType
from tzero.reading.attributes import MISSING, own_dict
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Check, Item, Items, items_of
from tzero.reading.kinds import KERNELS, is_plain
from tzero.reading.known import Known, is_a, is_program_class
from tzero.reading.purity import is_library

__all__ = ["BY_METHODS", "CONTAINERS", "MODULES", "STEADY", "Contents", "has_state"]

CONTAINERS = (
    *(list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict),
    *(collections.deque, types.MappingProxyType),
)
_MUTABLE = (list, dict, set, collections.deque, bytearray)
_KEYS = (str, int, bool, type(None), torch.dtype, torch.device)
"""Keys of dicts that native code looks up: comparing them runs no Python code."""

STEADY = (str, bytes, int, float, complex, range, slice, tuple, frozenset, torch.Size, torch.device)
"""Types whose values do not change; what they hold may."""

MODULES = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
"""Modules that hold others, in a dict of modules."""

BY_METHODS = (torch.nn.ParameterList, torch.nn.ParameterDict)
"""Modules whose own methods, which are followed, find what they hold."""

_OPERATORS = (
    *(
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__hash__",
        "__bool__",
        "__len__",
    ),
    *("__iter__", "__getitem__", "__repr__", "__str__", "__format__", "__add__", "__radd__"),
    *("__index__", "__int__", "__float__"),
)
"""Methods by which functions in C use an object."""


class Contents(Known):
    """Guards what is read of containers, and of what they hold."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor)
        self._complete: set[int] = set()  # containers whose items are guarded

    # -- one item ------------------------------------------------------------------------------

    def item(self, value: Any, key: Any) -> Any:
        """An item of a container that is about to be read."""
        if not self.has(value):
            return MISSING
        text = f"{self.name(value)}[{_shown(key)}]"
        if value is settings.ENVIRONMENT:
            return self._variable(value, key, text)
        kind = type(value)
        if kind is dict and type(key) in _KEYS and id(value) not in self._passing:
            if key in value:
                return self.own(text, value, key)
            self.absent(f"no {text}", value, key)
            return MISSING
        if issubclass(kind, tuple):
            return self._of_sequence(value, key, text)
        if kind in (list, collections.deque):
            return self._of_sequence(value, key, text)
        if issubclass(kind, dict) and kind in CONTAINERS and is_plain(key):
            found = self.dict_item(value, key)
            if found is MISSING and kind is collections.defaultdict:
                raise Unreplayable(f"it adds an item to {self.name(value)}", "", 0)
            return found
        self.contents(value)
        if issubclass(kind, dict):  # keys are hashed and compared
            for each in (key, *value):
                self.contents(each, deep=True)
        return MISSING

    def dict_item(self, value: dict[Any, Any], key: Any) -> Any:
        """What `dict.get` finds in a dict of the world, also in one of a class of its own."""
        found = dict.get(value, key, MISSING)
        text = f"{self.name(value)}[{_shown(key)}]"
        self.asked(text, value, lambda now: dict.get(now, key, MISSING), found)
        return found

    def _variable(self, environment: Any, name: Any, text: str) -> Any:
        """A variable of the environment."""
        held, key = variables_of(environment), environment.encodekey(name)
        if key in held:
            self._read(text, held, key, held[key])
        else:
            self.absent(f"no {text}", held, key)
        return MISSING

    def _of_sequence(self, value: Any, key: Any, text: str) -> Any:
        items = _items(value)
        if type(key) not in (int, bool) or not -len(items) <= key < len(items):
            self.contents(value)
            return MISSING
        found = items[key]
        if is_a(value, tuple) and (not is_a(found, torch.Tensor) or not self.has(value, False)):
            self.enter(found, text, is_passing=not self.has(value, False))
        elif type(value) is list and not is_a(found, torch.Tensor):
            self._given(found, text, self.add(Item.of(text, value, int(key))))
        else:
            self.asked(text, value, functools.partial(_item, int(key)), found)
        return found

    # -- all contents --------------------------------------------------------------------------

    def contents(
        self, value: Any, deep: bool = False, state: bool = False, seen: set[int] | None = None
    ) -> None:
        """All items of a container, which are read as objects. `deep`: and what they hold; `state`:
        and the attributes of objects among them. What a new container holds may be of the world."""
        seen = set() if seen is None else seen
        if id(value) in seen or is_plain(value):
            return
        seen.add(id(value))
        if type(value) in CONTAINERS or (is_a(value, tuple) and not is_a(value, torch.Size)):
            if self.has(value) and id(value) not in self._complete:
                self._complete.add(id(value))
                self._items_of_world(value)
            for each in _items(value) if deep else ():
                self.contents(each, True, state, seen)
        elif is_a(value, MODULES) and self.has(value):
            for name in ("__iter__", "__len__"):
                self.of_classes(type(value), name)
            self.attributes_of(value)
            modules = self.own(f"the modules of {self.name(value)}", vars(value), "_modules")
            self._items_of_world(modules)
        elif is_a(value, BY_METHODS) and not deep:
            return
        elif self.is_of_program(type(value)):
            self._object(value, deep, state, seen)
        elif self.has(value) and has_state(value):
            raise self.unwatchable(value)

    def _items_of_world(self, value: Any) -> None:
        text = f"the contents of {self.name(value)}"
        if is_a(value, tuple):  # it cannot change
            number = -1
        elif type(value) in (list, dict, set, frozenset):
            number = self.add(Items.of(text, value))
        else:
            guard = Items.of(text, value)
            number = self.add(Check(text, guard.where, guard.name, guard.value, guard.check))
        for k, each in enumerate(_items(value)):
            name = f"{self.name(value)}[{k}]"
            if is_a(each, torch.Tensor):
                if self.has(value, passing=False):  # else the recorder knows it, or refuses it
                    self.asked(name, value, functools.partial(_item, k), each)
            else:
                self._given(each, name, number)

    def _object(self, value: Any, deep: bool, state: bool, seen: set[int]) -> None:
        """An object of the program's class."""
        if self.has(value):
            if is_a(value, _MUTABLE) or (deep and is_a(value, BaseException)):
                raise self.unwatchable(value)
            if state and not is_a(value, (*STEADY, enum.Enum)):
                name = self.name(value)
                raise Unreplayable(
                    f"it passes {name} to code whose reads tzero does not see", "", 0
                )
        for name in _OPERATORS if deep else ():
            self.of_classes(type(value), name)
        if not deep or self.has(value):
            return
        for each in (*_items(value), *_state(value)):
            self.contents(each, True, state, seen)

    def unwatchable(self, value: Any) -> Unreplayable:
        """The reason for an object that may change unseen."""
        kind = UnsupportedType(kind=type(value).__name__).named
        return Unreplayable(
            f"it reads {self.name(value)}, and tzero cannot see changes of {kind}", "", 0
        )

    def is_mutable(self, value: Any) -> bool:
        """Whether a value is a container of the world that can be changed."""
        return self.has(value) and is_a(value, _MUTABLE)


def has_state(value: Any) -> bool:
    """Whether code that is not followed could read more of an object than its identity.

    >>> has_state([1]), has_state((1,)), has_state(len)
    (True, False, False)
    """
    if is_a(value, (torch.Tensor, FunctionType, type, ModuleType, *KERNELS)):
        return False
    if is_library(type(value)) and callable(value) and not is_a(value, torch.nn.Module):
        return False
    if is_library(type(value)) and is_a(value, enum.Enum):  # compared by identity
        return False
    if type(value) is torch.Generator:  # each draw is recorded, and its methods are refused
        return False
    return not is_plain(value) and not is_a(value, (*STEADY, triton_launch.Constexpr))


def _state(value: Any) -> Iterator[Any]:
    """What an object holds in its dict and its slots."""
    yield from (own_dict(value) or {}).values()
    for kind in type(value).__mro__:
        for each in vars(kind).values():
            if type(each) is types.MemberDescriptorType and is_program_class(kind):
                try:
                    yield each.__get__(value)
                except AttributeError:
                    continue  # not set


def _items(value: Any) -> tuple[Any, ...]:
    """What a container holds, whatever its class makes of it; nothing if it is none."""
    if type(value) in CONTAINERS:
        return items_of(value)
    for kind in (tuple, list, set, frozenset, collections.deque):
        if is_a(value, kind):
            return tuple(kind.__iter__(value))
    if is_a(value, dict):
        return tuple(each for pair in list(dict.items(value)) for each in pair)
    return ()


def _item(k: int, value: Any) -> Any:
    items = _items(value)
    return items[k] if -len(items) <= k < len(items) else MISSING


def _shown(key: Any) -> str:
    """A key in messages; the text of other objects may be the program's."""
    return str(key)[:40] if is_plain(key) else f"a {type(key).__name__}"
