"""Arguments that are objects of ordinary classes, such as the cache of a model: they count by
identity, where what a call reads of them is watched.

Enters: any value. Leaves: whether it is such an object, and those among some arguments. It must not
know plans.

Such an object is of a class that is written in Python and is no container, tensor, number or enum,
and it can be referred to weakly: nothing that is kept of a call keeps it alive.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

from tzero.adapters import torch_modes

__all__ = ["METACLASS", "is_held", "is_object", "objects_in"]

METACLASS = abc.ABCMeta
"""What the class of such a class may be, besides `type`."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: written in Python, mostly


def is_held(kind: type) -> bool:
    """Whether objects of a class count by identity; native/leaves.cpp asks the same.

    >>> is_held(type("Cache", (), {})), is_held(type("Table", (dict,), {})), is_held(int)
    (True, False, False)
    """
    return (
        type(kind) in (type, METACLASS)
        and kind.__weakrefoffset__ != 0
        and all(each is object or each.__flags__ & _HEAP_TYPE for each in kind.__mro__)
    )


def is_object(value: object) -> bool:
    """Whether a value counts by identity.

    >>> class Cache: ...
    >>> is_object(Cache()), is_object([])
    (True, False)
    """
    return is_held(type(value)) and not torch_modes.is_proxy(value)


def objects_in(values: Iterable[Any]) -> list[Any]:
    """The objects among some values, each once.

    >>> class Cache: ...
    >>> cache = Cache()
    >>> objects_in([1, cache, cache]) == [cache]
    True
    """
    return list({id(each): each for each in values if is_object(each)}.values())
