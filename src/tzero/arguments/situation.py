"""The arguments of a call as leaves, and all that a plan may assume of them.

    (x, [y, z], 3) ──► x, xs[0], xs[1], n ──► what decides how a host function goes, one each

Enters: arguments. Leaves: what they hold, in order, with names; and a value that is equal for two
calls only if a plan for one is a plan for the other. It must not know plans.

Exact lists, tuples and dicts with names for keys are walked; everything else is a leaf. Beyond what
a key has of a tensor, a plan wants to know whether it requires gradients, whether torch is to
conjugate or negate it, or knows it to be zero, its address modulo 16, and which tensors, lists,
tuples and dicts are the same object. Numbers that are only passed on count by what Triton makes of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from tzero.adapters.torch_internals import is_zero_tensor
from tzero.arguments.constants import constant
from tzero.errors import UnsupportedType

__all__ = ["NUMBERS", "TENSORS", "containers", "leaves", "situation"]

NUMBERS = (bool, int, float)
TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (
    *(complex, str, bytes, type(None), torch.dtype, torch.layout, torch.memory_format),
    *(torch.device, torch.Size),
)


def leaves(args: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What the arguments hold, with the names that it goes by.

    >>> list(leaves((1, [2, {"a": 3}]), ("n", "xs")))
    [('n', 1), ('xs[0]', 2), ("xs[1]['a']", 3)]
    """
    for name, value in zip(names, args, strict=True):
        if type(value) is list or type(value) is tuple:
            yield from leaves(value, [f"{name}[{k}]" for k in range(len(value))])
        elif type(value) is dict and all(type(key) is str for key in value):
            yield from leaves(list(value.values()), [f"{name}[{key!r}]" for key in value])
        else:
            yield name, value


def containers(values: Iterable[Any]) -> Iterator[Any]:
    """The lists, tuples and dicts that some values are or hold; but for the one empty tuple.

    >>> list(containers([1, ([2], {})]))
    [([2], {}), [2], {}]
    """
    for value in values:
        if type(value) in (list, tuple, dict) and value != ():
            yield value
            yield from containers(value.values() if type(value) is dict else value)


def oddity(name: str, value: Any) -> str:
    """Why a plan cannot be for such a leaf; mostly empty.

    >>> oddity("f", print)
    "argument 'f' is a builtin_function_or_method, into which plans do not look"
    """
    if type(value) in NUMBERS or type(value) in _PLAIN or type(value) in TENSORS:
        return ""
    return (
        f"argument {name!r} is {UnsupportedType(kind=type(value).__name__).named}, into which "
        "plans do not look"
    )


def situation(args: Sequence[Any], by_value: Collection[int], exact: bool = False) -> Hashable:
    """Everything that a plan assumes of the arguments; `by_value` has the places of the arguments
    whose numbers count in full, and those in lists always do. `exact`: who asks knows the dtype,
    device, sizes and strides of each tensor.

    >>> one = situation((1, 2), {0})
    >>> situation((1, 3), {0}) == one, situation((2, 2), {0}) == one
    (True, False)
    """
    seen: dict[int, int] = {}
    found: list[Hashable] = []
    for k, value in enumerate(args):
        kind = type(value)
        if kind in TENSORS:
            same = seen.setdefault(id(value), k)
            shape = (kind,) if exact else _shape(value)
            found.append((*shape, _flags(value), same))
        elif kind is int and k not in by_value:
            found.append(_class(value))
        elif kind in NUMBERS and k not in by_value:
            found.append(cast("Hashable", kind))
        else:
            found.append(_assumed(value, seen))
    return tuple(found)


def _shape(value: torch.Tensor) -> tuple[Any, ...]:
    return (type(value), value.dtype, value.device, value.size(), value.stride())


def _flags(value: torch.Tensor) -> tuple[Any, ...]:
    """What besides its geometry decides what is done with a tensor, and by which binary."""
    lazy = (value.is_conj(), value.is_neg(), is_zero_tensor(value))
    return (value.requires_grad, lazy, value.data_ptr() & 15)


def _class(value: int) -> tuple[Any, ...]:
    """What Triton may make of an integer that it is given."""
    if -0x80000000 <= value <= 0x7FFFFFFF:
        width = 32
    else:
        width = 64 if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF else 65
    return (int, width, value == 1, value & 15 == 0)


def _assumed(value: Any, seen: dict[int, int]) -> Hashable:
    kind = type(value)
    if kind in TENSORS:
        return (*_shape(value), _flags(value), seen.setdefault(id(value), -1 - len(seen)))
    if kind is list or kind is tuple or kind is dict:
        same = seen.setdefault(id(value), -1 - len(seen))
        if kind is dict:
            pairs = [(constant(key), _assumed(item, seen)) for key, item in value.items()]
            return (dict, same, *pairs)
        return (cast("Hashable", kind), same, *[_assumed(item, seen) for item in value])
    return constant(value)
