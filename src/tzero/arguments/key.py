"""Arguments to Key: what decides which code a call needs, and nothing else.

    arguments ──part, one each──► Key (a tuple of parts)
                                   │ difference: the first fact in which two keys differ
                                   └ text: the same value for a disk cache

Enters: argument values, and options that say how precisely shapes count. Leaves: a `Key`, hashable,
equal for two calls exactly when the same code serves both. It must not know kernels, caches or
launches.

The part of a value depends on its exact type (`TABLE`). Plain tensors give their own sizes and
strides. FakeTensors and other subclasses, whose sizes may be symbolic, are read in another way,
which gives an equal part if the sizes are numbers. Numbers count by type, except as `constants`:
those that a function closes over or has as defaults.

    >>> options = Options()
    >>> part(torch.zeros(2, 3), options)
    (torch.float32, torch.Size([2, 3]), (3, 1))
    >>> part(7, options), part(True, options), part("mean", options)
    (<class 'int'>, <class 'bool'>, 'mean')
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import torch

from tzero.adapters.torch_internals import static_dims
from tzero.arguments.constants import Identity, constant, fields_of, holds_itself, kind_of, symbol
from tzero.arguments.objects import is_object
from tzero.arguments.scalars import BY_TYPE, BY_VALUE
from tzero.arguments.tensor_facts import TENSORS, reader
from tzero.arguments.text import difference, text
from tzero.errors import UnsupportedType

__all__ = ["Key", "Options", "UnsupportedType", "constant", "difference", "part", "text"]

INT32_ELEMENTS = 2**31 - 1
"""Tensors with more elements than this need 64-bit indices."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How precisely a key tells tensors and numbers apart.

    With `static_shapes` every size and stride counts. Without, sizes and strides count as 0, 1 or
    more, except for dimensions marked static; and unless `index_dtype` is set, the key says whether
    indices need 64 bits. With `exact_numbers` numbers count by value. With `objects` those of
    ordinary classes have keys, too, and count by type: plans tell them apart.

    >>> Options(static_shapes=False).index_dtype is None
    True
    """

    static_shapes: bool = True
    index_dtype: torch.dtype | None = None
    exact_numbers: bool = False
    objects: bool = False


class Key(tuple[Hashable, ...]):
    """The parts of a call's arguments, in order.

    It equals and hashes like the plain tuple of its parts. So a call builds a plain tuple, which is
    cheap, and looks it up in a table of keys; the methods are there when a key is shown or stored.

    >>> Key((int, "mean")) == (int, "mean") and hash(Key((int,))) == hash((int,))
    True
    """

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[object], options: Options) -> Key:
        """The key of argument values.

        >>> Key.of((1.5, None), Options())
        Key(float, None)
        """
        return cls(part(value, options) for value in values)

    def __repr__(self) -> str:
        return f"Key({', '.join(map(text, self))})"


Extractor = Callable[[Any, Options], Hashable]


def part(value: object, options: Options) -> Hashable:
    """The part of a key for one value.

    >>> part([1, 2.0], Options())
    (<class 'list'>, <class 'int'>, <class 'float'>)
    """
    extractor = TABLE.get(type(value))
    if extractor is None:
        extractor = _by_type if options.objects and is_object(value) else _by_kind(value)
    try:
        return extractor(value, options)
    except RecursionError:
        raise holds_itself(value) from None


def _by_kind(value: object) -> Extractor:
    """The extractor of a value whose exact type is not in `TABLE`."""
    if isinstance(value, torch.Tensor):
        return _symbolic_tensor
    if isinstance(value, enum.Enum):
        return lambda item, _: constant(item)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _items
    if isinstance(value, type):
        return _identity
    if dataclasses.is_dataclass(value):
        return _fields
    raise UnsupportedType(kind=kind_of(value))


# -- tensors --------------------------------------------------------------------------------------


_facts = reader("key")


def _tensor(value: torch.Tensor, options: Options) -> Hashable:
    if value.is_nested or value.layout is not torch.strided:
        raise UnsupportedType(kind=kind_of(value))
    if options.static_shapes:
        return _facts(value)
    return _bucketed(value, tuple(value.size()), value.stride(), options)


def _symbolic_tensor(value: torch.Tensor, options: Options) -> Hashable:
    if value.is_nested or value.layout is not torch.strided:
        raise UnsupportedType(kind=kind_of(value))
    sizes = tuple(dimension(size) for size in value.size())
    strides = tuple(dimension(stride) for stride in value.stride())
    if options.static_shapes:
        return (value.dtype, sizes, strides)
    return _bucketed(value, sizes, strides, options)


def _bucketed(
    value: torch.Tensor, sizes: tuple[Any, ...], strides: tuple[Any, ...], options: Options
) -> Hashable:
    static = static_dims(value)
    shown = tuple(size if k in static else bucket(size) for k, size in enumerate(sizes))
    steps = tuple(bucket(stride) for stride in strides)
    if options.index_dtype is not None:
        return (value.dtype, shown, steps, static)
    return (value.dtype, shown, steps, static, _needs_int64(sizes))


def _needs_int64(sizes: tuple[Any, ...]) -> bool:
    """Symbolic sizes may be large."""
    if not all(isinstance(size, int) for size in sizes):
        return True
    return bool(math.prod(sizes) > INT32_ELEMENTS)


def bucket(size: Any) -> Any:
    """A size or stride as 0, 1, or 2 for more; a symbol is kept.

    >>> bucket(0), bucket(1), bucket(2), bucket(4096)
    (0, 1, 2, 2)
    """
    return min(size, 2) if isinstance(size, int) else size


def dimension(size: Any) -> Hashable:
    """A size or stride that may be a symbol.

    >>> dimension(3)
    3
    """
    return size if type(size) is int else symbol(size)


# -- other values ---------------------------------------------------------------------------------


def _number(value: object, options: Options) -> Hashable:
    return constant(value) if options.exact_numbers else cast("Hashable", type(value))


def _symbol(kind: type) -> Extractor:
    """Symbolic numbers count by type, like others."""

    def extract(value: Any, options: Options) -> Hashable:
        return symbol(value) if options.exact_numbers else kind

    return extract


def _itself(value: Hashable, _: Options) -> Hashable:
    return value


def _by_type(value: object, _: Options) -> Hashable:
    return cast("Hashable", type(value))


def _identity(value: object, _: Options) -> Hashable:
    return Identity(value)


def _device(value: torch.device, _: Options) -> Hashable:
    """A device without an index is the current one of its type."""
    if value.type in ("cpu", "meta"):
        return torch.device(value.type)
    index: int | None = value.index
    if index is None and torch.accelerator.is_available():
        index = torch.accelerator.current_device_index()
    return value if index is None else torch.device(value.type, index)


def _items(value: Sequence[object], options: Options) -> Hashable:
    return (type(value), *(part(item, options) for item in value))


def _mapping(value: Mapping[object, object], options: Options) -> Hashable:
    """Keys count by value and in order, since a host function may iterate over them."""
    pairs = ((constant(name), part(item, options)) for name, item in value.items())
    return (type(value), *pairs)


def _fields(value: Any, options: Options) -> Hashable:
    return (type(value), *((name, part(item, options)) for name, item in fields_of(value)))


# -- functions ------------------------------------------------------------------------------------


def _function(value: Any, options: Options, within: tuple[Any, ...] = ()) -> Hashable:
    """A function counts by its code and what it holds; closures over equal values are equal. A
    function that closes over itself, or over one that it is `within`, counts there by the depth.
    """
    within = (*within, value)
    cells = tuple(_cell(cell, options, within) for cell in value.__closure__ or ())
    defaults = tuple(_captured(item, options, within) for item in value.__defaults__ or ())
    named = tuple(
        (name, _captured(item, options, within))
        for name, item in (value.__kwdefaults__ or {}).items()
    )
    return (FunctionType, value.__code__, cells, defaults, named, Identity(value.__globals__))


def _cell(cell: Any, options: Options, within: tuple[Any, ...]) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return ("empty",)
    return _captured(content, options, within)


def _captured(content: Any, options: Options, within: tuple[Any, ...]) -> Hashable:
    """What a function holds; numbers in it count by value."""
    if isinstance(content, FunctionType):
        depth = next((k for k, outer in enumerate(within) if outer is content), None)
        return _function(content, options, within) if depth is None else ("itself", depth)
    return part(content, _exact(options))


@functools.lru_cache(maxsize=64)
def _exact(options: Options) -> Options:
    return dataclasses.replace(options, exact_numbers=True, objects=False)


def _method(value: MethodType, options: Options) -> Hashable:
    return (MethodType, part(value.__func__, options), _owner(value.__self__, options))


def _owner(owner: object, options: Options) -> Hashable:
    """The object of a method: a tensor counts like any tensor, other objects by identity."""
    return part(owner, options) if isinstance(owner, torch.Tensor) else Identity(owner)


def _builtin(value: Any, options: Options) -> Hashable:
    """A builtin function counts by its name and its owner: a module, or a value, as in `x.add`."""
    try:
        owner = part(value.__self__, _exact(options))
    except UnsupportedType:
        owner = Identity(value.__self__)
    return (BuiltinFunctionType, value.__qualname__, owner)


TABLE: dict[type, Extractor] = {
    **dict.fromkeys(TENSORS, _tensor),
    **dict.fromkeys(BY_TYPE, _number),
    **dict.fromkeys(BY_VALUE, _itself),
    torch.SymInt: _symbol(int),
    torch.SymFloat: _symbol(float),
    torch.SymBool: _symbol(bool),
    torch.device: _device,
    torch.Size: lambda value, options: (tuple, *(part(item, options) for item in value)),
    tuple: _items,
    list: _items,
    dict: _mapping,
    FunctionType: _function,
    MethodType: _method,
    BuiltinFunctionType: _builtin,
    type: _identity,
}
"""How to make a value's part, by its exact type. Numbers count by type, since code takes them as
run-time values, unless a `ConstExpr` or `specialize` makes them constants."""
