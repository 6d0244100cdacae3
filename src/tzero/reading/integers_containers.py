"""What instructions do with the marks in tuples, lists, dicts and slices.

Enters: an instruction that is about to run, its operands and their marks. Leaves: the marks of what
it pushes, and of what containers contain once it has run. It must not know other instructions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tzero.adapters.python_frames import Instruction, operands
from tzero.reading.integers_marks import SEQUENCES, VIEWS, Mark, Offer, is_plain_key
from tzero.reading.kinds import KERNELS

if TYPE_CHECKING:
    from tzero.reading.integers import Integers, Shadow

__all__ = [
    "Step",
    "built",
    "built_dict",
    "built_with_names",
    "changing",
    "entry_added",
    "extended",
    "holding",
    "intrinsic",
    "item",
    "iterated",
    "merged",
    "next",
    "sliced",
    "stored",
    "unpacked",
    "unpacked_with_rest",
]


class Step(NamedTuple):
    """An instruction that is about to run: the marks of its frame, its operands and their marks."""

    integers: Integers
    shadow: Shadow
    at: Instruction
    values: Sequence[Any]
    marks: list[Mark]


def holding(
    integers: Integers, shadow: Shadow, items: list[Mark] | dict[Any, Mark], place: int = 0
) -> None:
    """The instruction makes a container with these marks."""

    def note(made: Any) -> None:
        integers.mark_items(made, items)

    shadow.after = place, note


def changing(
    integers: Integers, shadow: Shadow, container: Any, items: list[Mark] | dict[Any, Mark]
) -> None:
    """The instruction changes a container, which then has these marks."""

    def note(_: Any) -> None:
        integers.mark_items(container, items)

    shadow.after = None, note


def built(step: Step) -> list[Mark]:
    """BUILD_TUPLE, BUILD_LIST, BUILD_SLICE"""
    integers, shadow, at, marks = step.integers, step.shadow, step.at, step.marks
    padding: list[Mark] = [None] if at.name == "BUILD_SLICE" and at.arg == 2 else []
    holding(integers, shadow, [*marks, *padding])
    return [None]


def built_dict(step: Step) -> list[Mark]:
    """BUILD_MAP"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    integers.pin_values(values[::2], marks[::2])
    if all(map(is_plain_key, values[::2])):
        holding(integers, shadow, dict(zip(values[::2], marks[1::2], strict=True)))
    else:
        integers.pin_values((), marks[1::2])
    return [None]


def built_with_names(step: Step) -> list[Mark]:
    """BUILD_CONST_KEY_MAP"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    names = values[-1]
    if all(map(is_plain_key, names)):
        holding(integers, shadow, dict(zip(names, marks[:-1], strict=True)))
    else:
        integers.pin_values((), marks)
    return [None]


def unpacked(step: Step) -> list[Mark]:
    """UNPACK_SEQUENCE"""
    integers, at, values, marks = step.integers, step.at, step.values, step.marks
    if type(values[0]) in SEQUENCES and len(values[0]) == at.arg:
        return integers.each(values[0])[::-1]
    integers.pin(values[0], marks[0])
    return [None] * at.arg


def unpacked_with_rest(step: Step) -> list[Mark]:
    """UNPACK_EX"""
    integers, shadow, at, values, marks = step
    before, after = at.arg & 255, at.arg >> 8
    if type(values[0]) not in SEQUENCES or len(values[0]) < before + after:
        integers.pin(values[0], marks[0])
        return [None] * (before + 1 + after)
    items = integers.each(values[0])
    end = len(items) - after
    holding(integers, shadow, items[before:end], place=before)
    return [*items[:before], None, *items[end:]][::-1]


def item(step: Step) -> list[Mark]:
    """BINARY_SUBSCR"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    container, key = values
    items = integers.items_of(container)
    if items is None and type(container) not in (*SEQUENCES, dict, str, range):
        if issubclass(type(container), KERNELS) and marks == [None, None]:

            def note(made: Any) -> None:
                integers.launcher(made, container, key)

            shadow.after = 0, note
        else:  # a tensor: who understands it takes the offer
            integers.make_offer(shadow, Offer(operator.getitem, list(values), (), marks))
        return [None]
    integers.pin_read([key], marks)
    if items is None:
        return [None]
    if isinstance(items, list) and type(key) in (int, bool):
        return [items[key] if -len(items) <= key < len(items) else None]
    if isinstance(items, dict) and is_plain_key(key):
        return [items.get(key)]
    if isinstance(items, list) and type(key) is slice and _is_plain_slice(key):
        holding(integers, shadow, [*items[key]])
        return [None]
    integers.pin(container)
    return [None]


def _is_plain_slice(key: slice) -> bool:
    return all(type(each) in (int, type(None)) for each in (key.start, key.stop, key.step))


def sliced(step: Step) -> list[Mark]:
    """BINARY_SLICE"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    container, start, stop = values
    if type(container) in SEQUENCES:
        integers.pin_read(values[1:], marks[1:])
        if all(type(each) in (int, type(None)) for each in (start, stop)):
            holding(integers, shadow, integers.each(container)[start:stop])
        else:
            integers.pin(container)
    else:
        key = slice(start, stop)
        integers.mark_items(key, [*marks[1:], None])
        offer = Offer(operator.getitem, [container, key], (), [marks[0], None])
        integers.make_offer(shadow, offer)
    return [None]


def extended(step: Step) -> list[Mark]:
    """LIST_EXTEND, LIST_APPEND"""
    integers, shadow, at, values, marks = step
    target = operands(shadow.frame, at, 1 + at.arg)[0]
    if at.name == "LIST_APPEND":
        changing(integers, shadow, target, [*integers.each(target), *marks])
    elif type(values[0]) in SEQUENCES:
        items = [*integers.each(target), *integers.each(values[0])]
        changing(integers, shadow, target, items)
    else:
        integers.pin_values([target, *values], marks)
    return []


def entry_added(step: Step) -> list[Mark]:
    """MAP_ADD"""
    integers, shadow, at, values, marks = step
    target = operands(shadow.frame, at, 2 + at.arg)[0]
    integers.pin(values[0], marks[0])
    _entry(integers, shadow, target, values[0], values[1], marks[1])
    return []


def _entry(
    integers: Integers, shadow: Shadow, target: Any, key: Any, value: Any, mark: Mark
) -> None:
    """An entry of a dict is set."""
    held = integers.items_of(target) or {}
    if isinstance(held, dict) and is_plain_key(key) and all(map(is_plain_key, target)):
        changing(integers, shadow, target, {**held, key: mark})
    else:
        integers.pin_values([target, value], [mark])


def merged(step: Step) -> list[Mark]:
    """DICT_MERGE, DICT_UPDATE"""
    integers, shadow, at, values, marks = step
    target = operands(shadow.frame, at, 1 + at.arg)[0]
    ours, theirs = (integers.items_of(each) or {} for each in (target, values[0]))
    if type(values[0]) is dict and isinstance(ours, dict) and isinstance(theirs, dict):
        new = {key: theirs.get(key) for key in values[0] if is_plain_key(key)}
        changing(integers, shadow, target, {**ours, **new})
    else:
        integers.pin_values([target, *values], marks)
    return []


def stored(step: Step) -> list[Mark]:
    """STORE_SUBSCR"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    value, container, key = values
    if issubclass(type(container), torch.Tensor):
        args = [container, key, value]
        offer = Offer(operator.setitem, args, (), [marks[1], marks[2], marks[0]])
        integers.make_offer(shadow, offer)
        return []
    integers.pin_read([key], marks[1:])
    if type(container) is list and type(key) is int and -len(container) <= key < len(container):
        items = integers.each(container)
        items[key] = marks[0]
        changing(integers, shadow, container, items)
    elif type(container) is dict:
        integers.pin(key)
        _entry(integers, shadow, container, key, value, marks[0])
    else:
        integers.pin_values(values, marks)
    return []


def iterated(step: Step) -> list[Mark]:
    """GET_ITER"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    (sequence,) = values
    if type(sequence) in SEQUENCES:

        def note(iterator: Any) -> None:
            integers.iterate(iterator, sequence)

        shadow.after = 0, note
    elif type(sequence) in VIEWS:
        shadow.after = 0, lambda iterator: integers.view(iterator, sequence)
    elif type(sequence) is not dict:
        integers.pin_values((), marks)
    return [None]


def next(step: Step) -> list[Mark]:
    """FOR_ITER: the iterator stays, and goes when it is exhausted."""
    integers, shadow, values = step.integers, step.shadow, step.values
    shadow.is_open = True
    if type(values[0]) is _ITEMS:
        holding(integers, shadow, [None, integers.next_in_view(values[0])])
        return [None, None]
    if type(values[0]) is _VALUES:
        return [None, integers.next_in_view(values[0])]
    return [None, integers.next_of(values[0])]


_ITEMS: type = type(iter({}.items()))
_VALUES: type = type(iter({}.values()))


def intrinsic(step: Step) -> list[Mark]:
    """LIST_TO_TUPLE, CALL_INTRINSIC_1"""
    integers, shadow, at, values, marks = step
    if at.name == "LIST_TO_TUPLE" or at.text == "INTRINSIC_LIST_TO_TUPLE":
        holding(integers, shadow, integers.each(values[0]))
        return [None]
    if at.text == "INTRINSIC_UNARY_POSITIVE" and type(marks[0]) is int:
        return marks
    integers.pin_values(values, marks)
    return [None]
