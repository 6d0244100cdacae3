"""Which integers of a call are formulas, and what pins them.

    a tuple, list, dict or slice ── by identity ──► the marks of its items
    a value that goes where nothing follows it ──► pinned, with all that it contains

Enters: containers with the marks of their items, and values that leave what is followed. Leaves:
marks, and conditions that pin formulas. It must not know frames or instructions.

A value without a mark is the same in every call of the plan. So whatever may depend on sizes has a
mark, or the formulas that it depends on are pinned.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType, MethodWrapperType
from typing import Any, NamedTuple, Protocol

import torch

from tzero.symbolic.formulas import Formulas

__all__ = [
    "ITERATORS",
    "SEQUENCES",
    "VIEWS",
    "Geometry",
    "Items",
    "Lost",
    "Mark",
    "Marks",
    "Offer",
    "Ratio",
    "is_context",
    "is_plain_key",
]


class Lost(Exception):
    """An integer cannot be followed any further; the message says why."""


class Ratio(NamedTuple):
    """The quotient of two formulas, a float."""

    above: int
    below: int


Mark = int | Ratio | None
"""The number of a formula, or a quotient of two; None if a value does not depend on sizes."""

Items = list[int | None] | dict[Any, int | None]
"""The formulas of what a tuple, list, slice or dict contains."""

SEQUENCES = (tuple, list, torch.Size)
_CONTAINERS = (*SEQUENCES, dict, slice)
_CHANGEABLE = (list, dict)
ITERATORS: tuple[type, ...] = (type(iter(())), type(iter([])))
"""Iterators whose items are known wherever they go."""

VIEWS: tuple[type, ...] = (type({}.items()), type({}.values()))
"""What `dict.items` and `dict.values` return."""

_OF_VIEWS = (*VIEWS, type(iter({}.items())), type(iter({}.values())))


_OPENED = frozenset([*_CONTAINERS, *ITERATORS, *_OF_VIEWS, BuiltinFunctionType, MethodWrapperType])
"""Types of values that lead to what may be marked."""


class Geometry(Protocol):
    """What is known of the geometry of tensors."""

    def sizes(self, tensor: torch.Tensor) -> Sequence[int] | None:
        """The formulas of a tensor's sizes; None if they are the same in every call."""

    def strides(self, tensor: torch.Tensor) -> Sequence[int] | None:
        """The formulas of its strides."""


class Offer(NamedTuple):
    """A call about to be made, with the marks of its arguments; the last ones have names. The
    object of a method is the first argument. `subscript` is the kernel and the grid of a launch.
    Who understands the call takes the offer (`Integers.take`); otherwise all of it is pinned."""

    function: Any
    args: list[Any]
    names: tuple[str, ...]
    marks: list[Mark]
    subscript: tuple[Any, Any] | None = None


class Marks:
    """The marks of what containers contain."""

    def __init__(self, formulas: Formulas) -> None:
        self.formulas = formulas
        self._items: dict[int, tuple[Any, Items]] = {}
        self._iterators: dict[int, tuple[Any, Any]] = {}  # and what they iterate over
        self._views: dict[int, tuple[Any, dict[Any, Any]]] = {}  # of dicts, and iterators over them
        self._attributes: dict[int, tuple[Any, dict[str, int | None]]] = {}
        self._escaped: dict[int, Any] = {}  # lists and dicts that code holds which is not followed

    # -- containers ----------------------------------------------------------------------------

    def mark_items(self, container: Any, items: Sequence[Mark] | Mapping[Any, Mark]) -> None:
        """Mark what a container contains."""
        if type(items) is not list and isinstance(items, Mapping):
            of_dict = {key: self.whole(mark) for key, mark in items.items()}
            keys = list(dict.keys(container))
            if all(map(is_plain_key, keys)):  # all of them, in this order
                of_dict = {key: of_dict.get(key) for key in keys}
            made: Items = of_dict
            pairs = [(dict.get(container, key), mark) for key, mark in of_dict.items()]
        else:
            of_list = [None if mark is None else self.whole(mark) for mark in items]
            made = of_list
            held = _parts(container) if type(container) is slice else container
            if len(held) != len(of_list):
                raise Lost(f"a {type(container).__name__} has not {len(of_list)} items")
            pairs = list(zip(held, of_list, strict=True))
        for value, mark in pairs:
            if mark is not None:
                self.checked(mark, value)
        self._items.pop(id(container), None)
        if any(mark is not None for _, mark in pairs):
            self._items[id(container)] = container, made
        if self._has_escaped(container):
            self.pin(container)

    def items_of(self, container: Any) -> Items | None:
        """The marks of what a container contains; None if there are none."""
        found = self._items.get(id(container))
        return found[1] if found is not None and found[0] is container else None

    def each(self, sequence: Any) -> list[Mark]:
        """The mark of each item of a sequence."""
        found = self.items_of(sequence)
        return [*found] if isinstance(found, list) else [None] * len(sequence)

    def iterate(self, iterator: Any, sequence: Any) -> None:
        """An iterator over a sequence was made."""
        if type(iterator) in ITERATORS:
            self._iterators[id(iterator)] = iterator, sequence
        else:
            self.pin(sequence)

    def _sequence_of(self, iterator: Any) -> Any:
        found = self._iterators.get(id(iterator))
        return found[1] if found is not None and found[0] is iterator else None

    def next_of(self, iterator: Any) -> Mark:
        """The mark of what an iterator gives next."""
        sequence = self._sequence_of(iterator)
        items = self.items_of(sequence)
        if not isinstance(items, list):
            return None
        place = len(sequence) - operator.length_hint(iterator)
        return items[place] if place < len(items) else None

    def view(self, view: Any, of: Any) -> None:
        """A view of a dict was made, or an iterator over a view."""
        source = of if type(of) is dict else self._viewed(of)
        if source is not None:
            self._views[id(view)] = view, source

    def _viewed(self, view: Any) -> dict[Any, Any] | None:
        found = self._views.get(id(view))
        return found[1] if found is not None and found[0] is view else None

    def next_in_view(self, iterator: Any) -> Mark:
        """The mark of the value that an iterator over a view of a dict comes to next."""
        source = self._viewed(iterator)
        items = self.items_of(source)
        if source is None or not isinstance(items, dict):
            return None
        place = len(source) - operator.length_hint(iterator)
        keys = list(source)[place : place + 1]
        return items.get(keys[0]) if keys else None

    def holds_marks(self, value: Any) -> bool:
        """Whether a value contains a mark, at any depth."""
        if type(value) not in _OPENED and id(value) not in self._items:
            return False
        return any(self.items_of(each) is not None for each in self._inside(value))

    def _inside(self, value: Any) -> list[Any]:
        """The containers in a value, and itself if it is one."""
        if type(value) not in _OPENED and id(value) not in self._items:
            return []
        found: dict[int, Any] = {}
        todo = [value]
        while todo:
            each = todo.pop()
            if id(each) in found:
                continue
            kind = type(each)
            if kind in (BuiltinFunctionType, MethodWrapperType):  # `sizes.append`
                todo.append(each.__self__)
            elif kind in ITERATORS:
                todo.append(self._sequence_of(each))
            elif kind in _OF_VIEWS:
                todo.append(self._viewed(each))
            elif kind in _CONTAINERS or self.items_of(each) is not None:
                found[id(each)] = each
                if isinstance(each, dict):
                    todo += [*dict.keys(each), *dict.values(each)]
                elif kind is not slice:
                    todo += each
        return list(found.values())

    def is_unchangeable(self, value: Any) -> bool:
        """Whether nothing in a value can be changed, as far as it holds marks."""
        return not any(type(each) in _CHANGEABLE for each in self._inside(value))

    # -- attributes ----------------------------------------------------------------------------

    def attributes_of(self, context: Any) -> dict[str, int | None]:
        """The marks of the attributes of an autograd context, by name, to be changed."""
        return self._attributes.setdefault(id(context), (context, {}))[1]

    # -- pins ----------------------------------------------------------------------------------

    def pin(self, value: Any, mark: Mark = None) -> None:
        """Pin a value and all that it contains: it is the same in every call of the plan. It may be
        held, and lists and dicts in it changed, where that is not seen."""
        if mark is not None:
            self._pin(mark)
        if type(value) not in _OPENED and id(value) not in self._items:
            return
        for each in self._inside(value):
            _, items = self._items.pop(id(each), (None, []))
            for one in items.values() if isinstance(items, dict) else items:
                self._pin(one)
            if type(each) in _CHANGEABLE:
                self._escaped[id(each)] = each

    def pin_values(self, values: Iterable[Any], marks: Iterable[Mark] = ()) -> None:
        """Pin several values."""
        for value in values:
            self.pin(value)
        for mark in marks:
            if mark is not None:
                self._pin(mark)

    def pin_read(self, values: Iterable[Any], marks: Iterable[Mark] = ()) -> None:
        """Pin values that are read now, and are not held."""
        self.pin_values(filter(self.holds_marks, values), marks)

    def _has_escaped(self, container: Any) -> bool:
        return self._escaped.get(id(container)) is container

    def _pin(self, mark: Mark) -> None:
        for each in mark if isinstance(mark, Ratio) else (mark,):
            if each is not None:
                self.formulas.pin(each)

    # -- formulas ------------------------------------------------------------------------------

    def whole(self, mark: Mark) -> int | None:
        """The mark of an integer; a quotient, which only some functions understand, is pinned."""
        if isinstance(mark, Ratio):
            self._pin(mark)
            return None
        return None if mark is None or self.formulas.is_constant(mark) else mark

    def checked(self, mark: Mark, value: Any) -> Mark:
        """A mark that is about to be used; its value must be the one that is there."""
        if type(mark) is int and (type(value) is not int or self.formulas.value(mark) != value):
            text = self.formulas.text(mark)
            raise Lost(f"a {type(value).__name__} is where the value of {text} should be")
        return mark

    def formula(self, value: Any, mark: Mark) -> int | None:
        """The formula of an integer, marked or not; None for what is no integer of 64 bits."""
        if type(mark) is int:
            return mark
        if mark is None and type(value) in (int, bool) and -(1 << 63) <= value < 1 << 63:
            return self.formulas.constant(value)
        return None

    def applied(self, operation: str, *args: int) -> Mark:
        """The mark of the result of an operation. Where that is no integer of 64 bits, the operands
        are pinned: the host function gets Python's own result."""
        try:
            return self.whole(self.formulas.apply(operation, *args))
        except ArithmeticError:
            for each in args:
                self.formulas.pin(each)
            return None

    def ratio(self, above: int, below: int) -> Mark:
        """The mark of a quotient."""
        if not self.formulas.compare("!=", below, self.formulas.constant(0)):
            return None  # it raises an exception
        return Ratio(above, below)


def is_context(value: Any) -> bool:
    """Whether a value is what the forward of an autograd function keeps things in for its backward.
    A call that is replayed has no backward, so nobody but the forward reads them.

    >>> is_context(torch.autograd.function.FunctionCtx()), is_context(3)
    (True, False)
    """
    return issubclass(type(value), _CONTEXT)


_CONTEXT = torch.autograd.function.FunctionCtx


def is_plain_key(key: Any) -> bool:
    """Whether looking for a key of a dict runs no code of the program.

    >>> is_plain_key("n"), is_plain_key((1, 2))
    (True, False)
    """
    return type(key) in (int, str, bool, type(None))


def _parts(key: slice) -> tuple[Any, Any, Any]:
    return key.start, key.stop, key.step
