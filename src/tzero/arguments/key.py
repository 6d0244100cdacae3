"""Arguments to Key: what decides which code a call needs, and nothing else.

    arguments ──part, one each──► Key (a tuple of parts)
                                   │ difference: the first fact in which two keys differ, in words
                                   └ text: the same value for a disk cache

Enters: argument values and the options that say how closely shapes are looked at. Leaves: a `Key`,
hashable, equal for two calls exactly when the same code serves both. It must not know kernels,
caches or launches.

A part is chosen by the exact type of a value, from one table (`TABLE`). Plain tensors answer with
their own sizes and strides; FakeTensors and other subclasses, whose sizes may be symbols, go
through a reader that is safe for those and gives an equal part where the sizes are numbers. Where
a number decides code it counts in full (`constants`): inside what a function closes over, or
has as defaults.

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
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any, cast

import torch

from tzero.arguments.constants import Same, constant, fields_of, holds_itself, kind_of, symbol
from tzero.arguments.text import difference, text
from tzero.errors import UnsupportedType

__all__ = ["Key", "Options", "UnsupportedType", "constant", "difference", "part", "text"]

INT32_ELEMENTS = 2**31 - 1
"""Tensors with more elements than this need 64-bit indices."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How closely a key looks at tensors, and at numbers.

    With `static_shapes` every size and stride counts. Without, a size counts as 0, 1 or more, a
    stride likewise, except for dimensions marked static; and unless `index_dtype` settles it, a
    key tells whether 32-bit indices reach every element. With `exact_numbers` numbers are
    constants.

    >>> Options(static_shapes=False).index_dtype is None
    True
    """

    static_shapes: bool = True
    index_dtype: torch.dtype | None = None
    exact_numbers: bool = False


class Key(tuple[Hashable, ...]):
    """The parts of a call's arguments, in order.

    It is a tuple and nothing more: equal to, and hashed like, the plain tuple of its parts. So a
    dispatcher may build the plain tuple, which is as cheap as Python has it, and look it up in a
    table of keys; the name, and the methods, are there when a key is kept, shown or stored.

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
    """What a key keeps of one value.

    >>> part([1, 2.0], Options())
    (<class 'list'>, <class 'int'>, <class 'float'>)
    """
    extractor = TABLE.get(type(value))
    if extractor is None:
        extractor = _by_kind(value)
    try:
        return extractor(value, options)
    except RecursionError:
        raise holds_itself(value) from None


def _by_kind(value: object) -> Extractor:
    """The extractor of a value whose exact type has none."""
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


def _tensor(value: torch.Tensor, options: Options) -> Hashable:
    if value.is_nested or value.layout is not torch.strided:
        raise UnsupportedType(kind=kind_of(value))
    if options.static_shapes:
        return (value.dtype, value.size(), value.stride())
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
    marked, dims = getattr(value, "_dynamo_static_indices", None) or (), len(sizes)
    static = frozenset(k % dims for k in marked if -dims <= k < dims)  # they may count from the end
    shown = tuple(size if k in static else bucket(size) for k, size in enumerate(sizes))
    steps = tuple(bucket(stride) for stride in strides)
    if options.index_dtype is not None:
        return (value.dtype, shown, steps, static)
    return (value.dtype, shown, steps, static, _needs_int64(sizes))


def _needs_int64(sizes: tuple[Any, ...]) -> bool:
    """A symbol has no known size, so it gets the indices that always reach."""
    if not all(isinstance(size, int) for size in sizes):
        return True
    return bool(math.prod(sizes) > INT32_ELEMENTS)


def bucket(size: Any) -> Any:
    """A size or stride as code sees it: 0, 1, or more than that; a symbol is itself.

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


# -- what is no tensor ----------------------------------------------------------------------------


def _number(value: object, options: Options) -> Hashable:
    return constant(value) if options.exact_numbers else cast("Hashable", type(value))


def _symbol(kind: type) -> Extractor:
    """A symbolic number is a number of some kind, which counts as one that is not symbolic."""

    def extract(value: Any, options: Options) -> Hashable:
        return symbol(value) if options.exact_numbers else kind

    return extract


def _itself(value: Hashable, _: Options) -> Hashable:
    return value


def _identity(value: object, _: Options) -> Hashable:
    return Same(value)


def _device(value: torch.device, _: Options) -> Hashable:
    """A device without an index is the current one of its kind, as of this call."""
    if value.type in ("cpu", "meta"):
        return torch.device(value.type)
    index: int | None = value.index
    if index is None and torch.accelerator.is_available():
        index = torch.accelerator.current_device_index()
    return value if index is None else torch.device(value.type, index)


def _items(value: Sequence[object], options: Options) -> Hashable:
    return (type(value), *(part(item, options) for item in value))


def _mapping(value: Mapping[object, object], options: Options) -> Hashable:
    """Names by value and in their order: a host function may walk them."""
    pairs = ((constant(name), part(item, options)) for name, item in value.items())
    return (type(value), *pairs)


def _fields(value: Any, options: Options) -> Hashable:
    return (type(value), *((name, part(item, options)) for name, item in fields_of(value)))


# -- functions ------------------------------------------------------------------------------------


def _function(value: Any, options: Options, within: tuple[Any, ...] = ()) -> Hashable:
    """A function is its code and what it holds; two closures over equal values are one. One that
    closes over itself, or over one that it is `within`, counts there by how far out that is.
    """
    within = (*within, value)
    cells = tuple(_cell(cell, options, within) for cell in value.__closure__ or ())
    defaults = tuple(_captured(item, options, within) for item in value.__defaults__ or ())
    named = tuple(
        (name, _captured(item, options, within))
        for name, item in (value.__kwdefaults__ or {}).items()
    )
    return (FunctionType, value.__code__, cells, defaults, named, Same(value.__globals__))


def _cell(cell: Any, options: Options, within: tuple[Any, ...]) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # a name that is assigned later
        return ("empty",)
    return _captured(content, options, within)


def _captured(content: Any, options: Options, within: tuple[Any, ...]) -> Hashable:
    """What a function holds: code reads the numbers in it as constants."""
    if isinstance(content, FunctionType):
        depth = next((k for k, outer in enumerate(within) if outer is content), None)
        return _function(content, options, within) if depth is None else ("itself", depth)
    return part(content, _exact(options))


@functools.lru_cache(maxsize=64)
def _exact(options: Options) -> Options:
    return dataclasses.replace(options, exact_numbers=True)


def _method(value: MethodType, options: Options) -> Hashable:
    return (MethodType, part(value.__func__, options), _owner(value.__self__, options))


def _owner(owner: object, options: Options) -> Hashable:
    """Whose method it is: a tensor as any tensor, another object as itself."""
    return part(owner, options) if isinstance(owner, torch.Tensor) else Same(owner)


def _builtin(value: Any, options: Options) -> Hashable:
    """A builtin function is its name and what it is a function of: a module, or, as `x.add`, a
    value."""
    try:
        owner = part(value.__self__, _exact(options))
    except UnsupportedType:
        owner = Same(value.__self__)
    return (BuiltinFunctionType, value.__qualname__, owner)


TABLE: dict[type, Extractor] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    bool: _number,
    int: _number,
    float: _number,
    complex: _number,
    torch.SymInt: _symbol(int),
    torch.SymFloat: _symbol(float),
    torch.SymBool: _symbol(bool),
    NoneType: _itself,
    str: _itself,
    bytes: _itself,
    torch.dtype: _itself,
    torch.layout: _itself,
    torch.memory_format: _itself,
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
"""What a key keeps of a value, by the value's exact type. Numbers count by their type alone: code
takes them as run-time values, unless a `ConstExpr` or `specialize` says otherwise."""
