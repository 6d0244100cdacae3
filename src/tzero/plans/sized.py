"""Plans over sizes: one recording for many sizes.

    recorded steps, `Sizes` ── sized ──► Plan with a `Sizing`
    Plan with a `Sizing`, arguments ── concrete ──► the plan for these arguments alone

Enters: a recorded plan with formulas in its values, and the formulas; or a plan over sizes and
other arguments. Leaves: plans. It must not know who replays them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tzero.plans.plan import (
    Call,
    Constant,
    Fill,
    Formula,
    Launch,
    Nest,
    Plan,
    Read,
    Step,
    Value,
    View,
    replaced,
)
from tzero.plans.sizes import Sizes
from tzero.plans.sizing import Sizing
from tzero.symbolic.formulas import Formulas, Source
from tzero.symbolic.shapes import Shape

__all__ = ["MOST_FORMULAS", "concrete", "is_variant", "sized"]

MOST_FORMULAS = 512
"""A plan with more formulas is for one size; native code has a limit, too."""


def sized(plan: Plan, sizes: Sizes) -> Plan:
    """A recorded plan with its `Sizing`; without one, and with constants in place of formulas, if
    nothing of its sizes may differ in another call."""
    made = _Folded(plan, sizes)
    if sizes.lost or sizes.integers.lost:
        return _exact(plan, sizes.formulas.value, sizes.lost or sizes.integers.lost)
    made.fold()
    pinned = tuple(made.pinned())
    if not made.free:
        return _exact(plan, sizes.formulas.value, "; ".join(pinned))
    if len(made.formulas.nodes) > MOST_FORMULAS:
        many = f"it has {len(made.formulas.nodes)} formulas, more than {MOST_FORMULAS}"
        return _exact(plan, sizes.formulas.value, many)
    return made.plan(pinned)


def _exact(plan: Plan, value: Callable[[int], int], why: str) -> Plan:
    return dataclasses.replace(_with_values(plan, value), unsized=why)


def _with_values(plan: Plan, value: Callable[[int], int]) -> Plan:
    by: dict[Any, Value] = {each: Constant(value(each.number)) for each in formulas_in(plan)}
    return dataclasses.replace(
        plan,
        steps=tuple(replaced(step, by) for step in plan.steps),
        result=replaced(plan.result, by),
        sizing=None,
    )


class _Folded:
    """Gives formulas new numbers: inputs first, those that are pinned are constants, and only those
    that are used."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self._plan = plan
        self._used = formulas_in(plan)
        self._sizes = sizes
        self._old = sizes.formulas
        self._new: dict[int, int] = {}
        self.formulas = Formulas()
        self.free: tuple[Source, ...] = ()

    def fold(self) -> None:
        fixed = self._fixed()
        every = sorted(self._sizes.inputs.items(), key=lambda each: (each[0].leaf, each[0]))
        self.free = tuple(source for source, number in every if number not in fixed)
        for source, number in every:
            if number not in fixed:
                self._new[number] = self.formulas.input(source, self._old.value(number))
        self._shapes = [self._shape(k) for k in range(len(self._plan.slots))]
        for each in self._used:
            self.number(each.number)
        for comparison, left, right, _ in list(self._old.conditions):
            self.formulas.compare(comparison, self.number(left), self.number(right))
        chosen = self._sizes.chosen
        self._chosen = None if chosen is None else chosen.renumbered(self.number)

    def _fixed(self) -> set[int]:
        """The inputs that conditions leave one value: they are equal to a constant, or to a formula
        of inputs that have one value."""
        fixed: set[int] = set()
        before = -1
        while before < len(fixed):
            before = len(fixed)
            known = self._known(fixed)
            for comparison, left, right, truth in self._old.conditions:
                if comparison == "==" and truth:
                    fixed |= {left} if known[right] else set()
                    fixed |= {right} if known[left] else set()
        return fixed

    def _known(self, fixed: set[int]) -> list[bool]:
        """Of each formula, whether it has the same value in every call."""
        known: list[bool] = []
        for k, (operation, args) in enumerate(self._old.nodes):
            is_leaf = operation in ("input", "constant")
            is_known = operation == "constant" if is_leaf else all(known[each] for each in args)
            known.append(is_known or k in fixed)
        return known

    def number(self, old: int) -> int:
        """The new number of a formula."""
        found = self._new.get(old)
        if found is None:
            node = self._old.nodes[old]
            if node.operation in ("input", "constant"):  # an input that is pinned, or forwarded
                found = self.formulas.constant(self._old.value(old))
            else:
                found = self.formulas.apply(node.operation, *map(self.number, node.args))
            self._new[old] = found
        return found

    def _shape(self, slot: int) -> Shape | None:
        found = self._sizes.known(slot)
        if found is None:
            return None
        sizes, strides, offset = found
        number = self.number
        return Shape(tuple(map(number, sizes)), tuple(map(number, strides)), number(offset))

    def pinned(self) -> Iterator[str]:
        """What is the same in every call, though it was not among the calls so far."""
        if not self._old.pinned:
            return
        sizing = Sizing(tuple(self._old.nodes), (), (), ())
        for formula, line in self._old.pinned.items():
            place = f" in line {line}" if line else ""
            words = sizing.text(formula, self._plan.leaves)
            yield f"{words} == {self._old.value(formula)} is pinned{place}"

    def plan(self, pinned: tuple[str, ...]) -> Plan:
        by: dict[Any, Value] = {}
        for each in self._used:
            new = self.number(each.number)
            constant = self.formulas.is_constant(new)
            by[each] = Constant(self.formulas.value(new)) if constant else Formula(new)
        count = len(self.formulas.nodes)
        sizing = Sizing(
            tuple(self.formulas.nodes),
            tuple(self.formulas.conditions),
            self.free,
            tuple(self._shapes),
            tuple(map(self.formulas.value, range(count))),
            pinned,
            self._chosen,
        )
        plan = self._plan
        slots = [
            dataclasses.replace(slot, opaque=True) if shape is None else slot
            for slot, shape in zip(plan.slots, self._shapes, strict=True)
        ]
        return Plan(  # `dataclasses.replace` takes longer
            plan.kernel,
            plan.leaves,
            plan.by_value,
            plan.guards,
            tuple(slots),
            tuple(replaced(step, by) for step in plan.steps),
            replaced(plan.result, by),
            plan.file,
            sizing,
        )


def formulas_in(plan: Plan) -> dict[Formula, None]:
    """The formulas in the steps and the result of a plan, in order, each once."""
    found: dict[Formula, None] = {}
    for step in plan.steps:
        call = step.call if isinstance(step, (View, Read)) else step
        if isinstance(call, Launch):
            _collect((*call.grid, *call.args), found)
        elif isinstance(call, Call):
            _collect((*call.args, *(value for _, value in call.kwargs)), found)
    _collect((plan.result,), found)
    return found


def _collect(values: Sequence[Any], found: dict[Formula, None]) -> None:
    for value in values:
        if isinstance(value, Formula):
            found[value] = None
        elif isinstance(value, Nest):
            _collect(value.items, found)


# -- plans for other sizes -------------------------------------------------------------------------


def concrete(plan: Plan, leaves: Sequence[Any]) -> Plan | None:
    """A plan over sizes for the arguments of one call, given as leaves, with integers in place of
    formulas; None if it is not for these arguments. `compiled` of its launches stays as it is."""
    sizing = plan.sizing
    if sizing is None:
        return plan
    values = sizing.at(leaves)
    if values is None:
        return None
    slots = []
    for slot, shape in zip(plan.slots, sizing.slots, strict=True):
        if shape is None:
            slots.append(slot)
        else:
            sizes, strides = (tuple(values[each] for each in part) for part in shape[:2])
            slots.append(dataclasses.replace(slot, size=sizes, stride=strides))
    made = _with_values(plan, values.__getitem__)
    steps = [_placed(step, sizing, values) for step in made.steps]
    return dataclasses.replace(made, slots=tuple(slots), steps=tuple(steps))


def _placed(step: Step, sizing: Sizing, values: Sequence[int]) -> Step:
    """A step with the offset of a view computed."""
    if not isinstance(step, View):
        return step
    shape = sizing.slots[step.slot]
    return step if shape is None else dataclasses.replace(step, offset=values[shape.offset])


def is_variant(plan: Plan, other: Plan) -> bool:
    """Whether two plans over sizes do the same, with binaries that may differ."""
    return plan.sizing is not None and _comparable(plan) == _comparable(other)


def _comparable(plan: Plan) -> Any:
    steps: list[Any] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            steps.append(dataclasses.replace(step, compiled=None))
        elif isinstance(step, View):
            steps.append(dataclasses.replace(step, offset=0))
        elif isinstance(step, Fill):
            steps += [step, Constant(step.value)]
        else:
            steps.append(step)
    slots = [dataclasses.replace(each, size=(), stride=()) for each in plan.slots]
    return plan.guards, plan.bare, plan.by_value, slots, steps, plan.result, plan.sizing
