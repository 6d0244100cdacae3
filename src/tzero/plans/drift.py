"""How two recordings of a call differ.

    a plan, a second recording ── drift ──► the first difference, as a `Drift`

Enters: plans. Leaves: a `Drift` with both sides as text, or None. It must not know why a call was
recorded again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tzero.plans.plan import (
    Constant,
    Fill,
    Formula,
    Launch,
    Plan,
    Read,
    Refusal,
    Slot,
    Step,
    geometry,
    replaced,
    said,
    short,
    shown,
)
from tzero.plans.sizing import Sizing
from tzero.reading.guards import Guard
from tzero.symbolic.formulas import Condition, Formulas, Source
from tzero.symbolic.shapes import Shape

__all__ = ["Drift", "drift", "steps_drift"]


class Drift(NamedTuple):
    """How a second recording of a call differs from the first."""

    words: str
    before: str
    now: str


def drift(before: Plan, now: Plan | Refusal) -> Drift | None:
    """The first difference between two recordings of a call; None if there is none. The binary that
    Triton launched is not compared."""
    if _reads_otherwise(before, now):
        return None
    if isinstance(now, Refusal):
        return Drift("it", "replayed", f"not replayed: {now}")
    lost = [guard for guard in before.guards if guard not in now.guards]
    found = [guard for guard in now.guards if guard not in before.guards]
    if found:  # a first call may have read more: what is loaded or compiled once
        words = [", ".join(_read(guard) for guard in each) or "nothing" for each in (lost, found)]
        return Drift("what it reads", *words)
    if before.by_value != now.by_value:
        looked = [str([plan.leaves[k] for k in sorted(plan.by_value)]) for plan in (before, now)]
        return Drift("the set of arguments used by value", *looked)
    if before.sizing is None and now.sizing is None:
        return steps_drift(before, now)
    return _sized_drift(before, now)


def steps_drift(before: Plan, now: Plan) -> Drift | None:
    """The first difference between what two plans do; None if there is none."""
    if len(before.slots) != len(now.slots) or not all(map(_is_same, before.slots, now.slots)):
        return Drift("the tensors", str(before.slots), str(now.slots))
    for k, pair in enumerate(itertools.zip_longest(before.steps, now.steps)):
        if _comparable(pair[0]) != _comparable(pair[1]):
            plans = zip((before, now), pair, strict=True)
            words = [said(plan, step) if step else "nothing" for plan, step in plans]
            return Drift(f"step {k}", *words)
    if before.result != now.result:
        return Drift("its result", shown(before, before.result), shown(now, now.result))
    return None


def _is_same(one: Slot, other: Slot) -> bool:
    """Whether two slots are of the same tensor; of an opaque one the geometry may differ."""
    if one.opaque or other.opaque:
        one, other = (dataclasses.replace(s, size=(), stride=(), opaque=True) for s in (one, other))
    return dataclasses.replace(one, guard=None) == dataclasses.replace(other, guard=None)


def _reads_otherwise(before: Plan, now: Plan | Refusal) -> bool:
    """Whether a call read another value of a tensor than the plan is for, at the same place."""
    steps = now.read if isinstance(now, Refusal) else now.steps
    found = [step for step in steps if isinstance(step, Read)]
    known = [step for step in before.steps if isinstance(step, Read)]
    for one, other in zip(known, found, strict=False):
        if one != other:
            return one.call == other.call
    return False


def _read(guard: Guard) -> str:
    return f"{guard.text} {short(guard.value)}"


def _comparable(step: Step | None) -> Any:
    if isinstance(step, Fill):
        return (step.slot, step.line, Constant(step.value))
    return dataclasses.replace(step, compiled=None) if isinstance(step, Launch) else step


# -- plans over sizes ------------------------------------------------------------------------------


def _sized_drift(before: Plan, now: Plan) -> Drift | None:
    """The first difference between two recordings of a call, of plans over sizes."""
    if before.sizing is None or now.sizing is None or before.sizing.free != now.sizing.free:
        return Drift("the set of sizes it leaves open", _left_open(before), _left_open(now))
    one, other = _renumbered(before, before.sizing, now, now.sizing)
    assert one.sizing is not None and other.sizing is not None
    found = [each for each in other.sizing.conditions if each not in one.sizing.conditions]
    if found:  # a first call may have compared more, as it may have read more
        lost = [each for each in one.sizing.conditions if each not in other.sizing.conditions]
        return Drift("the set of conditions on sizes", _said(one, lost), _said(other, found))
    if one.sizing.chosen != other.sizing.chosen:
        return Drift("the choice of its config", str(one.sizing.chosen), str(other.sizing.chosen))
    fact = steps_drift(one, other)
    if fact is None and one.sizing.slots != other.sizing.slots:
        return Drift("the geometry of its tensors", *map(_geometry, (one, other)))
    return fact


def _left_open(plan: Plan) -> str:
    sizing = plan.sizing
    if sizing is None:
        return "nothing"
    return ", ".join(sizing.text(k, plan.leaves) for k in range(len(sizing.free)))


def _said(plan: Plan, conditions: Sequence[Condition]) -> str:
    """Conditions of a plan as text."""
    assert plan.sizing is not None
    these = dataclasses.replace(plan.sizing, conditions=tuple(conditions), chosen=None)
    return ", ".join(these.conditioned(plan.leaves)) or "nothing"


def _geometry(plan: Plan) -> str:
    """What a plan says of its tensors, with formulas."""
    return ", ".join(f"{s.name}: {geometry(s, plan, k)}" for k, s in enumerate(plan.slots))


def _renumbered(one: Plan, of_one: Sizing, other: Plan, of_other: Sizing) -> tuple[Plan, Plan]:
    """Two plans over sizes in which equal formulas have equal numbers."""
    shared = Formulas()
    both = [
        (plan, sizing, _numbers(sizing, shared))
        for plan, sizing in ((one, of_one), (other, of_other))
    ]
    made = []
    for plan, sizing, new in both:
        by: dict[Any, Any] = {Formula(k): Formula(number) for k, number in enumerate(new)}
        conditions = (Condition(c, new[a], new[b], truth) for c, a, b, truth in sizing.conditions)
        slots = (None if shape is None else _shape(shape, new) for shape in sizing.slots)
        chosen = sizing.chosen and sizing.chosen.renumbered(new.__getitem__)
        changed = Sizing(
            tuple(shared.nodes),
            tuple(conditions),
            sizing.free,
            tuple(slots),
            chosen=chosen and dataclasses.replace(chosen, selector=None),
        )
        made.append(
            dataclasses.replace(
                plan,
                steps=tuple(replaced(step, by) for step in plan.steps),
                result=replaced(plan.result, by),
                sizing=changed,
            )
        )
    return made[0], made[1]


def _numbers(sizing: Sizing, shared: Formulas) -> list[int]:
    """The numbers that the formulas of a plan have among others."""
    new: list[int] = []
    for (operation, args), value in zip(sizing.nodes, sizing.values, strict=True):
        if operation == "input":
            new.append(shared.input(Source(*args), value))
        elif operation == "constant":
            new.append(shared.constant(value))
        else:
            new.append(shared.apply(operation, *(new[each] for each in args)))
    return new


def _shape(shape: Shape, new: Sequence[int]) -> Shape:
    sizes, strides = (tuple(new[each] for each in part) for part in shape[:2])
    return Shape(sizes, strides, new[shape.offset])
