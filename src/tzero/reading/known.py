"""The objects of the world that a call has met, and the guards on what it read of them.

Enters: objects that guarded reads returned, with names for messages. Leaves: whether an object is
of the world, and the guards, each once. It must not know how an object is read.

An object is of the world if a guarded read returned it. Everything else was made during the call
from guarded values, so reads of it need no guard. Objects are recognized by identity, whatever name
the call uses for them.
"""

from __future__ import annotations

import enum
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch

from tzero.reading.attributes import MISSING, class_dict, own_dict
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Absent, Bases, Check, Equal, Guard, Held, OfClass, OwnDict, Same
from tzero.reading.kinds import EQUAL, KERNELS, is_plain
from tzero.reading.purity import is_library

__all__ = ["Known", "can_change", "functions_behind", "is_a", "is_program_class"]

_MUTABLE_CLASS = 1 << 9, 1 << 8
"""Py_TPFLAGS_HEAPTYPE, which a class has whose attributes can be set, and
Py_TPFLAGS_IMMUTABLETYPE, with which they cannot."""


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Whether the class of an object is one of these, or derived from one. `isinstance` would also
    read ``value.__class__``, which may be code of the program.

    >>> is_a(True, int), is_a(3, (str, bytes))
    (True, False)
    """
    return issubclass(type(value), kinds)


def is_program_class(kind: type) -> bool:
    """Whether a class is defined by the program.

    >>> is_program_class(torch.nn.Module), is_program_class(type("Own", (), {}))
    (False, True)
    """
    return not is_library(kind)


def can_change(kind: type) -> bool:
    """Whether attributes of a class can be set, and its objects may get another class.

    >>> can_change(torch.nn.Module), can_change(int)
    (True, False)
    """
    made, fixed = _MUTABLE_CLASS
    return bool(kind.__flags__ & made) and not kind.__flags__ & fixed


_NOT_PLAIN = frozenset([ModuleType, FunctionType, BuiltinFunctionType, MethodDescriptorType])
"""Types of Python's own whose objects are often met, and are no constants."""


class Known:
    """The objects of the world and the guards. `tensor` is called with each tensor of the world,
    its name, and the number of its guard."""

    def __init__(self, tensor: Callable[[torch.Tensor, str, int], None]) -> None:
        self.guards: list[Guard] = []
        self._numbers: dict[Any, int] = {}
        self._objects: dict[int, Any] = {}
        self._passing: set[int] = set()  # of these, objects that may be new in each call
        self._names: dict[int, str] = {}
        self._tensor = tensor
        self._kinds: list[Any] = []  # objects whose class may be replaced
        self._owners: dict[int, Any] = {}  # objects whose dict of attributes was read
        self._lines: dict[type, None] = {}  # classes whose bases may be
        self._classes: set[tuple[type, str]] = set()
        # What was found before in this call: the guards on it see whether that changes meanwhile.
        self._in_classes: dict[tuple[type, str, type | None], Any] = {}
        self._of_program: dict[type, bool] = {}
        self._watched: dict[type, bool] = {}
        self._dicts: dict[type, dict[str, Any]] = {}
        self._entered: set[type] = set()  # types of objects that are no constants
        self._held: dict[int, weakref.ref[Any]] = {}  # arguments that count by identity

    def is_of_program(self, kind: type) -> bool:
        """`is_program_class`, which does not change during a call."""
        found = self._of_program.get(kind)
        if found is None:
            found = self._of_program[kind] = is_program_class(kind)
        return found

    def has(self, value: Any, passing: bool = True) -> bool:
        """Whether an object is of the world; not `passing`: and the same one in each call."""
        return id(value) in self._objects and (passing or id(value) not in self._passing)

    def name(self, value: Any) -> str:
        """What to call an object in messages."""
        found = self._names.get(id(value))
        return found or f"a {type(value).__name__}"

    def enter(self, value: Any, name: str, is_passing: bool = False) -> None:
        """Note an object that a guarded read returned; or, `is_passing`, one that a library
        function returned, which may have been there before, or may be new in each call."""
        if id(value) in self._objects:
            return
        kind = type(value)
        if kind not in self._entered:
            if kind not in _NOT_PLAIN and is_plain(value):
                return
            if kind is not slice:  # which may hold anything
                self._entered.add(kind)
        if is_passing:
            self._passing.add(id(value))
        self._objects[id(value)] = value
        self._names[id(value)] = name
        if kind in _NOT_PLAIN and kind is not ModuleType:
            return
        is_module = is_a(value, ModuleType) and not is_library(value)
        if is_module or self.is_of_program(kind) or is_a(value, torch.nn.Module):
            self._kinds.append(value)

    def hold(self, value: Any, name: str) -> bool:
        """Note an argument that is the same object in each call, and that no guard keeps alive.
        False for one of a library's class, whose methods are not followed."""
        if not self.is_of_program(type(value)) and not is_a(value, torch.nn.Module):
            return False
        self.enter(value, name)
        self._held[id(value)] = weakref.ref(value)
        return True

    def member(self, value: Any) -> None:
        """Note a member of an enum: wherever it comes from, it was there before."""
        if is_a(value, enum.Enum) and not self.has(value):
            self.enter(value, f"{type(value).__name__}.{vars(value).get('_name_')}")

    def line(self, kind: type) -> None:
        """Note a class whose bases are read."""
        if can_change(kind):
            self._lines[kind] = None

    def attributes_of(self, value: Any) -> dict[str, Any] | None:
        """The dict of an object's own attributes, which are about to be read."""
        own = own_dict(value)
        if own is not None and self.has(value):
            self._owners[id(value)] = value
        return own

    def of_classes(self, kind: type, name: str, after: type | None = None) -> Any:
        """An attribute of a class and its bases, as found for an object of the class; with `after`,
        as `super` finds it."""
        place = (kind, name, after)
        found = self._in_classes.get(place, place)
        if found is place:
            found = self._in_classes[place] = self._look_up(kind, name, after)
        return found

    def _look_up(self, kind: type, name: str, after: type | None) -> Any:
        if self._is_watched(kind):
            self.line(kind)
        first = 0 if after is None else kind.__mro__.index(after) + 1
        for each in kind.__mro__[first:]:
            is_there = name in vars(each)
            if not self._is_watched(each):
                if is_there:
                    return vars(each)[name]
                continue
            own, text = self._dict_of(each), f"{each.__qualname__}.{name}"
            if (each, name) not in self._classes:
                self._classes.add((each, name))
                if is_there:
                    self._read(text, own, name, own[name])
                else:
                    self.absent(f"no {text}", own, name)
            if is_there:
                self._found(own[name], text)
                return own[name]
        return MISSING

    def _is_watched(self, kind: type) -> bool:
        """Whether the program may set attributes of a class: its own, and most of libraries."""
        found = self._watched.get(kind)
        if found is None:
            of_library = can_change(kind) and _may_be_patched(kind)
            found = self._watched[kind] = of_library or self.is_of_program(kind)
        return found

    def _dict_of(self, kind: type) -> dict[str, Any]:
        """`class_dict`, which searches for it."""
        found = self._dicts.get(kind)
        if found is None:
            found = self._dicts[kind] = class_dict(kind)
        return found

    def _found(self, inner: Any, text: str) -> None:
        """What a class holds: the functions behind it are called, and its own methods."""
        for function in functions_behind(inner):
            self.enter(function, text)
        if self.is_of_program(type(inner)):
            for method in ("__get__", "__set__", "__delete__"):
                self.of_classes(type(inner), method)

    def finish(self) -> None:
        """Guard the classes and dicts of objects, and the bases of classes, once the call is
        over."""
        for value in self._kinds:
            if id(value) not in self._held:
                self.add(OfClass.of(f"the class of {self.name(value)}", value))
        for value in self._owners.values():
            if id(value) not in self._held:
                self.add(OwnDict.of(f"the dict of {self.name(value)}", value))
        for key, reference in self._held.items():
            self.add(Held.of(f"the object that is {self._names[key]}", reference))
        for kind in self._lines:
            self.add(Bases.of(f"the bases of {kind.__qualname__}", kind))

    def add(self, guard: Guard) -> int:
        """Keep a guard, unless there is one like it; returns its number."""
        text = guard.text if isinstance(guard, Check) else ""
        if self._held and isinstance(guard, Check):
            guard = self._weakly(guard)
        key = (id(guard.where), guard.name, type(guard), text)
        if key not in self._numbers:
            self._numbers[key] = len(self.guards)
            self.guards.append(guard)
        return self._numbers[key]

    def _weakly(self, guard: Check) -> Check:
        """A guard on an argument itself, as one on a weak reference to it."""
        reference = self._held.get(id(_about(guard)))
        if reference is None:
            return guard
        same = functools.partial(_of_referent, guard.check)
        return Check(guard.text, {"of": reference}, "of", guard.value, same)

    def outlives(self) -> None:
        """Refuse to guard what would keep an argument alive."""
        for guard in self.guards if self._held else ():
            parts = guard.value if type(guard.value) is tuple else ()
            for each in (guard.value, guard.name, _about(guard), *parts):
                if id(each) in self._held:
                    words = f"{guard.text} is {self._names[id(each)]}, too"
                    raise Unreplayable(f"{words}: a plan would keep it alive", "", 0)
        for key, reference in self._held.items():
            if _reaches_itself(reference()):
                words = f"{self._names[key]} is held by what it holds"
                raise Unreplayable(f"{words}: a plan would keep it alive", "", 0)

    def absent(self, text: str, where: dict[str, Any], name: str) -> None:
        """A dict does not have a name."""
        if (id(where), name, Absent, "") not in self._numbers:
            self.add(Absent(text, where, name))

    def own(self, text: str, where: Any, key: Any) -> Any:
        """An entry of a dict that belongs to an object of the world."""
        self._read(text, where, key, where[key])
        return where[key]

    def _read(self, name: str, where: Any, key: Any, value: Any) -> None:
        """A name in a dict or a cell gave a value."""
        kind = Equal if type(value) in EQUAL else Same
        number = self._numbers.get((id(where), key, kind, ""))
        if number is None:
            number = self.add(kind(name, where, key, value))
        self._given(value, name, number)

    def _given(self, value: Any, name: str, number: int) -> None:
        if id(value) in self._objects:
            return
        self.enter(value, name)
        if is_a(value, torch.Tensor):
            self._tensor(value, name, number)

    def asked(self, name: str, thing: Any, ask: Callable[[Any], Any], value: Any) -> None:
        """A function of an object gave a value; the guard calls it again."""
        same = functools.partial(_answers, ask, value)
        number = self.add(Check(name, {"of": thing}, "of", value, same))
        self._given(value, name, number)


def functions_behind(thing: Any) -> Sequence[Any]:
    """The functions behind a class attribute.

    >>> functions_behind(staticmethod(len)), functions_behind(3)
    ([<built-in function len>], [])
    """
    if isinstance(thing, property):
        return [each for each in (thing.fget, thing.fset, thing.fdel) if each is not None]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    return [thing] if is_a(thing, FunctionType) else []


def _may_be_patched(kind: type) -> bool:
    """Whether programs replace methods of a library class. tzero itself does so with kernels."""
    return not issubclass(kind, KERNELS)


def _about(guard: Guard) -> Any:
    """The object that a guard is about, if that is not found by a name."""
    is_one = type(guard.where) is dict and type(guard.name) is str and guard.name == "of"
    return guard.where.get("of") if is_one and type(guard.where) is dict else None


def _of_referent(check: Callable[[Any], bool], now: weakref.ref[Any]) -> bool:
    found = now()
    return found is not None and check(found)


def _reaches_itself(value: Any) -> bool:
    """Whether what an object holds refers to it. Classes, modules and the globals of functions are
    not searched, nor tensors."""
    rest = [each for each in gc.get_referents(value) if each is not type(value)]
    seen: set[int] = set()
    while rest:
        each = rest.pop()
        if each is value:
            return True
        if id(each) in seen or issubclass(type(each), _NOT_SEARCHED):
            continue
        seen.add(id(each))
        if type(each) is FunctionType:
            held = (each.__closure__, each.__defaults__, each.__kwdefaults__, vars(each))
            rest += [part for part in held if part]
        else:
            rest += gc.get_referents(each)
    return False


_NOT_SEARCHED = (type, ModuleType, CodeType, torch.Tensor)


def _answers(ask: Callable[[Any], Any], value: Any, now: Any) -> bool:
    """Whether a function still gives a value."""
    found = ask(now)
    if type(value) in EQUAL:
        return type(found) is type(value) and bool(found == value)
    return found is value
