"""Functions decorated with `functools.cache`: a guard on the entry that a call has found or made.

Enters: such a function that has returned, its arguments and its result. Leaves: guards in a
`World`, or `Unreplayable`. It must not know other calls.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Kept, Same
from tzero.reading.kinds import is_plain
from tzero.reading.special import Callee
from tzero.reading.world import World

__all__ = ["guard_cached"]


def guard_cached(world: World, function: Any, callee: Callee, result: Any) -> None:
    """A cached function has returned: guard its cache entry. An entry that is evicted, or
    computed again, is another object.

    ::

        guard_cached(world, cached, Callee.of(cached, [3]), result)
    """
    text = f"what {world.name(function)} has cached"
    # Among what it refers to are its cache, and the results in it.
    held = [each for each in gc.get_referents(function) if type(each) is dict]
    own = [each for each in held if each is not vars(function) and each is not result]
    found = [(cache, key) for cache in own for key in cache if _is_key(key, callee)]
    if len(found) != 1:
        raise Unreplayable(f"{text} cannot be found", "", 0)
    ((cache, key),) = found
    entry = cache[key]
    name = f"{text} for {len(callee.args)} arguments"
    if function.cache_parameters()["maxsize"] is None:
        world.add(Same(name, cache, key, entry))
    else:  # an entry that is evicted is used again, for other arguments
        _, misses, most, _ = function.cache_info()
        is_same: Callable[[], bool] = lambda: function.cache_info().misses == misses  # noqa: E731
        world.add(Kept.of(name, cache, key, most, is_same))
    if isinstance(result, torch.Tensor):
        raise Unreplayable(f"{world.name(function)} has cached a tensor", "", 0)
    world.enter(result, f"the result of {world.name(function)}")


def _is_key(key: Any, callee: Callee) -> bool:
    """Whether a key of a cache is that of a call. With keywords there is one more object in it, a
    mark between positions and names; a cache by type has the types at its end."""
    positional = callee.positional
    if len(callee.args) == 1 and not callee.names and type(key) is not tuple:
        return _are_same([key], callee.args)
    if not isinstance(key, (tuple, list)):
        return False
    pairs = zip(callee.names, callee.args[len(positional) :], strict=True)
    named = [each for pair in pairs for each in pair]
    if not named:
        return _are_same(key, positional)
    head, tail = key[: len(positional)], key[len(positional) + 1 :]
    return _are_same(head, positional) and _are_same(tail, named)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether the items are the same objects, or equal and plain: comparing others may run code of
    the program."""
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is tuple and type(other) is tuple:
        return _are_same(one, other)
    return type(one) is type(other) and is_plain(one) and bool(one == other)
