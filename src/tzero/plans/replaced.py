"""torch's functions that the program has replaced: which one a call is of.

    def twice(x): return old(x) * 2
    torch.Tensor.relu = twice           old(x) ──► torch shows the mode `torch.Tensor.relu`: twice

Under a mode, torch finds the function that it shows by name, so that a wrapper which calls the
function that it replaces would be shown in the place of that one, and run twice.

Enters: a function that torch shows to a mode, and the frame that torch was called from. Leaves: the
function that was called. It must not know what a recording does with it.
"""

from __future__ import annotations

import types
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from torch.overrides import handle_torch_function

from tzero.adapters.python_frames import function_of
from tzero.adapters.torch_internals import NAMED_IN_C, TensorBase

__all__ = ["called", "obscured"]

_IN_C = (BuiltinFunctionType, MethodDescriptorType, types.WrapperDescriptorType)
_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HELD = frozenset([BuiltinFunctionType, str, type(None)])
"""Types of what torch's modules in C hold."""


def called(function: Any, caller: FrameType) -> Any:
    """The function that was called, where torch shows one under its name; `caller` is the frame
    which the mode was called from.

    ::

        called(func, sys._getframe(1))
    """
    if type(function) in _IN_C or _is_of_torch(function):
        return function
    if type(function) is types.MethodWrapperType and _is_field(function.__self__):
        return function
    if caller.f_code is handle_torch_function.__code__:
        within = caller.f_back
        if within is None or within.f_code is getattr(function, "__code__", None):
            return function
        found = function_of(within)  # a function that the program wraps, or has replaced
        return found if isinstance(found, FunctionType) else function
    return _method(function)


def _is_of_torch(function: Any) -> bool:
    """Whether a function is in a module of torch. One that torch made for the program is too."""
    if not isinstance(function, FunctionType):
        return type(function).__module__.partition(".")[0] == "torch"
    return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"


def _is_field(descriptor: Any) -> bool:
    """Whether torch's own code reads or sets a field of tensors."""
    if isinstance(descriptor, property):
        return _is_of_torch(descriptor.fget)
    return type(descriptor) in _FIELDS


def _method(function: Any) -> Any:
    """The method or field of tensors in C that a function of the program is in the place of."""
    within = function.__self__ if type(function) is types.MethodWrapperType else function
    for name, held in list(vars(torch.Tensor).items()):
        if name in vars(TensorBase) and held is within:
            original = vars(TensorBase)[name]
            return original if held is function else getattr(original, function.__name__)
    return function


def obscured() -> str:
    """A function of torch that the program has replaced so that `called` could not tell; empty if
    there is none.

    >>> obscured()
    ''
    """
    for module in NAMED_IN_C:
        if not _HELD.issuperset(map(type, vars(module).values())):
            odd = (name for name, held in vars(module).items() if type(held) not in _HELD)
            return f"{module.__name__}.{next(odd)}"
    base, before = vars(TensorBase), set()
    for name, held in vars(torch.Tensor).items():
        if name not in base or held is base[name] or _is_of_torch(held):
            continue
        if id(held) in before or not isinstance(held, (FunctionType, property)):
            return f"torch.Tensor.{name}"
        before.add(id(held))
    return ""
