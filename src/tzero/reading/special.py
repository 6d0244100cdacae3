"""Functions that read one thing, which can be guarded: attributes, variables, modules, settings.

    getattr(cfg, "scale")        ──► the attribute
    os.getenv("BLOCK")           ──► the variable
    logger.debug("...")          ──► whether the logger is silent
    torch.get_default_dtype()    ──► its result

Enters: such a function and its arguments, before it is called. Leaves: guards in a `World`, or
`Unreplayable`. It must not know other functions.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib
import importlib.util
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType
from typing import Any, NamedTuple, cast

import torch

from tzero import settings
from tzero.adapters import torch_modes
from tzero.reading.attributes import INTROSPECTION, MISSING
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Check, Result, Setting, result_guard
from tzero.reading.imports import read_import
from tzero.reading.known import is_a
from tzero.reading.purity import (
    ASKS_FOR_MODES,
    AUTOCAST,
    GETTERS,
    IMPURE_BUILTINS,
    READS_A_SETTING,
    is_library,
)
from tzero.reading.world import Pending, World

__all__ = ["Callee", "apply", "asks_for_modes", "guard_autocast", "special_read"]


class Callee(NamedTuple):
    """A callable and its arguments, the last of them by name. Methods and partial functions are
    taken apart."""

    function: Any
    args: list[Any]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Any, args: list[Any], names: tuple[str, ...] = ()) -> Callee:
        """A call as it is written.

        >>> Callee.of(functools.partial(print, 1), [2]).args
        [1, 2]
        """
        if isinstance(function, MethodType):
            return cls.of(function.__func__, [function.__self__, *args], names)
        if isinstance(function, staticmethod):
            return cls.of(function.__func__, args, names)
        if type(function) is functools.partial:
            count = len(args) - len(names)
            given = [*function.args, *args[:count], *function.keywords.values(), *args[count:]]
            return cls.of(function.func, given, (*function.keywords, *names))
        return cls(function, args, names)

    def argument(self, place: int, name: str) -> Any:
        """An argument, given by position or by name; `MISSING` if it is not given.

        >>> Callee(print, [1, 2], ("end",)).argument(1, "end")
        2
        """
        if place < len(self.args) - len(self.names):
            return self.args[place]
        named = dict(zip(self.names, self.args[len(self.args) - len(self.names) :], strict=True))
        return named.get(name, MISSING)

    @property
    def positional(self) -> list[Any]:
        """The arguments that are given by position."""
        return self.args[: len(self.args) - len(self.names)]


_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}


def get_attribute(world: World, callee: Callee) -> Pending | None:
    """getattr, hasattr"""
    value, name, *_ = callee.args
    if type(name) is not str:
        raise Unreplayable("it calls getattr with a name that is not a string", "", 0)
    if name in INTROSPECTION:
        raise Unreplayable(f"it reads {name}, which gives access to hidden state", "", 0)
    found = world.attribute(value, name)
    return found if isinstance(found, Pending) else None


def get_plainly(world: World, callee: Callee) -> None:
    """``object.__getattribute__``, which a class calls that has a `__getattribute__` of its own"""
    function, args = callee.function, callee.args
    value, name = args if function is object.__getattribute__ else (function.__self__, *args)
    if type(name) is not str or (name in INTROSPECTION and name != "__dict__"):
        raise Unreplayable(f"it reads {name}, which gives access to hidden state", "", 0)
    if isinstance(world.plain_attribute(value, name), Pending):
        raise world.unwatchable(value)  # a guard would ask the class's own `__getattribute__`


def get_variable(world: World, callee: Callee) -> None:
    """os.getenv"""
    world.enter(settings.ENVIRONMENT, "os.environ")
    world.item(settings.ENVIRONMENT, callee.argument(0, "key"))


def get_by_method(world: World, callee: Callee) -> None:
    """os.environ.get"""
    get_variable(world, Callee(settings.READ_VARIABLE, callee.args[1:], callee.names))


def setting(world: World, callee: Callee) -> None:
    """A function that returns a setting of torch, such as the default dtype."""
    getter = READS_A_SETTING.get(callee.function, callee.function)
    if getter is not callee.function and callee.args:
        return
    world.add(result_guard(getter))


def capturing(world: World, callee: Callee) -> None:
    """torch.cuda.is_current_stream_capturing"""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # else it raises
        world.add(result_guard(callee.function))


def autocast_dtype(world: World, callee: Callee) -> None:
    """torch.get_autocast_dtype: what it returns is the same object each time."""
    function, args = callee.function, callee.args
    if callee.names or any(type(each) is not str for each in args):
        raise Unreplayable(f"it calls {function.__name__} in a way that has no guard", "", 0)
    text = f"the result of {function.__name__}({', '.join(map(repr, args))})"
    world.add(Result.of(text, functools.partial(function, *args), function(*args)))


def import_module(world: World, callee: Callee) -> None:
    """importlib.import_module, importlib.util.find_spec"""
    name = callee.argument(0, "name")
    if len(callee.args) > 1 or type(name) is not str or name.startswith("."):
        raise Unreplayable("it imports a module relative to another", "", 0)
    read_import(world, name)


def cast_type(world: World, callee: Callee) -> None:
    """typing.cast: it returns its second argument, and looks at neither."""


def dataclass_fields(world: World, callee: Callee) -> None:
    """dataclasses.fields, dataclasses.is_dataclass: they look at the class alone."""
    value = callee.args[0]
    found = world.of_classes(value if is_a(value, type) else type(value), "__dataclass_fields__")
    if found is not MISSING:
        world.contents(found)


def event_flag(world: World, callee: Callee) -> None:
    """threading.Event.is_set"""
    event = callee.args[0]
    if type(event) is not threading.Event:
        raise Unreplayable(f"it reads {world.name(event)}, a kind of Event", "", 0)
    if world.has(event):
        world.own(f"{world.name(event)}._flag", vars(event), "_flag")


def apply(world: World, callee: Callee) -> None:
    """autograd.Function.apply: not if there will be a backward."""
    kind, *args = callee.args
    if torch.is_grad_enabled() and any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in args
    ):
        raise Unreplayable(
            f"it calls {kind.__name__}.apply with a tensor that requires a gradient", "", 0
        )


def log(world: World, callee: Callee) -> None:
    """A method of a logger: nothing if the level is off."""
    logger = callee.args[0]
    level = _LEVELS.get(callee.function.__name__)
    if level is None:
        level = callee.args[1]
    if type(logger) is not logging.Logger or logger.isEnabledFor(level):
        raise Unreplayable(f"it logs with {world.name(logger)}", "", 0)
    name, own = world.name(logger), vars(logger)
    world.own(f"{name}.disabled", own, "disabled")
    world.own(f"{name}._cache", own, "_cache")  # emptied when a level changes
    world.item(own["_cache"], level)


def log_level(world: World, callee: Callee) -> None:
    """Logger.isEnabledFor"""
    logger, level = callee.args
    result = logger.isEnabledFor(level)
    text = f"whether {world.name(logger)} is silent at level {level}"
    same: Callable[[Any], bool] = lambda now: now.isEnabledFor(level) is result  # noqa: E731
    world.add(Check(text, {"of": logger}, "of", logger, same))


def referent(world: World, callee: Callee) -> None:
    """A weak reference is called. What it refers to must be guarded in another place too: a guard
    on the reference alone would keep an object alive that the program may wait to see go."""
    reference = callee.function
    if not world.has(reference):
        return
    found, name = reference(), world.name(reference)
    if found is not None and not world.has(found):
        raise Unreplayable(f"nothing that it reads holds what {name} refers to", "", 0)
    world.referred(f"what {name} refers to", reference)


def autocast(world: World, callee: Callee) -> None:
    """torch.autocast: what it is not given it reads of what is set."""
    for each in callee.args:
        world.contents(each, deep=True)
    text = "what autocast casts to by default"
    world.add(Setting.of(text, torch_modes.casting, world.casting))


def guard_autocast(world: World, manager: Any) -> None:
    """A block of autocast that was there before the call is entered."""
    if is_a(manager, torch.autocast) and world.has(manager):
        for name in ("device", "fast_dtype", "_enabled", "_cache_enabled"):
            world.attribute(manager, name)


Special = Callable[[World, Callee], Pending | None]
_SPECIAL: dict[Any, Special] = {
    getattr: get_attribute,
    hasattr: get_attribute,
    settings.READ_VARIABLE: get_variable,
    torch.cuda.is_current_stream_capturing: capturing,
    torch.autograd.Function.apply.__func__: apply,  # type: ignore[attr-defined]
    importlib.import_module: import_module,
    importlib.util.find_spec: import_module,
    threading.Event.is_set: event_flag,
    **dict.fromkeys((dataclasses.fields, dataclasses.is_dataclass), dataclass_fields),
    cast: cast_type,
    logging.Logger.isEnabledFor: log_level,
    **{getattr(logging.Logger, name): log for name in (*_LEVELS, "log")},
    **dict.fromkeys((*GETTERS, *READS_A_SETTING), setting),
    **dict.fromkeys(AUTOCAST, autocast_dtype),
    torch.autocast: autocast,
    torch.cpu.amp.autocast: autocast,  # type: ignore[attr-defined]
    torch.cuda.amp.autocast: autocast,
}


_BY_METHOD = settings.ENVIRONMENT.get.__func__  # type: ignore[attr-defined]


def special_read(function: Any, args: Sequence[Any]) -> Special | None:
    """How a function is handled that reads one thing, if it is one of those.

    >>> special_read(getattr, ()) is get_attribute, special_read(len, ())
    (True, None)
    """
    if function is object.__getattribute__ or _is_bound_getattribute(function):
        return get_plainly
    if type(function) is weakref.ref:
        return referent
    if not is_a(function, (FunctionType, BuiltinFunctionType, type)):
        return None  # to look for it would hash it, which may run code of the program
    if is_a(function, type) and not is_library(function):
        return None
    if function is _BY_METHOD:
        return get_by_method if args and args[0] is settings.ENVIRONMENT else None
    found = _SPECIAL.get(function)
    if found is None and function in _REFUSED:
        name = function.__name__
        raise Unreplayable(f"it calls {name}, which has side effects or reads hidden state", "", 0)
    return found


_MODES = frozenset(ASKS_FOR_MODES)


def asks_for_modes(function: Any) -> bool:
    """Whether a function says if torch functions of an object are seen by others, the recorder
    among them.

    >>> asks_for_modes(torch.overrides.has_torch_function)
    True
    """
    return type(function) is BuiltinFunctionType and function in _MODES


def _is_bound_getattribute(function: Any) -> bool:
    """Whether a function is ``super().__getattribute__``, as `object` has it."""
    if not is_a(function, MethodWrapperType) or function.__name__ != "__getattribute__":
        return False
    return function.__objclass__ is object


_REFUSED = frozenset(
    getattr(builtins, name) for name in IMPURE_BUILTINS if hasattr(builtins, name)
) - {getattr, hasattr}
