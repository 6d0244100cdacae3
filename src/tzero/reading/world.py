"""What a call reads of the world: objects that were there before it, and guards on each read.

    the global 'cfg'    ──► Same       and cfg is an object of the world
    cfg.scale           ──► Equal in the dict of cfg, Absent in its classes
    TABLE["add"]        ──► Same in TABLE
    for x in ITEMS      ──► Items: ITEMS holds the same objects

Enters: one read of a running call at a time: of a global, a closure variable, an attribute, an
item, or all contents. Leaves: a guard that fails when that read would give something else. It must
not know bytecode or calls.

An object is of the world if a guarded read returned it. Everything else was made during the call
from guarded values, so reads of it need no guard. Objects are recognized by identity, whatever name
the call uses for them.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from tzero import settings
from tzero.adapters import triton_launch
from tzero.adapters.python_frames import variables_of
from tzero.errors import UnsupportedType
from tzero.reading.attributes import MISSING, class_dict, follow
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import (
    Absent,
    Bases,
    Check,
    Code,
    Equal,
    Guard,
    Item,
    Items,
    OfClass,
    Same,
    items_of,
)
from tzero.reading.kinds import EQUAL, IDENTICAL, KERNELS, is_plain
from tzero.reading.purity import AUTOCAST, is_impure_name, is_library

__all__ = ["CONTAINERS", "STEADY", "World", "has_state", "is_program_class"]

CONTAINERS = (
    *(list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict),
    *(collections.deque, types.MappingProxyType),
)
_MUTABLE = (list, dict, set, collections.deque, bytearray)
_SETTLED = (
    *IDENTICAL,
    *(torch.finfo, torch.iinfo, types.MethodType, types.BuiltinFunctionType, functools.partial),
    *(types.CodeType, types.MethodDescriptorType, types.WrapperDescriptorType),
)
"""Library types whose attributes do not change."""


def is_program_class(kind: type) -> bool:
    """Whether a class is defined by the program.

    >>> is_program_class(torch.nn.Module), is_program_class(type("Own", (), {}))
    (False, True)
    """
    return not is_library(kind)


class World:
    """The objects of the world that a call has met, and the guards on what it read of them.
    `tensor` is called with each tensor of the world, its name, and the number of its guard."""

    def __init__(self, tensor: Callable[[torch.Tensor, str, int], None]) -> None:
        self.guards: list[Guard] = []
        self._numbers: dict[Any, int] = {}
        self._objects: dict[int, Any] = {}
        self._passing: set[int] = set()  # of these, objects that may be new in each call
        self._names: dict[int, str] = {}
        self._tensor = tensor
        self._classes: set[tuple[type, str]] = set()
        self._kinds: list[Any] = []  # objects of the program's classes
        self._lines: set[type] = set()  # the program's classes
        self._complete: set[tuple[int, bool]] = set()  # containers whose contents are guarded

    # -- objects -------------------------------------------------------------------------------

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
        if is_plain(value) or id(value) in self._objects:
            return
        if is_passing:
            self._passing.add(id(value))
        self._objects[id(value)] = value
        self._names[id(value)] = name
        if is_program_class(type(value)):
            self._kinds.append(value)

    def finish(self) -> None:
        """Guard the classes of objects, and the bases of classes, once the call is over."""
        for value in self._kinds:
            self.add(OfClass.of(f"the class of {self.name(value)}", value))
        for kind in self._lines:
            self.add(Bases.of(f"the bases of {kind.__qualname__}", kind))

    def add(self, guard: Guard) -> int:
        """Keep a guard, unless there is one like it; returns its number."""
        text = guard.text if isinstance(guard, Check) else ""
        key = (id(guard.where), guard.name, type(guard), text)
        if key not in self._numbers:
            self._numbers[key] = len(self.guards)
            self.guards.append(guard)
        return self._numbers[key]

    def _read(self, name: str, where: Any, key: Any, value: Any) -> None:
        """A name in a dict or a cell gave a value."""
        kind = Equal if type(value) in EQUAL else Same
        number = self.add(kind(name, where, key, value))
        self._given(value, name, number)

    def _given(self, value: Any, name: str, number: int) -> None:
        known = self.has(value)
        self.enter(value, name)
        if isinstance(value, torch.Tensor) and not known:
            self._tensor(value, name, number)

    def _asked(self, name: str, thing: Any, ask: Callable[[Any], Any], value: Any) -> None:
        """A function of an object gave a value; the guard calls it again."""
        if type(value) in EQUAL:
            same: Callable[[Any], bool] = lambda now: (  # noqa: E731
                type(found := ask(now)) is type(value) and found == value
            )
        else:
            same = lambda now: ask(now) is value  # noqa: E731
        number = self.add(Check(name, {"of": thing}, "of", value, same))
        self._given(value, name, number)

    # -- names ---------------------------------------------------------------------------------

    def global_(self, name: str, namespace: dict[str, Any], builtins: dict[str, Any]) -> Any:
        """A global or a builtin; `MISSING` if there is none."""
        if name in namespace:
            self._read(f"the global {name!r}", namespace, name, namespace[name])
            return namespace[name]
        self.add(Absent(f"no global {name!r}", namespace, name))
        if name in builtins:
            self._read(f"the builtin {name!r}", builtins, name, builtins[name])
            return builtins[name]
        self.add(Absent(f"no builtin {name!r}", builtins, name))
        return MISSING

    def cell(self, name: str, cell: CellType) -> None:
        """A closure variable."""
        text = f"the closure variable {name!r}"
        try:
            content = cell.cell_contents
        except ValueError:
            empty = lambda now: now == CellType()  # noqa: E731
            self.add(Check(text, {"where": cell}, "where", None, empty))
            return
        self._read(text, cell, "", content)

    def module(self, name: str, modules: dict[str, Any]) -> Any:
        """An entry of `sys.modules`."""
        if name not in modules:
            return MISSING
        self._read(f"the module {name!r}", modules, name, modules[name])
        return modules[name]

    def own(self, text: str, where: dict[str, Any], name: str) -> None:
        """An entry of a dict that belongs to an object of the world."""
        self._read(text, where, name, where[name])

    # -- attributes ----------------------------------------------------------------------------

    def attribute(self, value: Any, name: str) -> Any:
        """An attribute that is about to be read; its value, or `MISSING` where Python code finds
        it, which is traced itself, or where it does not exist."""
        if isinstance(value, ModuleType):
            return self._of_module(value, name)
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value, name)
        if isinstance(value, type):
            return self._of_class(value, name, name_of=self.name(value))
        if isinstance(value, super):
            kind, after = value.__self_class__, value.__thisclass__  # type: ignore[attr-defined]
            return self.of_classes(kind, name, after)
        return self._of_object(value, name)

    def _of_module(self, module: ModuleType, name: str) -> Any:
        own, text = vars(module), f"{module.__name__}.{name}"
        if (
            is_impure_name(module.__name__, name)
            and (module.__name__, name) not in _GUARDED
            and not _is_harmless(own.get(name))
        ):
            raise Unreplayable(
                f"it uses {text}, which has side effects or is nondeterministic", "", 0
            )
        if name in own:
            self._read(text, own, name, own[name])
            return own[name]
        self.add(Absent(f"no {text}", own, name))
        if type(module) is not ModuleType:  # its class has properties, as torch.backends
            return self._of_library_property(module, name, text)
        hook = own.get("__getattr__")
        if isinstance(hook, FunctionType) and is_library(hook):  # loads a submodule, or the like
            found = follow(module, [name])
            if isinstance(found, Exception):
                raise Unreplayable(f"it may read {text}, which raises", "", 0)
            if found is not MISSING:
                self._asked(text, module, lambda now: follow(now, [name]), found)
            return found
        if hook is not None:
            self._read(f"{module.__name__}.__getattr__", own, "__getattr__", hook)
        return MISSING

    def _of_tensor(self, tensor: torch.Tensor, name: str) -> Any:
        """torch's own attributes are seen by the recorder; the program may replace or add some."""
        own = vars(tensor)
        if name in own:
            if not self.has(tensor):
                raise Unreplayable(f"it reads {name!r}, an attribute added to a tensor", "", 0)
            self._read(f"{self.name(tensor)}.{name}", own, name, own[name])
            return own[name]
        if self.has(tensor):
            self.add(Absent(f"no attribute {name!r} on {self.name(tensor)}", own, name))
        kind = type(tensor) if type(tensor) is torch.nn.Parameter else torch.Tensor
        for each in kind.__mro__[:-1]:
            own = class_dict(each)
            if name in own:
                self.add(Same(f"{each.__name__}.{name}", own, name, own[name]))
                self.enter(own[name], f"{each.__name__}.{name}")
                return MISSING
            if each in (torch.nn.Parameter, torch.Tensor):
                self.add(Absent(f"no {each.__name__}.{name}", own, name))
        return MISSING

    def of_classes(self, kind: type, name: str, after: type | None = None) -> Any:
        """An attribute of a class and its bases, as found for an object of the class; with `after`,
        as `super` finds it."""
        if is_program_class(kind):
            self._lines.add(kind)
        first = 0 if after is None else kind.__mro__.index(after) + 1
        for each in kind.__mro__[first:]:
            if is_library(each) and each not in _WATCHED:
                if name in vars(each):
                    return vars(each)[name]
                continue
            own, text = class_dict(each), f"{each.__qualname__}.{name}"
            if (each, name) not in self._classes:
                self._classes.add((each, name))
                if name in own:
                    self._read(text, own, name, own[name])
                else:
                    self.add(Absent(f"no {text}", own, name))
            if name in own:
                inner = own[name]
                for function in _functions(inner):
                    self.enter(function, text)
                if is_program_class(type(inner)):
                    for method in ("__get__", "__set__", "__delete__"):
                        self.of_classes(type(inner), method)
                return inner
        return MISSING

    def _of_class(self, kind: type, name: str, name_of: str) -> Any:
        """An attribute of a class itself."""
        meta = self.of_classes(type(kind), name)
        found = self.of_classes(kind, name)
        if found is not MISSING:
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            self.enter(found, f"{name_of}.{name}")
            return found
        if isinstance(kind, enum.EnumMeta):  # its members are found by its metaclass
            members = vars(kind)["_member_map_"]
            if name in members:
                self._read(f"{name_of}.{name}", members, name, members[name])
                return members[name]
        if meta is not MISSING and not is_library(type(kind)):
            return MISSING
        return follow(kind, [name]) if meta is not MISSING else MISSING

    def _of_object(self, value: Any, name: str) -> Any:
        kind, text = type(value), f"{self.name(value)}.{name}"
        if kind is FunctionType and name == "__name__":
            self.add(Code.of(f"the code of {self.name(value)}", value))
            return value.__name__
        found = self.of_classes(kind, name)
        for hook in ("__getattribute__", "__getattr__"):
            if is_program_class(kind):
                self.of_classes(kind, hook)
        if isinstance(found, property) and isinstance(found.fget, FunctionType):
            if is_library(found.fget):
                return self._of_library_property(value, name, text)
            return MISSING
        if not self.has(value):
            return found
        own = _own(value)
        if own is not None and name in own:
            self._read(text, own, name, own[name])
            return own[name]
        if own is not None:
            self.add(Absent(f"no attribute {text}", own, name))
        if isinstance(value, torch.nn.Module):
            return self._of_torch_module(value, name, text) if found is MISSING else found
        if isinstance(value, (*KERNELS, *_SETTLED)):
            return MISSING
        if _is_computed(kind, found):
            return self._of_library_property(value, name, text)
        return found

    def _of_library_property(self, value: Any, name: str, text: str) -> Any:
        """A property that library code or C computes: asked again by the guard."""
        if isinstance(value, enum.Enum) and name in ("value", "name"):
            own = vars(value)
            self._read(text, own, f"_{name}_", own[f"_{name}_"])
            return own[f"_{name}_"]
        if not self.has(value) or isinstance(value, _SETTLED):
            return MISSING
        found = follow(value, [name])
        if isinstance(found, Exception):
            raise Unreplayable(f"it may read {text}, which raises {type(found).__name__}", "", 0)
        if callable(found) and not isinstance(found, (type, FunctionType)):
            return found  # a bound method: each read makes another
        self._asked(text, value, lambda now: follow(now, [name]), found)
        return found

    def _of_torch_module(self, module: torch.nn.Module, name: str, text: str) -> Any:
        """A parameter, buffer or submodule, which `torch.nn.Module` keeps in dicts."""
        own = vars(module)
        for place in ("_parameters", "_buffers", "_modules"):
            held: Any = own.get(place)
            if type(held) not in (dict, collections.OrderedDict):
                raise Unreplayable(f"it reads {text}, of a module that was not initialized", "", 0)
            self._read(f"{self.name(module)}.{place}", own, place, held)
            if name in held:
                if type(held) is dict:
                    self._read(text, held, name, held[name])
                else:
                    self._asked(text, held, lambda now: now.get(name), held[name])
                return held[name]
            if type(held) is dict:
                self.add(Absent(f"no {text}", held, name))
        return MISSING

    # -- items ---------------------------------------------------------------------------------

    def item(self, value: Any, key: Any) -> Any:
        """An item of a container that is about to be read."""
        if not self.has(value):
            return MISSING
        text = f"{self.name(value)}[{str(key)[:40]!s}]"
        if value is settings.ENVIRONMENT:
            held, key = variables_of(value), value.encodekey(key)
            if key in held:
                self._read(text, held, key, held[key])
            else:
                self.add(Absent(f"no {text}", held, key))
            return MISSING
        kind = type(value)
        if kind is dict and type(key) in _KEYS and id(value) not in self._passing:
            if key in value:
                self._read(text, value, key, value[key])
                return value[key]
            self.add(Absent(f"no {text}", value, key))
            return MISSING
        if kind in (tuple, torch.Size) or isinstance(value, tuple):
            return self._of_sequence(value, key, text, fixed=True)
        if kind in (list, collections.deque):
            return self._of_sequence(value, key, text, fixed=False)
        if isinstance(value, dict) and kind in CONTAINERS and is_plain(key):
            found = dict.get(value, key, MISSING)
            if found is MISSING and kind is collections.defaultdict:
                raise Unreplayable(f"it adds an item to {self.name(value)}", "", 0)
            self._asked(text, value, lambda now: dict.get(now, key, MISSING), found)
            return found
        self.contents(value)
        return MISSING

    def _of_sequence(self, value: Any, key: Any, text: str, fixed: bool) -> Any:
        if type(key) not in (int, bool) or not -len(value) <= key < len(value):
            self.contents(value)
            return MISSING
        found = value[key]
        if fixed:
            self.enter(found, text, is_passing=id(value) in self._passing)
            if isinstance(found, torch.Tensor) and id(value) not in self._passing:
                self._asked(text, value, lambda now: now[key], found)
        else:
            if type(value) is list and not isinstance(found, torch.Tensor):
                self._given(found, text, self.add(Item.of(text, value, int(key))))
                return found
            ask = lambda now: now[key] if -len(now) <= key < len(now) else MISSING  # noqa: E731
            self._asked(text, value, ask, found)
        return found

    def contents(self, value: Any, deep: bool = False) -> None:
        """All items of a container, which are read as objects; `deep`: and what they hold."""
        if not self.has(value):
            return
        if type(value) not in CONTAINERS:
            if has_state(value) and (not is_program_class(type(value)) or _is_builtin(value)):
                kind = UnsupportedType(kind=type(value).__name__).named
                name = self.name(value)
                raise Unreplayable(
                    f"it reads {name}, and tzero cannot see changes of {kind}", "", 0
                )
            return
        if (id(value), deep) in self._complete:  # or in the middle of it, if it holds itself
            return
        self._complete.add((id(value), deep))
        items = items_of(value)
        text = f"the contents of {self.name(value)}"
        if type(value) is tuple:  # it cannot change
            number = -1
        elif type(value) in (list, dict, set, frozenset):
            number = self.add(Items.of(text, value))
        else:
            guard = Items.of(text, value)
            number = self.add(Check(text, guard.where, guard.name, guard.value, guard.check))
        for k, each in enumerate(items):
            name = f"{self.name(value)}[{k}]"
            if isinstance(each, torch.Tensor):
                if id(value) not in self._passing:  # else the recorder knows it, or refuses it
                    self._asked(name, value, functools.partial(_item, k), each)
            else:
                self._given(each, name, number)
                if deep:
                    self.contents(each, deep=True)

    def is_mutable(self, value: Any) -> bool:
        """Whether a value is a container of the world that can be changed."""
        return self.has(value) and isinstance(value, _MUTABLE)


def _is_harmless(found: Any) -> bool:
    """Whether a value in a module of impure functions can be read: a submodule, whose names are
    judged when they are read, or a class of tensors, whose objects the recorder refuses."""
    return isinstance(found, ModuleType) or (
        isinstance(found, type) and issubclass(found, torch.Tensor)
    )


_KEYS = (str, int, bool, type(None), torch.dtype, torch.device)
"""Keys of dicts that native code looks up: comparing them runs no Python code."""

_GUARDED = frozenset(
    [
        *(("os", "environ"), ("sys", "modules"), ("torch.cuda", "device")),
        *(("torch", each.__name__) for each in AUTOCAST),
    ]
)
"""Names in modules that hold state whose reads are guarded, or that `called` judges."""

_WATCHED = (torch.Tensor, torch.nn.Parameter)
_METHODS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    functools.cached_property,
)


STEADY = (str, bytes, int, float, complex, range, slice, tuple, frozenset, torch.Size, torch.device)
"""Types whose values do not change; what they hold may."""


def has_state(value: Any) -> bool:
    """Whether code that is not followed could read more of an object than its identity.

    >>> has_state([1]), has_state((1,)), has_state(len)
    (True, False, False)
    """
    if isinstance(value, (torch.Tensor, FunctionType, type, ModuleType, *KERNELS)):
        return False
    if callable(value) and is_library(type(value)):
        return False
    return not is_plain(value) and not isinstance(value, (*STEADY, triton_launch.Constexpr))


def _is_builtin(value: Any) -> bool:
    """Whether an object of the program's class is a container too, whose methods are in C."""
    return isinstance(value, (list, dict, set, collections.deque, bytearray))


def _is_computed(kind: type, found: Any) -> bool:
    """Whether library code computes an attribute that an object itself does not have."""
    if found is MISSING:
        hook = inspect.getattr_static(kind, "__getattr__", None)
        return isinstance(hook, FunctionType) and is_library(hook)
    if isinstance(found, (FunctionType, staticmethod, classmethod, *_METHODS)):
        return False
    return hasattr(type(found), "__get__") and not is_program_class(type(found))


def _own(value: Any) -> dict[str, Any] | None:
    """The dict of an object's own attributes, if it has one."""
    own = getattr(value, "__dict__", None)
    return own if type(own) is dict else None


def _functions(thing: Any) -> Sequence[Any]:
    """The functions behind a class attribute."""
    if isinstance(thing, property):
        return [each for each in (thing.fget, thing.fset, thing.fdel) if each is not None]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    return [thing] if isinstance(thing, FunctionType) else []


def _item(k: int, value: Any) -> Any:
    items = items_of(value)
    return items[k] if k < len(items) else MISSING
