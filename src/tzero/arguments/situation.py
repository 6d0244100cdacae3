"""The arguments of a call as leaves, and the situation: everything that a plan assumes of them.

    (x, [y, z], 3) ──► leaves x, xs[0], xs[1], n ──► situation: the facts of each

Enters: arguments. Leaves: their leaves, with names; and a hashable value, equal for two calls only
if one plan serves both. It must not know plans.

Lists, tuples and dicts with string keys (exact types) are walked; everything else is a leaf. The
facts of a tensor are in `tensor_facts`; besides, a situation tells which tensors, lists, tuples and
dicts are the same object. Numbers that are only forwarded to launches count as Triton specializes
them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

from tzero.arguments.constants import Identity, constant
from tzero.arguments.objects import is_object
from tzero.arguments.scalars import NUMBERS, SCALARS
from tzero.arguments.tensor_facts import TENSORS, reader
from tzero.errors import UnsupportedType

__all__ = ["NUMBERS", "TENSORS", "alike", "containers", "leaves", "situation", "unsupported"]

_facts = reader("situation")
_facts_besides_sizes = reader("situation", without=("sizes", "strides", "address modulo 16"))
_facts_besides_key = reader("situation", without=("dtype", "sizes", "strides"))


def leaves(args: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What the arguments are or hold, with names.

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
    """The lists, tuples and dicts that some values are or hold, except the empty tuple, of which
    there is only one.

    >>> list(containers([1, ([2], {})]))
    [([2], {}), [2], {}]
    """
    seen: set[int] = set()  # one may hold itself
    rest = list(values)[::-1]
    while rest:
        value = rest.pop()
        if type(value) in (list, tuple, dict) and len(value) + (type(value) is not tuple) > 0:
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            rest.extend([*(value.values() if type(value) is dict else value)][::-1])


def unsupported(name: str, value: Any) -> str:
    """Why a call with such a leaf cannot be replayed; mostly empty.

    >>> unsupported("f", print)
    "argument 'f' is a builtin_function_or_method, which plans do not support"
    """
    if type(value) in SCALARS or type(value) in TENSORS:
        return ""
    named = UnsupportedType(kind=type(value).__name__).named
    return f"argument {name!r} is {named}, which plans do not support"


def situation(
    args: Sequence[Any], by_value: Collection[int], exact: bool = False, objects: bool = False
) -> Hashable:
    """Everything that a plan assumes of the arguments. Numbers count by value if their index is in
    `by_value`, and always in lists. With `exact` the caller has compared the dtype, sizes and
    strides of each tensor already; a key has only the type of its device. With `objects` those of
    ordinary classes count by identity, whatever their `__eq__` says.

    >>> one = situation((1, 2), {0})
    >>> situation((1, 3), {0}) == one, situation((2, 2), {0}) == one
    (True, False)
    """
    seen: dict[int, int] = {}
    found: list[Hashable] = []
    facts = _facts_besides_key if exact else _facts
    for k, value in enumerate(args):
        kind = type(value)
        if kind in TENSORS:
            found.append((*facts(value), seen.setdefault(id(value), k)))
        elif kind is int and k not in by_value:
            found.append(_class(value))
        elif kind in NUMBERS and k not in by_value:
            found.append(cast("Hashable", kind))
        else:
            found.append(_assumed(value, seen, objects))
    return tuple(found)


def alike(args: Sequence[Any]) -> Hashable:
    """What calls have in common that one plan over sizes may serve: everything but sizes, strides,
    addresses and numbers.

    >>> alike((1, [2])) == alike((3, [4])), alike((1,)) == alike((1.0,))
    (True, False)
    """
    seen: dict[int, int] = {}

    def assumed(value: Any) -> Hashable:
        kind = type(value)
        if kind in TENSORS:
            facts = _facts_besides_sizes(value)
            return (*facts, value.dim(), seen.setdefault(id(value), len(seen)))
        if kind is list or kind is tuple or kind is dict:
            same = seen.setdefault(id(value), len(seen))
            if kind is dict:
                return (dict, same, *((constant(k), assumed(item)) for k, item in value.items()))
            return (cast("Hashable", kind), same, *map(assumed, value))
        return cast("Hashable", kind) if kind in NUMBERS else constant(value)

    return tuple(map(assumed, args))


def _class(value: int) -> tuple[Any, ...]:
    """What Triton specializes a binary for, of an integer."""
    if -0x80000000 <= value <= 0x7FFFFFFF:
        width = 32
    else:
        width = 64 if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF else 65
    return (int, width, value == 1, value & 15 == 0)


def _assumed(value: Any, seen: dict[int, int], objects: bool) -> Hashable:
    kind = type(value)
    if kind in TENSORS:
        return (*_facts(value), seen.setdefault(id(value), -1 - len(seen)))
    if kind is list or kind is tuple or kind is dict:
        same = seen.setdefault(id(value), -1 - len(seen))
        if kind is dict:
            items = value.items()
            pairs = [(constant(key), _assumed(item, seen, objects)) for key, item in items]
            return (dict, same, *pairs)
        return (cast("Hashable", kind), same, *[_assumed(item, seen, objects) for item in value])
    return Identity(value) if objects and is_object(value) else constant(value)
