"""The sizes of one torch function or launch of a recorded call.

    torch.empty(m, n) ── the marks of m and n ──► the geometry of the result
    kernel[grid](x, n) ── the marks of grid and n ──► formulas in the step

Enters: a torch function that has returned, or a launch that is about to be made, with its
arguments. Leaves: formulas in `Sizes`, and values of steps. It must not know how steps are made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from tzero.adapters import triton_launch, triton_wrappers
from tzero.adapters.torch_internals import OpOverload, name_of
from tzero.plans.plan import Constant, Formula, Launch, Scalar, Value
from tzero.plans.size_rules import (
    ALLOCATIONS,
    RESULTS,
    require_contiguity,
    require_no_contiguity,
)
from tzero.plans.sizes import Sizes
from tzero.plans.torch_ops import Ran, always_makes_new, named
from tzero.reading.integers import Mark, Offer
from tzero.reading.integers_launches import launched_with
from tzero.symbolic.shapes import VIEWS, NoRule, Shape, broadcast

__all__ = ["LaunchSizes", "TorchSizes"]


class TorchSizes:
    """The sizes of one torch function: its arguments with formulas in place of integers. If the
    tracker offers this very call, it is taken."""

    def __init__(
        self, sizes: Sizes, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._sizes = sizes
        self._formulas = sizes.formulas
        self._name = named(func)
        if isinstance(func, OpOverload):
            self._name = name_of(func).partition("::")[2].partition(".")[0]
        marked: set[int] = set()
        lifted = [
            sizes.lifted(value, mark, marked)
            for value, mark in zip(*self._taken(func, args, kwargs), strict=True)
        ]
        self._args = lifted[: len(args)]
        self._named = dict(zip(kwargs, lifted[len(args) :], strict=True))
        self._marked = sorted(marked)
        self._slots = [
            slot for tensor in _tensors(lifted) if (slot := sizes.slots.of(tensor)) is not None
        ]

    @staticmethod
    def is_announced(sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a function reads nothing but the geometry of one tensor, as the tracker has
        announced: then `read` has nothing to do."""
        announced: Any = sizes.integers.reading
        if announced is None or sizes.integers.offer is not None or kwargs:
            return False
        return args[0] is announced and all(type(each) is int for each in args[1:])

    def _taken(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Sequence[Mark]]:
        """The arguments and their marks. Those of an offer are the tracker's own: of `x[:n]` Python
        makes one slice for it and another one for torch."""
        integers = self._sizes.integers
        offer = integers.offer
        given = (*args, *kwargs.values())
        nothing = given, [None] * len(given)
        if offer is None or offer.subscript is not None or not _is_called(offer.function, func):
            return nothing
        taken = offer
        if not _is_given(offer, args, kwargs):  # as in `n - x`
            taken = offer._replace(args=offer.args[::-1], marks=offer.marks[::-1])
            if not _is_operator(offer.function) or not _is_given(taken, args, kwargs):
                return nothing
        integers.take(offer)
        return taken.args, taken.marks

    def valued(
        self, args: tuple[Value, ...], kwargs: tuple[tuple[str, Value], ...]
    ) -> tuple[tuple[Value, ...], tuple[tuple[str, Value], ...]]:
        """The arguments of a step, with formulas where integers are marked."""
        valued = self._sizes.valued
        by_name = tuple((name, valued(value, self._named[name])) for name, value in kwargs)
        return tuple(map(valued, args, self._args)), by_name

    def broadcast(self) -> list[int] | None:
        """The sizes to which `torch.broadcast_tensors` expands its arguments; None for any other
        function, or if there is no rule."""
        if self._name != "functional.broadcast_tensors":
            return None
        try:
            shapes = [self._sizes.shape(slot) for slot in self._slots]
            return broadcast(self._formulas, [shape.sizes for shape in shapes])
        except NoRule:
            return None

    def expand_to(self, sizes: list[int]) -> None:
        """The function is ``expand``, with these sizes."""
        self._args[1] = sizes

    def pin(self, tensors: bool = True) -> None:
        """Let all that the function is given be the same in every call."""
        self._sizes.pin(self._slots if tensors else (), self._marked)

    def read(self, result: Any) -> None:
        """The function has read the geometry of tensors. What the tracker has not announced is
        pinned."""
        if self._name.removesuffix(".__get__") in _FREE_READS:
            return
        announced: Any = self._sizes.integers.reading
        for slot in self._slots:
            if announced is self._sizes.slots.tensors[slot]:
                continue
            if self._name == "Tensor.is_contiguous" and self._is_alone():
                self._decide_contiguity(slot, result)
            else:
                self._sizes.pin_slot(slot)

    def _is_alone(self) -> bool:
        """Whether a method has no other arguments than its object."""
        return len(self._args) == 1 and not self._named

    def _decide_contiguity(self, slot: int, is_contiguous: bool) -> None:
        """Let a tensor be contiguous in every call, or in none."""
        require = require_contiguity if is_contiguous else require_no_contiguity
        try:
            require(self._formulas, self._sizes.shape(slot))
        except (NoRule, ArithmeticError):
            self._sizes.pin_slot(slot)

    def returned_itself(self) -> None:
        """The function has returned one of its arguments: it would for other sizes too."""
        by_dtype = self._name in _ITSELF_BY_DTYPE and "memory_format" not in self._named
        if by_dtype and not self._marked:
            return
        if self._name == "Tensor.contiguous" and self._is_alone():
            self._decide_contiguity(self._slots[0], True)
        else:
            self.pin()

    def made(self, slot: int) -> None:
        """The function has made a tensor in new memory."""
        self._shape(slot, ALLOCATIONS.get(self._name))

    def viewed(self, slot: int, base: int, offset: int, is_part: bool) -> None:
        """The function has made a view of the slot `base`, `offset` elements after its start;
        `is_part`: one of several."""
        self._shape(slot, None if is_part else VIEWS.get(self._name), offset, base)

    def called(self, made: Sequence[int], ran: Sequence[Ran]) -> None:
        """The function has computed tensors. Without a rule their geometry is unknown for other
        sizes. Functions that may return an argument or a view, depending on sizes, are pinned."""
        rule = RESULTS.get(self._name) if len(made) == 1 else None
        if rule is not None and self._follows(rule, made[0]):
            return
        if not always_makes_new(self._name, ran):
            self.pin()
        for slot in made:
            self._sizes.hide(slot, (self._slots, self._marked))

    def _shape(
        self,
        slot: int,
        rule: Callable[..., Shape] | None,
        offset: int = 0,
        base: int | None = None,
    ) -> None:
        """Give a slot the geometry that a rule gives it; without, pin what the function got."""
        if rule is None or not self._follows(rule, slot, offset, base):
            self.pin()
            place = self._formulas.constant(offset)
            self._sizes.shaped(slot, self._sizes.constant(slot)._replace(offset=place), base)

    def _follows(
        self, rule: Callable[..., Shape], slot: int, offset: int = 0, base: int | None = None
    ) -> bool:
        """Give a slot the geometry that a rule gives it; returns whether the rule is right."""
        tensor, value = self._sizes.slots.all[slot], self._formulas.value
        try:
            args = [self._shaped(each) for each in self._args]
            by_name = {name: self._shaped(each) for name, each in self._named.items()}
            found = rule(self._formulas, *args, **by_name)
        except (NoRule, ArithmeticError, TypeError, LookupError):
            return False
        sizes, strides, start = found
        if tuple(map(value, sizes)) != tensor.size or tuple(map(value, strides)) != tensor.stride:
            return False
        if value(start) != offset:
            return False
        self._sizes.shaped(slot, found, base)
        return True

    def _shaped(self, value: Any) -> Any:
        """An argument of a rule: a tensor is given as its shape."""
        slot = self._sizes.slots.of(value) if isinstance(value, torch.Tensor) else None
        return value if slot is None else self._sizes.shape(slot)


class LaunchSizes:
    """The sizes of one launch: the marks of its arguments by name, and those of its grid. If the
    tracker offers this very launch, it is taken."""

    def __init__(
        self, sizes: Sizes, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._sizes = sizes
        self._function = function
        self._grid: Any = None  # what a launcher is given as the grid
        marks = self._taken(args, kwargs)
        names = [each.name for each in triton_launch.parameters(function)]
        self._marks: dict[str, int] = {}
        given = [*names, *[""] * len(args)][: len(args)]  # Triton refuses more than it has names
        for name, mark in zip((*given, *kwargs), marks, strict=True):
            if type(mark) is int and name in names:
                self._marks[name] = mark
            elif mark is not None and name not in names:  # an option
                sizes.integers.pin(None, mark)
        for value in (*args, *kwargs.values()):  # what tuples contain
            sizes.integers.pin(value)

    def _taken(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Mark]:
        """The marks of the arguments."""
        integers = self._sizes.integers
        offer = integers.offer
        nothing: list[Mark] = [None] * (len(args) + len(kwargs))
        if offer is None:
            return nothing
        marks: Sequence[Mark] | None = None
        if offer.subscript is None:
            found = self._launched_by(offer, args)
            marks = None if found is None else [*found, *[None] * len(kwargs)]
        elif offer.subscript[0] is not self._function:
            marks = self._passed_on(offer, offer.subscript[0], args, kwargs)
        elif _is_given(offer, args, kwargs):
            marks = offer.marks
        if marks is None:
            return nothing
        integers.take(offer)
        return marks

    def _passed_on(
        self, offer: Offer, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Mark] | None:
        """The marks of a launch that heuristics and autotuners make, which add arguments; None if
        they do something else. What the choice of a config depends on is pinned."""
        if triton_wrappers.wrapped_in(kernel, offer.function) is not self._function:
            return None
        given = {name: kwargs[name] for name in offer.names if name in kwargs}
        marks = launched_with(offer)
        if marks is None or not _is_given(offer, args, given):
            return None
        for name in triton_wrappers.tuned_by(kernel):
            self._sizes.integers.pin(None, marks.get(name))
        return [*offer.marks[: len(args)], *(marks.get(name) for name in kwargs)]

    def _launched_by(self, offer: Offer, args: Sequence[Any]) -> Sequence[Mark] | None:
        """The marks of the arguments that a launcher passes on; None if the offer is not of a call
        of it that launches this kernel, or if it has options that are marked or the launcher's."""
        launcher, count = self._sizes.launcher, len(offer.args) - len(offer.names)
        if launcher is None or offer.function is not launcher or count < 2:
            return None
        kernel, self._grid, *given = offer.args[:count]
        if any(mark is not None for mark in (*offer.marks[:2], *offer.marks[count:])):
            return None
        if any(name.startswith("_") for name in offer.names):
            return None
        is_this = kernel is self._function and _are_same(given, args)
        return offer.marks[2:count] if is_this else None

    def show(self, meta: dict[str, Any]) -> None:
        """A grid function is about to read the arguments."""
        self._sizes.integers.mark_items(meta, {name: self._marks.get(name) for name in dict(meta)})

    def answered(self, read: set[str]) -> None:
        """A grid function has returned. What it read where the tracker did not follow is pinned."""
        if not self._sizes.integers.has_answered:
            for name in read & self._marks.keys():
                self._sizes.formulas.pin(self._marks[name])

    def added(self, step: Any, grid: Any) -> Any:
        """The step of the launch, with formulas in place of marked integers."""
        if not isinstance(step, Launch):
            return step
        args, parameters = [], triton_launch.parameters(self._function)
        for parameter, value in zip(parameters, step.args, strict=True):
            mark = self._marks.get(parameter.name)
            is_integer = isinstance(value, Constant) and type(value.value) is int
            if mark is None or isinstance(value, Scalar):
                args.append(value)
            elif is_integer:
                args.append(self._sizes.valued(value, mark))
            else:
                self._sizes.formulas.pin(mark)
                args.append(value)
        if self._grid is not None and grid is not self._grid:
            self._sizes.integers.pin(self._grid)
        held = self._sizes.integers.items_of(grid)
        marks = [*(held if isinstance(held, list) else ()), None, None, None]
        x, y, z = map(self._size, step.grid, marks[:3])
        told = (step.options, step.compiled, step.line, step.spelling)
        return Launch(step.function, (x, y, z), tuple(args), *told)

    def _size(self, size: Any, mark: Mark) -> Any:
        """A size of the grid: a formula, if it is marked."""
        if type(mark) is not int or self._sizes.formulas.is_constant(mark):
            return size
        return Formula(mark)


_FREE_READS = frozenset(
    f"Tensor.{name}"
    for name in (
        *("dtype", "device", "layout", "ndim", "itemsize", "requires_grad", "is_cuda", "is_cpu"),
        *("is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn"),
        *("is_xpu", "is_mps", "dim", "ndimension", "element_size", "is_floating_point"),
        *("is_complex", "is_signed", "_is_zerotensor", "is_conj", "is_neg", "get_device"),
    )
) | {"is_floating_point", "is_complex", "is_conj", "is_neg", "_set_grad_enabled"}
"""Reads that sizes and strides do not matter to."""

_ITSELF_BY_DTYPE = frozenset(
    f"Tensor.{name}"
    for name in ("to", "float", "double", "half", "bfloat16", "int", "long", "bool", "cpu", "cuda")
)
"""Functions that return their argument if it has the dtype and device already."""


def _is_called(offered: Any, func: Any) -> bool:
    """Whether the call of a function or a method is that of a torch function: it is the same, or a
    method in C of that name, or an operator."""
    if offered is func:
        return True
    if isinstance(offered, FunctionType):
        return False
    if _is_operator(offered):
        return named(func).startswith("Tensor.")
    owner = getattr(offered, "__objclass__", None) or type(getattr(offered, "__self__", None))
    return owner in torch.Tensor.__mro__[:-1] and offered.__name__ == func.__name__


def _is_operator(function: Any) -> bool:
    return getattr(function, "__module__", None) == operator.add.__module__


def _is_given(offer: Offer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an offer is of a call with these arguments."""
    given = (*args, *kwargs.values())
    if tuple(offer.names) != tuple(kwargs):
        return False
    return _are_same(offer.args, given)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same object, or equal integers, or slices of such."""
    if type(one) is type(other) is slice:
        pairs = (one.start, other.start), (one.stop, other.stop), (one.step, other.step)
        return all(_is_same(*pair) for pair in pairs)
    return one is other or (type(one) is type(other) is int and one == other)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
