"""What a host function returns, in terms of the slots: also its arguments, and objects it has made.

    logits               ──► the tensor in a slot
    cache                ──► the argument, if it counts by identity
    Output(logits=...)   ──► a `Mould`, and what it is filled with in each call

Enters: the result of a recorded call. Leaves: a `Value`, or `NotAStep` if a plan cannot make it. It
must not know steps.

An object is made anew in each call, without running code of its class: that ran in the recorded
call, was followed, and depends on nothing but what has guards. So the class may hold no state in C
but that of a dict, and nothing may have a weak reference to the object.
"""

from __future__ import annotations

import abc
import collections
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from tzero.plans.plan import Constant, Mould, Nest, Scalar, Value, tensors_in
from tzero.plans.slots import Slots
from tzero.plans.values import NotAStep, constant_of, containers_in
from tzero.reading.attributes import own_dict
from tzero.reading.known import is_a
from tzero.reading.purity import is_library
from tzero.reading.world import World

__all__ = ["Result", "is_made_anew"]

_BASES: tuple[type, ...] = (collections.OrderedDict, dict, object)
_LIKE = {base: type("Like", (base,), {}) for base in _BASES}
"""Classes whose objects have what is in C of each base, a dict of attributes, and nothing else."""

_PLAIN = (*_BASES, abc.ABC, typing.Generic)


class Result:
    """Reads the result of a call. `given` has the leaves of arguments that count by identity, by
    id; `is_kept` says of a function whether each call finds the same one; `world` is None if the
    call was not followed."""

    def __init__(
        self,
        slots: Slots,
        given: Mapping[int, int],
        is_kept: Callable[[FunctionType], bool],
        world: World | None,
    ) -> None:
        self._slots, self._given, self._is_kept, self._world = slots, given, is_kept, world

    def value(self, result: Any, others: Sequence[Any], made: Collection[int]) -> Value:
        """The result as a value. `others` were there before the call; `made` are the slots of steps
        that autograd does not see."""
        value = self._slots.value(result, "its result", self._other)
        seen = {id(each) for each in containers_in(others)}
        for each in self._containers(result):
            if id(each) in seen or (self._world is not None and self._world.has(each)):
                raise NotAStep(
                    f"it returns a {type(each).__name__} that is an argument, in a global, or twice"
                )
            seen.add(id(each))
        for slot in tensors_in(value):
            if slot in made and self._slots.tensors[slot].requires_grad:
                raise NotAStep("its result requires a gradient that no torch function gave it")
        return value

    def _other(self, value: Any) -> Value | None:
        """What only a result may be or hold; None if a plan cannot hold it."""
        if type(value) is FunctionType:
            return Constant(value) if self._is_kept(value) else None
        leaf = self._given.get(id(value))
        if leaf is not None:
            return Scalar(leaf)
        return self._anew(value) if self._is_made(value) else None

    def _is_made(self, value: Any) -> bool:
        world = self._world
        if world is None or not is_made_anew(type(value)) or world.has(value):
            return False
        is_kept = world.has(type(value), passing=False)
        return is_kept and not weakref.getweakrefcount(value)

    def _anew(self, value: Any) -> Nest:
        own, pairs = own_dict(value), _pairs(value)
        assert own is not None
        parts = _parts(value)
        places = {id(part): k for k, part in enumerate(parts)}
        what = f"an attribute of the {type(value).__name__} that it returns"
        keys = (constant_of(key, "a key in its result").value for key, _ in pairs)
        mould = Mould(
            type(value),
            tuple((key, places[id(item)]) for key, (_, item) in zip(keys, pairs, strict=True)),
            tuple((name, places[id(item)]) for name, item in own.items()),
        )
        return Nest(mould, tuple(self._slots.value(part, what, self._other) for part in parts))

    def _containers(self, result: Any) -> Iterator[Any]:
        """The lists, dicts and objects that a result is or holds, each as often as it is there."""
        seen: set[int] = set()  # one may hold itself
        rest = [result]
        while rest:
            each = rest.pop()
            is_object = id(each) not in self._given and self._is_made(each)
            if is_object or issubclass(type(each), (list, dict)):
                yield each
            if id(each) in seen:
                continue
            seen.add(id(each))
            if is_object:
                rest += _parts(each)
            elif issubclass(type(each), (list, tuple)):
                base = list if issubclass(type(each), list) else tuple
                rest += base.__iter__(each)
            elif issubclass(type(each), dict):
                rest += dict.values(each)


def is_made_anew(kind: type) -> bool:
    """Whether objects of a class can be made from their attributes, and from their items if they
    are dicts.

    >>> is_made_anew(type("Output", (), {})), is_made_anew(type("Output", (list,), {}))
    (True, False)
    """
    if type(kind) not in (type, abc.ABCMeta):
        return False
    for each in kind.__mro__:
        if each in _PLAIN:
            continue
        if is_library(each) or not isinstance(vars(each).get("__dict__"), (_GETTER, type(None))):
            return False
    base = next(each for each in _BASES if each in kind.__mro__)
    return _layout(kind) == _layout(_LIKE[base])


_GETTER = types.GetSetDescriptorType


def _layout(kind: type) -> tuple[int, ...]:
    return kind.__basicsize__, kind.__itemsize__, kind.__dictoffset__, kind.__weakrefoffset__


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """The items of an object that is a dict."""
    if is_a(value, collections.OrderedDict):
        return list(collections.OrderedDict.items(value))
    return list(dict.items(value)) if is_a(value, dict) else []


def _parts(value: Any) -> list[Any]:
    """What an object holds as items and attributes, each once."""
    every = [*(item for _, item in _pairs(value)), *(own_dict(value) or {}).values()]
    return list({id(each): each for each in every}.values())
