"""Modules of torch: which of their methods are followed.

    self._conv_forward(x, ...)   ──► followed, like the `forward` that calls it
    self.parameters["a"]         ──► `ParameterDict.__getitem__` is followed

Enters: a module, or a function of a library that is given one. Leaves: guards in a `World`, and the
functions to follow. It must not know bytecode.

Code of torch that is followed is treated like that of the program: what it reads is guarded, and
what it changes is refused.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch

from tzero.reading.contents import BY_METHODS
from tzero.reading.known import is_a
from tzero.reading.purity import is_library
from tzero.reading.world import World

__all__ = [
    "follow_operators",
    "holds_modules",
    "is_method_of_module",
    "is_read_by_followed",
    "is_told_apart",
]

_FOLLOWED = frozenset([torch.backends.mha.get_fastpath_enabled])
"""Functions of torch that return a global, which is guarded like one of the program."""

_DECORATORS = ("torch.utils._contextlib", "torch.amp.autocast_mode")
"""Modules with functions that call what they decorate in a block, as torch.no_grad makes them."""


def is_read_by_followed(function: Any) -> bool:
    """Whether a function of torch reads no more than can be seen in its code.

    >>> is_read_by_followed(torch.backends.mha.get_fastpath_enabled)
    True
    """
    if not is_a(function, FunctionType):
        return False
    is_block = function.__globals__.get("__name__") in _DECORATORS
    return function in _FOLLOWED or (is_block and "__wrapped__" in vars(function))


def is_method_of_module(function: Any, args: Sequence[Any]) -> bool:
    """Whether a call is of a method, written in Python by a library, of the class of a module.

    >>> is_method_of_module(torch.nn.Module.children, [torch.nn.Linear(2, 2)])
    True
    """
    if not args or not is_a(args[0], torch.nn.Module) or not is_a(function, FunctionType):
        return False
    name = function.__name__
    return any(_is_behind(vars(kind).get(name), function) for kind in type(args[0]).__mro__)


def _is_behind(method: Any, function: FunctionType) -> bool:
    """Whether a method is a function, or a decorator has made it of that function."""
    method = method.fget if isinstance(method, property) else method
    while method is not function and is_a(method, FunctionType):
        method = vars(method).get("__wrapped__")
    return method is function


def is_told_apart(world: World, value: Any) -> bool:
    """Whether sets and dicts tell a module from others by its identity."""
    if not is_a(value, torch.nn.Module):
        return False
    names = ("__eq__", "__hash__")
    return all(world.of_classes(type(value), each) is getattr(object, each) for each in names)


def holds_modules(value: Any) -> bool:
    """Whether a dict is one in which a module keeps others, its parameters or its buffers.

    >>> holds_modules({"weight": torch.ones(2)}), holds_modules({"weight": [2]})
    (True, False)
    """
    held = (torch.nn.Module, torch.Tensor, type(None))
    return type(value) in (dict, collections.OrderedDict) and all(
        type(key) is str and is_a(each, held) for key, each in value.items()
    )


def follow_operators(world: World, value: Any, names: Sequence[str]) -> None:
    """An operator is about to look for methods in the class of a module of a library that holds
    others and has its own way to find them."""
    if is_a(value, BY_METHODS):
        for name in names:
            method = world.of_classes(type(value), name)
            if is_a(method, FunctionType) and is_library(method):
                world.follow(method, f"{type(value).__name__}.{name}")
