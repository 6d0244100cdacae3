"""Compile-time constants: values that count in full, and objects that count by identity.

Enters: any value. Leaves: something hashable, equal for two values exactly when code compiled for
one serves the other; or `UnsupportedType`, for a value that may change while it is in a table. It
must not know arguments, keys or kernels.

What leaves keeps no tensor alive: objects are held by weak references if they support them.

    >>> constant(1) == constant(True), constant([1, "a"]) == constant([1, "a"])
    (False, True)
"""

from __future__ import annotations

import dataclasses
import enum
import math
import weakref
from collections.abc import Hashable
from types import BuiltinFunctionType, MethodType, MethodWrapperType, NoneType
from typing import Any

import torch

from tzero.errors import UnsupportedType

__all__ = ["Identity", "constant", "fields_of", "holds_itself", "kind_of", "symbol"]

_METHODS = (MethodType, BuiltinFunctionType, MethodWrapperType)
_SHOWN = (NoneType, type, torch.dtype, torch.layout, torch.memory_format, torch.device)
"""Types whose values hold nothing, and compare by identity."""


class Identity:
    """An object that is compared by identity. It is held by a weak reference, and equals nothing
    once it is gone, so that no other object at its address can pass for it. An object that does not
    support weak references is kept alive.

    >>> a = {1}
    >>> Identity(a) == Identity(a), Identity(a) == Identity({1})
    (True, False)
    """

    __slots__ = ("_hash", "_kept", "_seen", "kind")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        self.kind = type(value)
        weak = self.kind.__weakrefoffset__ != 0
        self._seen: weakref.ref[Any] | None = weakref.ref(value) if weak else None
        self._kept = None if weak else value

    @property
    def value(self) -> object:
        """The object; None once it is gone."""
        return self._kept if self._seen is None else self._seen()

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Identity):
            return self is other
        value = self.value
        known = value is not None or self._seen is other._seen is None  # else one of them is gone
        return known and value is other.value

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Identity({self.value!r})"


def constant(value: object) -> Hashable:
    """A compile-time constant: it counts by type and value.

    ``True``, ``1`` and ``1.0`` are three constants, ``0.0`` and ``-0.0`` two, and NaN is one.

    >>> constant(1) == constant(True), constant(float("nan")) == constant(float("nan"))
    (False, True)
    """
    kind = type(value)
    if kind is int or kind is str or kind is bool:
        return (kind, value)
    try:
        return _held(value, kind)
    except RecursionError:
        raise holds_itself(value) from None


def _held(value: Any, kind: type) -> Hashable:
    """The constant of a value that holds others, or is compared by identity."""
    if isinstance(value, enum.Enum):
        return _member(value)
    if isinstance(value, float):
        return (kind, "nan" if math.isnan(value) else value.hex())
    if isinstance(value, complex):
        return (kind, constant(value.real), constant(value.imag))
    if isinstance(value, (list, tuple)):
        return (kind, *(constant(item) for item in value))
    if isinstance(value, dict):
        return (kind, *((constant(k), constant(item)) for k, item in value.items()))
    if isinstance(value, frozenset):
        return (kind, frozenset(constant(item) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, *((name, constant(item)) for name, item in fields_of(value)))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        known = symbol(value)
        if isinstance(known, tuple):
            raise UnsupportedType(kind="symbol without a value", advice="Pass a number.")
        return constant(known)
    return _plain(value, kind)


def _plain(value: Any, kind: Any) -> Hashable:
    """The constant of any other value."""
    if isinstance(value, torch.Tensor):
        return Identity(value)
    if isinstance(value, _METHODS):
        return (kind, value.__name__, Identity(value.__self__))
    if kind.__hash__ is object.__hash__ and not isinstance(value, _SHOWN):
        return Identity(value)  # compares by identity, and may hold tensors
    try:
        hash(value)
    except TypeError:
        raise UnsupportedType(kind=kind_of(value)) from None
    return (kind, value)


def _member(value: enum.Enum) -> Hashable:
    """An enum member counts by class and value; combined flags have no name."""
    try:
        return (type(value), value._name_, constant(value._value_))
    except UnsupportedType:  # the value is unhashable, but members are singletons
        return (type(value), value._name_, Identity(value))


def fields_of(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass, by name.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: int
    >>> fields_of(Point(3))
    [('x', 3)]
    """
    found = []
    for field in dataclasses.fields(value):
        try:
            found.append((field.name, getattr(value, field.name)))
        except AttributeError:
            kind = f"{type(value).__name__} whose field {field.name!r} is not set"
            raise UnsupportedType(kind=kind, advice="Set it.") from None
    return found


def symbol(value: Any) -> Hashable:
    """A symbolic number: its value if that is known, else its shape environment (by identity) and
    expression.

    >>> symbol(3)
    3
    """
    if isinstance(value, (int, float)):
        return value
    node = value.node
    for known in (node.maybe_as_int(), node.maybe_as_bool(), node.maybe_as_float()):
        if known is not None:
            return known  # type: ignore[no-any-return]
    return (Identity(node.shape_env), node.expr)


def holds_itself(value: object) -> UnsupportedType:
    """The error for a value that exceeds the recursion limit.

    >>> print(holds_itself([]).kind)
    list that holds itself, or is nested too deeply
    """
    kind = f"{kind_of(value)} that holds itself, or is nested too deeply"
    return UnsupportedType(kind=kind, advice="Pass a value that does not hold itself.")


def kind_of(value: object) -> str:
    """A short name for what a value is.

    >>> kind_of({1})
    'set'
    """
    if isinstance(value, torch.Tensor) and value.is_nested:
        return "nested tensor"
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return f"{str(value.layout).removeprefix('torch.')} tensor"
    return type(value).__name__
