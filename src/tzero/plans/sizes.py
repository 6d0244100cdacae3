"""The sizes of one recorded call as formulas: the geometry of its tensors, and its integers.

    arguments ──► inputs ── rules of `tzero.symbolic` ──► the geometry of each slot
                         └─ `Integers` follows them ──► arguments of torch functions and launches

Enters: which sizes, strides and integers of the arguments may differ in another call, then what the
recorder sees: tensors, torch functions, launches. Leaves: values of steps with formulas in them,
and a `Sizing`. It must not know how steps are made.

Whatever has no rule is pinned: a condition says that it is the same in every call of the plan. The
result of a torch function without a rule is opaque: only when something depends on its geometry,
what the function was given is pinned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tzero.arguments.situation import TENSORS
from tzero.plans.chosen import Chosen
from tzero.plans.plan import Constant, Formula, Nest, Scalar, Value
from tzero.plans.slots import Slots
from tzero.reading.integers import Integers, Mark
from tzero.symbolic.formulas import Formulas, Source, What
from tzero.symbolic.shapes import Shape

__all__ = ["Sizes", "sources"]


class _Noting(Formulas):
    """Formulas that remember what was pinned, and in which line."""

    def __init__(self, line: Callable[[], int]) -> None:
        super().__init__()
        self.pinned: dict[int, int] = {}
        self._line = line

    def pin(self, formula: int) -> int:
        """Let a formula have this value in every call; returns the value."""
        if not self.is_constant(formula):
            self.pinned.setdefault(formula, self._line())
        return super().pin(formula)


class Sizes:
    """The formulas of one recorded call. `free` are the sizes, strides and numbers that may differ
    in another call."""

    def __init__(
        self,
        slots: Slots,
        leaves: Sequence[tuple[str, Any]],
        free: frozenset[Source],
        line: Callable[[], int],
    ) -> None:
        self.formulas = _Noting(line)
        self.inputs: dict[Source, int] = {}
        self.integers = Integers(self.formulas, self)
        self.lost = ""
        """Why the plan cannot be over sizes; usually empty."""
        self.launcher: Any = None
        """A function that launches kernels, as ``launcher(kernel, grid, *args, **options)``."""
        self.chosen: Chosen | None = None
        """What calls must have in common because the kernel is tuned; see `chosen`."""
        self.slots = slots
        self._shapes: dict[int, Shape] = {}
        self._bases: dict[int, int] = {}  # of views
        self._behind: dict[int, tuple[list[int], list[int]]] = {}  # of an opaque slot: slots, marks
        for k, (_, value) in enumerate(leaves):
            for source, number in sources(k, value):
                if source in free:
                    self.inputs[source] = self.formulas.input(source, number)

    def arguments(self, args: Sequence[Any], parameters: Sequence[str]) -> None:
        """Mark the integers among the arguments of the host function."""
        numbers = itertools.count()  # of the leaves
        for name, value in zip(parameters, args, strict=True):
            mark = self._marked(value, numbers)
            if mark is not None:
                self.integers.arguments[name] = mark

    def _marked(self, value: Any, numbers: Iterator[int]) -> Mark:
        """The mark of an argument; those in a list, tuple or dict are noted."""
        if type(value) in (list, tuple) or (
            type(value) is dict and all(type(key) is str for key in value)
        ):
            inner = value.values() if type(value) is dict else value
            marks = [self._marked(item, numbers) for item in inner]
            named = dict(zip(value, marks, strict=True)) if type(value) is dict else marks
            self.integers.mark_items(value, named)
            return None
        return self.inputs.get(Source("number", next(numbers)))

    # -- the geometry of tensors ----------------------------------------------------------------

    def sizes(self, tensor: torch.Tensor) -> Sequence[int] | None:
        """The formulas of a tensor's sizes; None if they are the same in every call."""
        return self._varying(tensor, "sizes")

    def strides(self, tensor: torch.Tensor) -> Sequence[int] | None:
        """The formulas of its strides."""
        return self._varying(tensor, "strides")

    def _varying(self, tensor: torch.Tensor, what: str) -> Sequence[int] | None:
        slot = self.slots.of(tensor)
        found: Sequence[int] = () if slot is None else getattr(self.shape(slot), what)
        return None if all(map(self.formulas.is_constant, found)) else found

    def shape(self, slot: int) -> Shape:
        """The geometry of a slot. What an opaque one was made of is pinned."""
        found = self._shapes.get(slot)
        if found is None:
            behind = self._behind.pop(slot, None)
            if behind is not None:
                self.pin(*behind)
            leaf = self.slots.all[slot].leaf
            found = self.constant(slot) if leaf is None else self._of_leaf(slot, leaf)
            self._shapes[slot] = found
        return found

    def known(self, slot: int) -> Shape | None:
        """The geometry of a slot; None for an opaque one."""
        return None if slot in self._behind else self.shape(slot)

    def constant(self, slot: int) -> Shape:
        number, tensor = self.formulas.constant, self.slots.all[slot]
        return Shape(tuple(map(number, tensor.size)), tuple(map(number, tensor.stride)), number(0))

    def _of_leaf(self, slot: int, leaf: int) -> Shape:
        tensor = self.slots.all[slot]
        return Shape(
            self._inputs_of("size", leaf, tensor.size),
            self._inputs_of("stride", leaf, tensor.stride),
            self.formulas.constant(0),
        )

    def _inputs_of(self, what: What, leaf: int, values: Sequence[int]) -> tuple[int, ...]:
        """The formulas of the sizes or the strides of a leaf: inputs, or constants."""
        found = []
        for k, value in enumerate(values):
            number = self.inputs.get(Source(what, leaf, k))
            found.append(self.formulas.constant(value) if number is None else number)
        return tuple(found)

    def pin_slot(self, slot: int) -> None:
        """Let the geometry of a tensor be the same in every call."""
        shape = self.shape(slot)
        for each in (*shape.sizes, *shape.strides, shape.offset):
            self.formulas.pin(each)

    def pin(self, slots: Sequence[int], marks: Sequence[int]) -> None:
        """Let tensors and integers be the same in every call."""
        for each in slots:
            self.pin_slot(each)
        for each in marks:
            self.formulas.pin(each)

    # -- values ---------------------------------------------------------------------------------

    def lifted(self, value: Any, mark: Mark, marked: set[int]) -> Any:
        """A value with formulas in place of integers."""
        kind = type(value)
        if kind is int:
            if type(mark) is int:
                marked.add(mark)
                return mark
            return self.formulas.constant(value)
        if kind in (tuple, list, torch.Size, slice):
            every = (value.start, value.stop, value.step) if kind is slice else value
            held = self.integers.items_of(value)
            marks = [*(held if isinstance(held, list) else ()), *[None] * len(every)]
            items = [self.lifted(*each, marked) for each in zip(every, marks, strict=False)]
            return slice(*items) if kind is slice else items if kind is list else tuple(items)
        return value

    def valued(self, value: Value, lifted: Any) -> Value:
        """A value of a step with formulas where integers are marked."""
        if isinstance(value, Constant) and type(value.value) is int and type(lifted) is int:
            return value if self.formulas.is_constant(lifted) else Formula(lifted)
        if isinstance(value, Nest) and isinstance(lifted, (tuple, list)):
            pairs = zip(value.items, lifted, strict=True)
            items = tuple(self.valued(*each) for each in pairs)
            return Nest(value.kind, items, value.names)
        if isinstance(value, Constant) and type(value.value) in (torch.Size, slice):
            whole = value.value
            every = (whole.start, whole.stop, whole.step) if type(whole) is slice else whole
            parts = (lifted.start, lifted.stop, lifted.step) if type(whole) is slice else lifted
            pairs = zip(map(Constant, every), parts, strict=True)
            items = tuple(self.valued(*each) for each in pairs)
            if any(isinstance(item, Formula) for item in items):
                return Nest(type(whole), items)
        return value

    def numbers(self, by_value: frozenset[int]) -> dict[Value, Value]:
        """The formulas of numbers that are used by value, in place of those of each call. Others
        are no inputs: they are only forwarded."""
        found: dict[Value, Value] = {}
        for source, formula in list(self.inputs.items()):
            if source.what == "number" and source.leaf in by_value:
                found[Scalar(source.leaf)] = Formula(formula)
            elif source.what == "number":
                del self.inputs[source]
        return found

    def shaped(self, slot: int, shape: Shape, base: int | None = None) -> None:
        """Give a new slot its geometry; `base` is the slot that it is a view of."""
        self._shapes[slot] = shape
        if base is not None:
            self._bases[slot] = base

    def hide(self, slot: int, behind: tuple[list[int], list[int]]) -> None:
        """Let a new slot be opaque; its geometry depends on that of slots, and on marks."""
        self._behind[slot] = behind

    def pin_place(self, tensor: torch.Tensor) -> None:
        """Let a tensor start at the same place in its base in every call."""
        slot = self.slots.of(tensor)
        while slot is not None:
            self.formulas.pin(self.shape(slot).offset)
            slot = self._bases.get(slot)

    def close(self) -> None:
        """Let go of the tracker, which asks this object for geometry."""
        del self.integers

    def lose(self, why: str) -> None:
        """Let the plan be for these sizes alone."""
        self.lost = self.lost or why

    def result(self, value: Value, result: Any) -> Value:
        """The result of the host function with formulas where integers are marked."""
        return self.valued(value, self._lifted_result(result, self.integers.result))

    def _lifted_result(self, result: Any, mark: Mark) -> Any:
        if type(result) is int:
            return mark if type(mark) is int else self.formulas.constant(result)
        if type(result) is slice:
            return self.lifted(result, mark, set())
        if isinstance(result, (tuple, list, dict)):
            every = list(result.values()) if isinstance(result, dict) else list(result)
            held = self.integers.items_of(result)
            marks = list(held.values()) if isinstance(held, dict) else held
            pairs = zip(every, marks or [None] * len(every), strict=True)
            return [self._lifted_result(*each) for each in pairs]
        return result


def sources(leaf: int, value: Any) -> Iterator[tuple[Source, int]]:
    """The sizes and strides of a leaf, or the integer that it is.

    >>> [source.what for source, _ in sources(0, torch.empty(2, 3))]
    ['size', 'size', 'stride', 'stride']
    """
    if type(value) is int:
        yield Source("number", leaf), value
    elif type(value) in TENSORS:
        for k, size in enumerate(value.size()):
            yield Source("size", leaf, k), size
        for k, stride in enumerate(value.stride()):
            yield Source("stride", leaf, k), stride
