"""Kinds of values, by how a guard can watch them.

    EQUAL      immutable, compared by value: a second equal object will do
    IDENTICAL  immutable, compared by identity
    KERNELS    what can be launched
    OPEN       functions, tensors, kernels: the program may add attributes to these
    OPAQUE     callables in C, which have no code to read
    LOOKED_AT  guarded even in library modules, because the program may have set it

Enters: a value. Leaves: whether it is of some kind. It must not know guards.
"""

from __future__ import annotations

import enum
import functools
import types
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from tzero.adapters import triton_launch
from tzero.arguments.constants import constant
from tzero.backends import source_kernel
from tzero.config import Config
from tzero.errors import UnsupportedType
from tzero.reading.purity import is_library

__all__ = [
    "CACHED",
    "EQUAL",
    "IDENTICAL",
    "KERNELS",
    "LOOKED_AT",
    "OPAQUE",
    "OPEN",
    "constant_or_none",
    "is_of_program",
    "is_plain",
    "is_tensor",
]

EQUAL = (int, str, bytes)
IDENTICAL = (
    *(bool, float, complex, type(None), type(...), type(NotImplemented), range, slice),
    *(torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size),
    *(Config, triton_launch.Dtype),
)
KERNELS = (triton_launch.KernelInterface, triton_launch.JITCallable, source_kernel.Kernel)
OPEN = (FunctionType, torch.Tensor, *KERNELS)

CACHED = functools._lru_cache_wrapper
OPAQUE = (
    *(BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.GetSetDescriptorType, types.ClassMethodDescriptorType),
    CACHED,
    type(torch.ops.aten.add),
    type(torch.ops.aten.add.Tensor),
    type(torch.ops.aten),
    type(torch.ops),
)
LOOKED_AT = (
    *(ModuleType, FunctionType, type, enum.Enum, list, dict, set, triton_launch.Constexpr),
    *(types.MethodType, functools.partial, CACHED),
)


def is_plain(value: Any) -> bool:
    """Whether a value is immutable and holds nothing.

    >>> is_plain(3), is_plain(torch.float32), is_plain([3])
    (True, True, False)
    """
    kind = type(value)
    if kind is slice:  # it may hold anything
        return all(map(is_plain, (value.start, value.stop, value.step)))
    # Not `isinstance`, which may run code of the program: it reads `value.__class__` too.
    return kind in EQUAL or (issubclass(kind, IDENTICAL) and is_library(kind))


def is_of_program(value: Any) -> bool:
    """Whether a value belongs to the program, or calls or holds something that does.

    >>> is_of_program(torch.add), is_of_program(functools.partial(torch.add))
    (False, True)
    """
    if isinstance(value, types.MethodType):
        return is_of_program(value.__func__) or is_of_program(value.__self__)
    if isinstance(value, (functools.partial, CACHED)):
        return True
    if isinstance(value, (list, tuple, dict)):
        return any(map(is_of_program, value.values() if isinstance(value, dict) else value))
    return not is_library(value if isinstance(value, (FunctionType, type)) else type(value))


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor.

    >>> is_tensor(torch.empty(2)), is_tensor(torch.Tensor)
    (True, False)
    """
    return isinstance(value, torch.Tensor)


def constant_or_none(value: Any) -> Any:
    """A value as a constant; None, which equals no constant, where it cannot be one.

    >>> constant_or_none(1), constant_or_none({1})
    ((<class 'int'>, 1), None)
    """
    try:
        return constant(value)
    except UnsupportedType:
        return None
