"""What a call reads of the world: guards on each read of an object that was there before it.

    the global 'cfg'    ──► Same       and cfg is an object of the world
    cfg.scale           ──► Equal in the dict of cfg, Absent in its classes
    TABLE["add"]        ──► Same in TABLE
    for x in ITEMS      ──► Items: ITEMS holds the same objects

Enters: one read of a running call at a time: of a global, a closure variable, an attribute, an
item, or all contents. Leaves: a guard that fails when that read would give something else. It must
not know bytecode or calls.

It runs no code of the program: an attribute that a library computes is `Pending` until the call
itself has read it.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from tzero.adapters import torch_modes
from tzero.adapters.python_frames import Codes
from tzero.reading.attributes import MISSING, class_dict, follow
from tzero.reading.contents import Contents
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Check, Code, Result, Same
from tzero.reading.kinds import IDENTICAL, KERNELS
from tzero.reading.known import is_a, is_program_class
from tzero.reading.purity import AUTOCAST, is_impure_name, is_library

__all__ = ["Pending", "World"]

_SETTLED = (
    *(each for each in IDENTICAL if each is not slice),
    *(torch.finfo, torch.iinfo, types.BuiltinFunctionType, types.CodeType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType),
)
"""Library types whose attributes do not change."""


class Pending(NamedTuple):
    """An attribute that library code or C computes, which the call is about to read."""

    text: str
    value: Any
    name: str


class World(Contents):
    """Guards what is read by name: globals, closure variables, modules, attributes. `tensor` is as
    for `Known`."""

    def __init__(self, tensor: Callable[[torch.Tensor, str, int], None]) -> None:
        super().__init__(tensor)
        self._plain_kinds: set[type] = set()  # whose objects have attributes like most
        self._of_tensors: set[tuple[type, str]] = set()  # attributes of tensors that were read
        self.casting = torch_modes.casting()
        """To what autocast casts when the call begins."""
        self.followed = Codes()
        """Code of libraries that is followed like that of the program."""
        self.of_arguments: dict[int, set[str]] = {}
        """By the ids of the arguments that are tensors: names that were read, and that the tensor
        itself does not have."""

    def follow(self, function: FunctionType, name: str) -> None:
        """Follow a function of a library, which is about to be called."""
        self.enter(function, name)
        self.followed.update([function.__code__])

    # -- names ---------------------------------------------------------------------------------

    def global_(self, name: str, namespace: dict[str, Any], builtins: dict[str, Any]) -> Any:
        """A global or a builtin; `MISSING` if there is none."""
        if name in namespace:
            self._read(f"the global {name!r}", namespace, name, namespace[name])
            return namespace[name]
        self.absent(f"no global {name!r}", namespace, name)
        if name in builtins:
            self._read(f"the builtin {name!r}", builtins, name, builtins[name])
            return builtins[name]
        self.absent(f"no builtin {name!r}", builtins, name)
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

    # -- attributes ----------------------------------------------------------------------------

    def attribute(self, value: Any, name: str) -> Any:
        """An attribute that is about to be read; its value, `Pending`, or `MISSING` where Python
        code finds it, which is traced itself, or where it does not exist."""
        kind = type(value)
        if kind in self._plain_kinds:
            return self._of_object(value, name)
        if is_a(value, torch.Tensor):
            return self._of_tensor(value, name)
        if is_a(value, ModuleType):
            return self._of_module(value, name)
        if is_a(value, type):
            return self._of_class(value, name, name_of=self.name(value))
        if is_a(value, super):
            kind, after = value.__self_class__, value.__thisclass__
            return self.of_classes(kind, name, after)
        if is_a(value, threading.local):  # each thread has a dict of its own
            return Pending(f"{self.name(value)}.{name}", value, name)
        if is_a(value, MethodType) and name not in vars(MethodType):  # that of its function
            if self.has(value):
                self.enter(value.__func__, self.name(value))
            return self.attribute(value.__func__, name)
        if not is_a(value, MethodType):
            self._plain_kinds.add(kind)
        return self._of_object(value, name)

    def referred(self, text: str, reference: weakref.ref[Any]) -> None:
        """A weak reference of the world is about to be called."""
        found = reference()
        self._given(found, text, self.add(Result.of(text, reference, found)))

    def settle(self, pending: Pending, result: Any) -> None:
        """Guard an attribute that was computed, now that the call has read it."""
        text, value, name = pending
        is_method = callable(result) and not is_a(result, (type, FunctionType))
        if not is_method or self.is_of_program(type(result)):  # each read makes another method
            self.asked(text, value, lambda now: follow(now, [name]), result)

    def settle_presence(self, pending: Pending, is_there: bool) -> None:
        """Guard whether an attribute exists, now that the call has asked."""
        text, value, name = pending
        same: Callable[[Any], bool] = lambda now: (  # noqa: E731
            (follow(now, [name]) is not MISSING) is is_there
        )
        self.add(Check(f"whether there is {text}", {"of": value}, "of", is_there, same))

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
        if self.is_of_program(type(module)):  # it may have properties
            self.enter(module, module.__name__)
            return self._of_object(module, name)
        if name in own:
            return self.own(text, own, name)
        self.absent(f"no {text}", own, name)
        if type(module) is not ModuleType:  # its class has properties, as torch.backends
            return self._computed(module, name, text)
        if "__getattr__" not in own:
            self.absent(f"no {module.__name__}.__getattr__", own, "__getattr__")
            return MISSING
        hook = own["__getattr__"]
        if isinstance(hook, FunctionType) and is_library(hook):  # loads a submodule, or the like
            return Pending(text, module, name)
        self.own(f"{module.__name__}.__getattr__", own, "__getattr__")
        return MISSING

    def _of_tensor(self, tensor: torch.Tensor, name: str) -> Any:
        """torch's own attributes are seen by the recorder; the program may replace or add some."""
        own = self.attributes_of(tensor)
        assert own is not None
        if name in own:
            if not self.has(tensor):
                words = f"it reads {name!r}, an attribute added to a tensor"
                raise Unreplayable(words, "", 0, passes=True)
            self._read(f"{self.name(tensor)}.{name}", own, name, own[name])
            return own[name]
        if self.has(tensor):
            self.absent(f"no attribute {name!r} on {self.name(tensor)}", own, name)
        elif id(tensor) in self.of_arguments:
            self.of_arguments[id(tensor)].add(name)
        self.operator_of_tensor(tensor, name)
        return MISSING

    def operator_of_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """A method that an operator looks for in the class of a tensor alone."""
        kind = type(tensor) if type(tensor) is torch.nn.Parameter else torch.Tensor
        if (kind, name) not in self._of_tensors:
            self._of_tensors.add((kind, name))
            self._of_tensor_class(kind, name)

    def _of_tensor_class(self, kind: type, name: str) -> None:
        for each in kind.__mro__[:-1]:
            own = class_dict(each)
            if name in own:
                self.add(Same(f"{each.__name__}.{name}", own, name, own[name]))
                self.enter(own[name], f"{each.__name__}.{name}")
                return
            if each in (torch.nn.Parameter, torch.Tensor):
                self.absent(f"no {each.__name__}.{name}", own, name)

    def _of_class(self, kind: type, name: str, name_of: str) -> Any:
        """An attribute of a class itself."""
        meta = self.of_classes(type(kind), name)
        for hook in ("__getattribute__", "__getattr__") if self.is_of_program(type(kind)) else ():
            self.of_classes(type(kind), hook)
        if isinstance(meta, property) and not is_library(meta.fget):  # followed
            return MISSING
        if hasattr(type(meta), "__set__") and is_library(type(meta)):  # as `__name__`
            if is_library(kind):
                return MISSING
            return Pending(f"{name_of}.{name}", kind, name)
        found = self.of_classes(kind, name)
        if found is not MISSING:
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            self.enter(found, f"{name_of}.{name}")
            return found
        if is_a(kind, enum.EnumMeta):  # its members are found by its metaclass
            members = vars(kind)["_member_map_"]
            if name in members:
                return self.own(f"{name_of}.{name}", members, name)
        return MISSING

    def _of_object(self, value: Any, name: str) -> Any:
        kind = type(value)
        self.member(value)
        if kind is FunctionType and name == "__name__":
            self.add(Code.of(f"the code of {self.name(value)}", value))
            return value.__name__
        if self.is_of_program(kind) or is_a(value, torch.nn.Module):
            self.of_classes(kind, "__getattr__")
            hook = self.of_classes(kind, "__getattribute__")
            if is_a(hook, FunctionType) and not is_library(hook):
                return MISSING  # it is followed, and finds the attribute
            if not is_a(hook, types.WrapperDescriptorType) and self.has(value):
                raise self.unwatchable(value)
        return self.plain_attribute(value, name)

    def plain_attribute(self, value: Any, name: str) -> Any:
        """An attribute as ``object.__getattribute__(value, name)`` finds it, which looks at no
        `__getattribute__` or `__getattr__` of the class."""
        kind, text = type(value), f"{self.name(value)}.{name}"
        found = self.of_classes(kind, name)
        if isinstance(found, property) and isinstance(found.fget, FunctionType):
            if not is_library(found.fget):
                return MISSING
            if is_a(value, torch.nn.Module):  # such as a weight that is computed from others
                self.follow(found.fget, text)
                return MISSING
            return self._computed(value, name, text)
        if not self.has(value):
            return found
        own = self.attributes_of(value)
        if own is not None and name == "__dict__":
            self.enter(own, text)
            return own
        if own is not None and name in own:
            return self.own(text, own, name)
        if own is not None:
            self.absent(f"no attribute {text}", own, name)
        if is_a(value, torch.nn.Module):
            return self._of_torch_module(value, name, text) if found is MISSING else found
        if is_a(value, (*KERNELS, *_SETTLED)):
            return MISSING
        if _is_computed(kind, found):
            return self._computed(value, name, text)
        return found

    def _computed(self, value: Any, name: str, text: str) -> Any:
        """A property that library code or C computes: asked again by the guard."""
        if is_a(value, enum.Enum) and name in ("value", "name"):
            return self.own(text, vars(value), f"_{name}_")
        if not self.has(value) or is_a(value, _SETTLED):
            return MISSING
        return Pending(text, value, name)

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
                    self.asked(text, held, lambda now: now.get(name), held[name])
                return held[name]
            if type(held) is dict:
                self.absent(f"no {text}", held, name)
        return MISSING


def _is_harmless(found: Any) -> bool:
    """Whether a value in a module of impure functions can be read: a submodule, whose names are
    judged when they are read, or a class of tensors, whose objects the recorder refuses."""
    return isinstance(found, ModuleType) or (
        isinstance(found, type) and issubclass(found, torch.Tensor)
    )


_GUARDED = frozenset(
    [
        *(("os", "environ"), ("sys", "modules"), ("torch.cuda", "device")),
        *(("torch.cuda", "is_current_stream_capturing"), ("torch", "autocast")),
        *(("torch", each.__name__) for each in AUTOCAST),
    ]
)
"""Names in modules that hold state whose reads are guarded, or that `called` judges."""

_METHODS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    functools.cached_property,
)


def _is_computed(kind: type, found: Any) -> bool:
    """Whether library code computes an attribute that an object itself does not have."""
    if found is MISSING:
        hook = inspect.getattr_static(kind, "__getattr__", None)
        return isinstance(hook, FunctionType) and is_library(hook)
    if isinstance(found, (FunctionType, staticmethod, classmethod, *_METHODS)):
        return False
    return hasattr(type(found), "__get__") and not is_program_class(type(found))
