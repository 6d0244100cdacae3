"""Arguments to Key: what decides which code a call needs, and nothing else.

    arguments ──part, one each──► Key (a tuple of parts)
                                   │ difference: the first fact in which two keys differ, in words
                                   └ text: the same value for a disk cache

Enters: argument values and the options that say how closely shapes are looked at. Leaves: a `Key`,
hashable, equal for two calls exactly when the same code serves both. It must not know kernels,
caches or launches.

A part is chosen by the exact type of a value, from one table (`TABLE`). Plain tensors answer with
their own sizes and strides; FakeTensors and other subclasses, whose sizes may be symbols, go
through a reader that is safe for those and gives an equal part where the sizes are numbers.

    >>> options = Options()
    >>> part(torch.zeros(2, 3), options)
    (torch.float32, torch.Size([2, 3]), (3, 1))
    >>> part(7, options), part(True, options), part("mean", options)
    (<class 'int'>, <class 'bool'>, 'mean')
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, NoneType
from typing import Any, cast

import torch

from tzero.errors import TzeroError

__all__ = ["Key", "Options", "UnsupportedType", "constant", "difference", "part", "text"]

INT32_ELEMENTS = 2**31 - 1
"""Tensors with more elements than this need 64-bit indices."""


class UnsupportedType(TzeroError, TypeError):
    """A value is of a type that cannot be part of a key.

    >>> print(UnsupportedType(value=iter([])))
    a list_iterator cannot be an argument of a kernel. Pass tensors, numbers, strings, None, \
dtypes, devices, functions, or lists, tuples, dicts, named tuples and dataclasses of these.
    """

    def __init__(self, *, value: object) -> None:
        self.kind = _kind(value)
        article = "an" if self.kind[0] in "aeiouAEIOU" else "a"
        super().__init__(
            f"{article} {self.kind} cannot be an argument of a kernel. Pass tensors, numbers, "
            "strings, None, dtypes, devices, functions, or lists, tuples, dicts, named tuples and "
            "dataclasses of these."
        )


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return "nested tensor"
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return f"{str(value.layout).removeprefix('torch.')} tensor"
    return type(value).__name__


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How closely a key looks at tensors.

    With `static_shapes` every size and stride counts. Without, a size counts as 0, 1 or more, a
    stride likewise, except for dimensions marked static; and unless `index_dtype` settles it, a
    key tells whether 32-bit indices reach every element.

    >>> Options(static_shapes=False).index_dtype is None
    True
    """

    static_shapes: bool = True
    index_dtype: torch.dtype | None = None


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


# -- parts ----------------------------------------------------------------------------------------

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
    except RecursionError:  # it holds itself
        raise UnsupportedType(value=value) from None


def _by_kind(value: object) -> Extractor:
    """The extractor of a value whose exact type has none."""
    if isinstance(value, torch.Tensor):
        return _symbolic_tensor
    if isinstance(value, enum.Enum):
        return lambda item, _: (type(item), item.name)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields
    raise UnsupportedType(value=value)


def _tensor(value: torch.Tensor, options: Options) -> Hashable:
    if value.is_nested or value.layout is not torch.strided:
        raise UnsupportedType(value=value)
    if options.static_shapes:
        return (value.dtype, value.size(), value.stride())
    return _bucketed(value, tuple(value.size()), value.stride(), options)


def _symbolic_tensor(value: torch.Tensor, options: Options) -> Hashable:
    if value.is_nested or value.layout is not torch.strided:
        raise UnsupportedType(value=value)
    sizes = tuple(dimension(size) for size in value.size())
    strides = tuple(dimension(stride) for stride in value.stride())
    if options.static_shapes:
        return (value.dtype, sizes, strides)
    return _bucketed(value, sizes, strides, options)


def _bucketed(
    value: torch.Tensor, sizes: tuple[Any, ...], strides: tuple[Any, ...], options: Options
) -> Hashable:
    static = frozenset(getattr(value, "_dynamo_static_indices", None) or ())
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
    """A size or stride that may be a symbol: a number if it is one, else the symbol's shape
    environment (by identity) and expression.

    >>> dimension(3)
    3
    """
    if type(size) is int:
        return size
    known = size.node.maybe_as_int()
    if known is not None:
        return int(known)
    return (Same(size.node.shape_env), size.node.expr)


class Same:
    """An object that counts as itself alone, and is kept alive so that no other takes its id.

    >>> a = []
    >>> Same(a) == Same(a), Same(a) == Same([])
    (True, False)
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"Same({self.value!r})"


def _type(value: object, _: Options) -> Hashable:
    return cast("Hashable", type(value))


def _itself(value: Hashable, _: Options) -> Hashable:
    return value


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
    names = [field.name for field in dataclasses.fields(value)]
    return (type(value), *((name, part(getattr(value, name), options)) for name in names))


def _function(value: Any, options: Options, within: tuple[Any, ...] = ()) -> Hashable:
    """A function is its code and what it closes over; two closures over equal values are one. One
    that closes over itself, or over one that it is `within`, counts there by how far out that is.
    """
    within = (*within, value)
    cells = tuple(_cell(cell, options, within) for cell in value.__closure__ or ())
    defaults = tuple(constant(item) for item in value.__defaults__ or ())
    named = tuple((name, constant(item)) for name, item in (value.__kwdefaults__ or {}).items())
    return (FunctionType, value.__code__, cells, defaults, named, Same(value.__globals__))


def _cell(cell: Any, options: Options, within: tuple[Any, ...]) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # a name that is assigned later
        return ("empty",)
    if isinstance(content, (bool, int, float, complex)):
        return constant(content)  # code reads it as a constant
    if isinstance(content, FunctionType):
        depth = next((k for k, outer in enumerate(within) if outer is content), None)
        return _function(content, options, within) if depth is None else ("itself", depth)
    return part(content, options)


def _method(value: MethodType, options: Options) -> Hashable:
    return (MethodType, _function(value.__func__, options), Same(value.__self__))


def _identity(value: object, _: Options) -> Hashable:
    return Same(value)


TABLE: dict[type, Extractor] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    bool: _type,
    int: _type,
    float: _type,
    complex: _type,
    torch.SymInt: lambda value, options: int,
    torch.SymFloat: lambda value, options: float,
    torch.SymBool: lambda value, options: bool,
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
    BuiltinFunctionType: _identity,
    type: _identity,
}
"""What a key keeps of a value, by the value's exact type. Numbers count by their type alone: code
takes them as run-time values, unless a `ConstExpr` or `specialize` says otherwise."""


# -- constants ------------------------------------------------------------------------------------


def constant(value: object) -> Hashable:
    """A value that code is made for: it counts in full, and with its type.

    ``True``, ``1`` and ``1.0`` are three constants, ``0.0`` and ``-0.0`` two, and NaN is one.

    >>> constant(1) == constant(True), constant(float("nan")) == constant(float("nan"))
    (False, True)
    """
    kind = type(value)
    if isinstance(value, float):
        return (kind, "nan" if math.isnan(value) else value.hex())
    if isinstance(value, complex):
        return (kind, constant(value.real), constant(value.imag))
    if isinstance(value, torch.Tensor):
        return Same(value)
    if isinstance(value, (list, tuple)):
        return (kind, *(constant(item) for item in value))
    if isinstance(value, dict):
        return (kind, *((constant(k), constant(item)) for k, item in value.items()))
    if isinstance(value, frozenset):
        return (kind, frozenset(constant(item) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return (kind, *((name, constant(getattr(value, name))) for name in names))
    try:
        hash(value)
    except TypeError:
        raise UnsupportedType(value=value) from None
    return (kind, value)


# -- in words -------------------------------------------------------------------------------------


def text(item: Hashable) -> str:
    """A part as text: the same for equal parts in every process, so that disks can keep it.

    >>> text((torch.float16, torch.Size([2]), (1,)))
    '(torch.float16, (2,), (1,))'
    """
    if isinstance(item, type):
        return item.__name__ if item.__module__ == "builtins" else _dotted(item)
    if isinstance(item, tuple):
        inner = ", ".join(text(each) for each in item)
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    if isinstance(item, frozenset):
        return f"{{{', '.join(sorted(text(each) for each in item))}}}"
    if isinstance(item, Same):
        return f"<{_dotted(type(item.value))}>"
    if isinstance(item, CodeType):
        return f"<code {item.co_qualname}>"
    return repr(item)


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_TENSOR_FACTS = ("dtype", "sizes", "strides", "dims marked static", "64-bit indices")


def difference(old: Key, new: Key, names: Sequence[str]) -> str:
    """The first fact in which two keys differ, in words; empty if there is none.

    >>> a, b = (Key.of((torch.zeros(n), 1), Options()) for n in (2, 3))
    >>> difference(a, b, ["x", "n"])
    "argument 'x' has sizes (3,), not (2,)"
    """
    pairs: list[tuple[Any, Any]] = list(zip(old, new, strict=False))
    for k, (one, other) in enumerate(pairs):
        if one == other:
            continue
        name = f"argument {names[k]!r}" if k < len(names) else f"part {k} of the key"
        if _is_tensor(one) and _is_tensor(other):
            for fact, was, now in zip(_TENSOR_FACTS, one, other, strict=False):
                if was != now:
                    return f"{name} has {fact} {text(now)}, not {text(was)}"
        return f"{name} is {text(other)}, not {text(one)}"
    if len(old) != len(new):
        return f"there are {len(new)} parts, not {len(old)}"
    return ""


def _is_tensor(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) >= 3 and isinstance(item[0], torch.dtype)
