"""Follows the integers of one call, for tests: which integers are formulas, and what is pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tzero.adapters.python_frames import decoded, trace_instructions, traced
from tzero.reading.instructions import is_second_half, passed_over
from tzero.reading.integers import Integers, Mark
from tzero.symbolic.formulas import Condition, Formulas, Source, computed, holds

__all__ = ["Followed", "follow", "inputs_of"]


class Known:
    """The geometry of the arguments."""

    def __init__(self, formulas: Formulas, args: tuple[Any, ...]) -> None:
        self.formulas = formulas
        self.shapes: dict[int, tuple[list[int], list[int]]] = {}
        with torch._C.DisableTorchFunction():
            for k, tensor in enumerate(args):
                if isinstance(tensor, torch.Tensor):
                    self.shapes[id(tensor)] = (
                        [
                            formulas.input(Source("size", k, d), n)
                            for d, n in enumerate(tensor.shape)
                        ],
                        [
                            formulas.input(Source("stride", k, d), n)
                            for d, n in enumerate(tensor.stride())
                        ],
                    )

    def sizes(self, tensor: torch.Tensor) -> list[int] | None:
        return self.shapes.get(id(tensor), (None, None))[0]

    def strides(self, tensor: torch.Tensor) -> list[int] | None:
        return self.shapes.get(id(tensor), (None, None))[1]


class Reads(TorchFunctionMode):
    """Pins the geometry of tensors that something reads which the tracker does not know."""

    def __init__(self, integers: Integers, known: Known, takes: frozenset[Any]) -> None:
        super().__init__()
        self.integers, self.known, self.takes = integers, known, takes
        self.taken: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else None
        offer = self.integers.offer
        is_read = isinstance(tensor, torch.Tensor) and self.integers.reading is not tensor
        if offer is not None and func in self.takes:
            self.integers.take(offer)
            self.taken.append(offer)
            is_read = False
        result = func(*args, **(kwargs or {}))
        if is_read and id(tensor) in self.known.shapes:
            for each in [*self.known.shapes[id(tensor)][0], *self.known.shapes[id(tensor)][1]]:
                self.known.formulas.pin(each)
        return result


class Followed(NamedTuple):
    """What was found in one call."""

    result: Any
    integers: Integers
    formulas: Formulas
    args: tuple[Any, ...]
    taken: list[Any]

    def marks(self, value: Any, mark: Mark = None) -> Any:
        """A value with the text of a formula in place of each integer that is one."""
        if mark is not None:
            return self.formulas.text(mark) if isinstance(mark, int) else mark
        items = self.integers.items_of(value)
        if isinstance(value, dict):
            return {k: self.marks(v, (items or {}).get(k)) for k, v in value.items()}
        if isinstance(value, (tuple, list)):
            held = items or [None] * len(value)
            return (
                type(value)(map(self.marks, value, held))
                if type(value) is list
                else tuple(map(self.marks, value, held))
            )
        return value

    @property
    def shown(self) -> Any:
        """The result, with the text of formulas."""
        return self.marks(self.result, self.integers.result)

    @property
    def conditions(self) -> list[str]:
        """The conditions as text, with a pin as `formula = value`."""
        return [self._text(each) for each in self.formulas.conditions]

    def _text(self, each: Condition) -> str:
        left, right = self.formulas.text(each.left), self.formulas.text(each.right)
        if each.comparison == "==" and each.truth and self.formulas.is_constant(each.right):
            return f"{left} = {right}"
        text = f"{left} {each.comparison} {right}"
        return text if each.truth else f"not {text}"

    @property
    def pinned(self) -> set[str]:
        """The formulas that are pinned, as text."""
        return {each.partition(" = ")[0] for each in self.conditions if " = " in each}

    def predicted(self, args: tuple[Any, ...]) -> Any:
        """The result for other arguments; None if the conditions do not hold for them."""
        try:
            values = computed(self.formulas.nodes, inputs_of(args))
        except ArithmeticError:
            return None
        if not holds(list(self.formulas.conditions), values):
            return None
        return (self._computed(self.result, self.integers.result, values),)

    def _computed(self, value: Any, mark: Mark, values: list[int]) -> Any:
        if isinstance(mark, int):
            return values[mark]
        assert mark is None, "a quotient is returned"
        items = self.integers.items_of(value)
        if isinstance(value, dict):
            held: Mapping[Any, Mark] = items or {}  # type: ignore[assignment]
            return {k: self._computed(v, held.get(k), values) for k, v in value.items()}
        if isinstance(value, (tuple, list)):
            every = items or [None] * len(value)
            made = [self._computed(v, m, values) for v, m in zip(value, every, strict=True)]
            return made if type(value) is list else tuple(made)
        return value


def inputs_of(args: tuple[Any, ...]) -> Callable[[Source], int]:
    """Where the inputs of formulas are in the arguments."""

    def find(source: Source) -> int:
        value = args[source.leaf]
        if source.what == "number":
            return int(value)
        return int((value.shape if source.what == "size" else value.stride())[source.dim])

    return find


def _codes(code: CodeType) -> set[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {code}.union(*map(_codes, inner))


def follow(
    host: Any,
    *args: Any,
    helpers: tuple[Any, ...] = (),
    takes: tuple[Any, ...] = (),
    each: bool = False,
) -> Followed:
    """Call a function while its integers are followed. `helpers` are followed too; calls of the
    torch functions in `takes` are understood. `each`: look at each instruction, also at those that
    may be passed over."""
    formulas = Formulas()
    known = Known(formulas, args)
    integers = Integers(formulas, known)
    names = host.__code__.co_varnames
    for k, value in enumerate(args):
        if type(value) is int:
            integers.arguments[names[k]] = formulas.input(Source("number", k), value)
        elif type(value) in (list, tuple):
            marks = [formulas.input(Source("number", 100 * k + j), n) for j, n in enumerate(value)]
            integers.mark_items(value, marks)
    codes = set().union(*(_codes(one.__code__) for one in (host, *helpers)))

    prefixed: dict[int, int] = {}
    awaits = True

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal awaits
        if event == "return":
            integers.leave(frame)
            awaits = True
        elif event == "opcode" and not is_second_half(decoded(frame.f_code)[frame.f_lasti]):
            at = decoded(frame.f_code)[frame.f_lasti]
            is_passed = frame.f_lasti in passed_over(frame.f_code) and not awaits and not each
            if prefixed.pop(id(frame), None) != frame.f_lasti and not is_passed:
                awaits = integers.before(frame, at)
                if at.place != frame.f_lasti:  # its EXTENDED_ARG
                    prefixed[id(frame)] = at.place
        return step

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code not in codes:
            return None
        integers.enter(frame, frame.f_code is host.__code__)
        return trace_instructions(frame, step)

    mode = Reads(integers, known, frozenset(takes))
    with mode, traced(enter):
        result = host(*args)
    integers.finish()
    return Followed(result, integers, formulas, args, mode.taken)
