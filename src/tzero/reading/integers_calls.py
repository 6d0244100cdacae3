"""What calls do with marked integers.

    a function of the program            ──► its frame is followed
    min, triton.cdiv, x.size, list(...)  ──► understood here: formulas
    all others                           ──► offered to who records, else pinned

Enters: a call that is about to be made, with the marks of its arguments. Leaves: the mark of its
result, or an offer. It must not know instructions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, cast

import torch
import triton

from tzero.reading.integers_launches import as_launch
from tzero.reading.integers_marks import (
    ITERATORS,
    SEQUENCES,
    Mark,
    Offer,
    Ratio,
    is_context,
    is_plain_key,
)
from tzero.reading.purity import is_library

if TYPE_CHECKING:
    from tzero.reading.integers import Integers, Shadow

__all__ = ["called"]


class NotUnderstood(Exception):
    """A function is called in a way that gives no formula."""


Understood = Callable[["Integers", "Shadow", Offer], Mark]


def called(integers: Integers, shadow: Shadow, written: Offer) -> list[Mark]:
    """A call is about to be made; the mark of its result, as far as it is known now."""
    offer, subscript = _opened(written), integers.subscript_of(written.function)
    if subscript is not None:
        offer = offer._replace(subscript=subscript)
    offer = as_launch(offer)
    function = offer.function
    understood = _UNDERSTOOD.get(id(function))
    if understood is not None:
        try:
            return [understood(integers, shadow, offer)]
        except NotUnderstood:
            pass
    if isinstance(function, FunctionType) and not is_library(function):
        if function.__code__.co_flags & _GENERATES:
            kept = [value for value in offer.args if type(value) not in ITERATORS]
            integers.pin_values(kept, offer.marks)
        else:
            integers.follow(shadow, offer, function)
    else:
        if id(function) not in _OF_CONTEXTS:
            _pin_contexts(integers, offer)
        integers.make_offer(shadow, offer)
    return [None]


def _pin_contexts(integers: Integers, offer: Offer) -> None:
    """A function gets autograd contexts, and may read or change their attributes."""
    for value in filter(is_context, offer.args):
        held = integers.attributes_of(value)
        integers.pin_values(vars(value).values(), held.values())
        held.clear()


_OF_CONTEXTS = frozenset(map(id, vars(torch.autograd.function.FunctionCtx).values()))
"""Methods of contexts, such as `save_for_backward`, which leave other attributes alone."""


_GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _opened(offer: Offer) -> Offer:
    """A call with the object of a method as its first argument."""
    function = offer.function
    if type(function) is MethodType:
        args, marks = [function.__self__, *offer.args], [None, *offer.marks]
        return Offer(function.__func__, args, offer.names, marks)
    if type(function) not in (BuiltinFunctionType, MethodWrapperType):
        return offer
    owner = function.__self__
    if owner is None or isinstance(owner, (type, ModuleType)):
        return offer
    args, marks = [owner, *offer.args], [None, *offer.marks]
    for kind in type(owner).__mro__:
        found = vars(kind).get(function.__name__)
        if type(found) in (MethodDescriptorType, WrapperDescriptorType):
            return Offer(found, args, offer.names, marks)
    return Offer(function, args, offer.names, marks)


# -- integers --------------------------------------------------------------------------------------


def _operands(integers: Integers, values: list[Any], marks: list[Mark]) -> list[int]:
    """The formulas of integers of which some are marked."""
    if all(mark is None for mark in marks):
        raise NotUnderstood
    found = []
    for value, mark in zip(values, marks, strict=True):
        formula = integers.formula(value, mark)
        if formula is None or type(value) is bool:
            raise NotUnderstood
        found.append(integers.checked(formula, value))
    return found  # type: ignore[return-value]


def _operation(name: str, count: int) -> Understood:
    def apply(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
        found = _operands(integers, offer.args, offer.marks)
        if len(found) != count or offer.names:
            raise NotUnderstood
        return integers.applied(name, *found)

    return apply


def _fold(name: str, start: int | None) -> Understood:
    """`min`, `max`, of several arguments or one sequence; `sum` and `math.prod` of one."""

    def apply(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
        args, marks = offer.args, offer.marks
        if offer.names or not args or (start is not None and len(args) > 1):
            raise NotUnderstood
        if len(args) == 1:
            args, marks = _listed(integers, offer)
        return _folded(integers, name, _operands(integers, args, marks), start)

    return apply


def _folded(integers: Integers, name: str, found: list[int], start: int | None) -> Mark:
    """The mark of an operation on all of these formulas."""
    made, *rest = found if start is None else [integers.formulas.constant(start), *found]
    try:
        for each in rest:
            made = integers.formulas.apply(name, made, each)
    except ArithmeticError:
        integers.pin_values((), found)
        return None
    return made


def _listed(integers: Integers, offer: Offer) -> tuple[list[Any], list[Mark]]:
    """The items of the sequence that a call is given, and their marks."""
    if offer.names or len(offer.args) != 1 or type(offer.args[0]) not in SEQUENCES:
        raise NotUnderstood
    return list(offer.args[0]), integers.each(offer.args[0])


def _rounded(name: str) -> Understood:
    def apply(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
        (mark,) = offer.marks if len(offer.marks) == 1 and not offer.names else (None,)
        if isinstance(mark, Ratio):
            return integers.applied(name, *mark)
        if mark is None:
            raise NotUnderstood
        return mark

    return apply


def _truth(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """bool"""
    (mark,) = offer.marks if len(offer.marks) == 1 else (None,)
    if type(mark) is not int:
        raise NotUnderstood
    integers.formulas.compare("!=", mark, integers.formulas.constant(0))
    return None


def _divided(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """divmod"""
    if len(offer.args) != 2:
        raise NotUnderstood
    found = _operands(integers, offer.args, offer.marks)
    marks = [integers.applied(name, *found) for name in ("//", "%")]
    shadow.after = 0, lambda made: integers.mark_items(made, marks)
    return None


def _type_only(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """isinstance, type, callable: nothing but the type is read."""
    return None


def _attribute_of_type(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """hasattr: which attributes an integer has depends on its type alone."""
    if len(offer.args) != 2 or type(offer.args[0]) is not int:
        raise NotUnderstood
    return None


# -- containers ------------------------------------------------------------------------------------


def _copied(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """tuple, list, torch.Size"""
    _, marks = _listed(integers, offer)
    shadow.after = 0, lambda made: integers.mark_items(made, marks)
    return None


def _appended(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """list.append"""
    if len(offer.args) != 2 or type(offer.args[0]) is not list or offer.names:
        raise NotUnderstood
    target = offer.args[0]
    _change(integers, shadow, target, [*integers.each(target), offer.marks[1]])
    return None


def _extended(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """list.extend"""
    if len(offer.args) != 2 or type(offer.args[0]) is not list or offer.names:
        raise NotUnderstood
    target, others = offer.args
    if type(others) not in SEQUENCES:
        raise NotUnderstood
    _change(integers, shadow, target, [*integers.each(target), *integers.each(others)])
    return None


def _named(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """dict(name=...)"""
    if len(offer.names) != len(offer.args):
        raise NotUnderstood
    marks = dict(zip(offer.names, offer.marks, strict=True))
    shadow.after = 0, lambda made: integers.mark_items(made, marks)
    return None


def _got(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """dict.get"""
    if not 2 <= len(offer.args) <= 3 or offer.names or type(offer.args[0]) is not dict:
        raise NotUnderstood
    held, key = offer.args[:2]
    if not is_plain_key(key) or not all(map(is_plain_key, held)):
        raise NotUnderstood
    integers.pin(None, offer.marks[1])
    items = integers.items_of(held) or {}
    if key in held:
        return items.get(key) if isinstance(items, dict) else None
    return offer.marks[2] if len(offer.args) == 3 else None


def _viewed(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """dict.items, dict.values"""
    if len(offer.args) != 1 or type(offer.args[0]) is not dict:
        raise NotUnderstood
    (held,) = offer.args
    shadow.after = 0, lambda made: integers.view(made, held)
    return None


def _change(integers: Integers, shadow: Shadow, target: Any, items: list[Mark]) -> None:
    shadow.after = None, lambda _: integers.mark_items(target, items)


def _length(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """len"""
    if len(offer.args) != 1:
        raise NotUnderstood
    (value,) = offer.args
    if issubclass(type(value), torch.Tensor):
        sizes = integers.geometry.sizes(value)
        integers.reading = value
        return sizes[0] if sizes else None
    if type(value) in (*SEQUENCES, dict):
        return None  # of a container the length is the same in every call
    raise NotUnderstood


# -- tensors ---------------------------------------------------------------------------------------


def _tensor_of(offer: Offer) -> torch.Tensor:
    tensor = offer.args[0] if offer.args else None
    if not issubclass(type(tensor), torch.Tensor) or any(m is not None for m in offer.marks):
        raise NotUnderstood
    return cast(torch.Tensor, tensor)


def _geometry(name: str) -> Understood:
    """Tensor.size, Tensor.stride"""

    def read(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
        tensor, args = _tensor_of(offer), offer.args[1:]
        is_understood = len(args) < 2 and offer.names in ((), ("dim",))
        if not is_understood or any(type(each) is not int for each in args):
            raise NotUnderstood
        found = getattr(integers.geometry, name)(tensor)
        integers.reading = tensor
        if found is None:
            return None
        if args:
            return found[args[0]] if -len(found) <= args[0] < len(found) else None
        shadow.after = 0, lambda made: integers.mark_items(made, list(found))
        return None

    return read


def _count(integers: Integers, shadow: Shadow, offer: Offer) -> Mark:
    """Tensor.numel"""
    tensor = _tensor_of(offer)
    if len(offer.args) > 1:
        raise NotUnderstood
    sizes = integers.geometry.sizes(tensor)
    integers.reading = tensor
    return None if sizes is None else _folded(integers, "*", list(sizes), 1)


_UNDERSTOOD: dict[int, Understood] = {
    id(function): understood
    for function, understood in [
        (triton.cdiv, _operation("cdiv", 2)),
        (triton.next_power_of_2, _operation("next_power_of_2", 1)),
        (abs, _operation("abs", 1)),
        (divmod, _divided),
        (int.bit_length, _operation("bit_length", 1)),
        (min, _fold("min", None)),
        (max, _fold("max", None)),
        (sum, _fold("+", 0)),
        (math.prod, _fold("*", 1)),
        (torch.Size.numel, _fold("*", 1)),
        (math.ceil, _rounded("ceil")),
        (math.floor, _rounded("floor")),
        (math.trunc, _rounded("trunc")),
        (int, _rounded("trunc")),
        (bool, _truth),
        (tuple, _copied),
        (list, _copied),
        (torch.Size, _copied),
        (dict, _named),
        (dict.get, _got),
        (dict.items, _viewed),
        (dict.values, _viewed),
        (list.append, _appended),
        (list.extend, _extended),
        (len, _length),
        (isinstance, _type_only),
        (callable, _type_only),
        (hasattr, _attribute_of_type),
        (torch.Tensor.size, _geometry("sizes")),
        (torch.Tensor.stride, _geometry("strides")),
        (torch.Tensor.numel, _count),
        (torch.Tensor.nelement, _count),
    ]
}
"""By the identity of a function: to look for others in a table of functions may run their code."""
