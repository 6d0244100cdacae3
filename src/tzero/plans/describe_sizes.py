"""Describe the formulas of a plan over sizes, and the binaries of its launches.

Enters: recordings of one plan over sizes, which differ in their binaries. Leaves: a
`SizesDescription`. It must not know how the other parts of a plan are described.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from tzero.adapters import triton_launch
from tzero.adapters.torch_internals import STATIC_MARKS
from tzero.launches.native import NotNative
from tzero.plans.chosen import Chosen
from tzero.plans.plan import Formula, Launch, Plan
from tzero.plans.sized_description import (
    ChoiceDescription,
    MarksDescription,
    SizedLaunchDescription,
    SizesDescription,
    VariantDescription,
)

if TYPE_CHECKING:
    from tzero.plans.describe import LaunchDescription

__all__ = ["describe_sizes"]

DescribeLaunch = Callable[[Launch], "LaunchDescription | None"]


def describe_sizes(
    native: ModuleType, plans: Sequence[Plan], launch: DescribeLaunch
) -> SizesDescription | None:
    """Describe the formulas of the first plan, and the launches of all; None if it has no formulas.
    `launch` describes one launch, or returns None if Triton has dropped its binary."""
    sizing = plans[0].sizing
    if sizing is None:
        return None
    described = _Launches(native, plans, launch)
    launches = tuple(described.all())
    sources, operations = native.SIZE_SOURCES, native.SIZE_OPERATIONS
    nodes = [
        (operations[operation], *(*args, 0)[:2])
        for operation, args in sizing.nodes[len(sizing.free) :]
    ]
    nodes += [(operations["constant"], value, 0) for value in described.constants]
    if len(sizing.free) + len(nodes) > native.MOST_FORMULAS:
        raise NotNative(f"it computes more than {native.MOST_FORMULAS} sizes")
    comparisons = native.SIZE_COMPARISONS
    return SizesDescription(
        inputs=tuple((sources[each.what], each.leaf, each.dim) for each in sizing.free),
        free=(True,) * len(sizing.free),
        nodes=tuple(nodes),
        conditions=tuple(
            (comparisons[each.comparison], each.left, each.right, each.truth)
            for each in sizing.conditions
        ),
        slots=tuple(None if each is None else (*each[:2], each.offset) for each in sizing.slots),
        launches=launches,
        choice=_choice(sizing.chosen),
        marks=None
        if sizing.chosen is None
        else MarksDescription(STATIC_MARKS, sizing.chosen.marks),
    )


def _choice(chosen: Chosen | None) -> ChoiceDescription | None:
    if chosen is None or chosen.selector is None:
        return None
    return ChoiceDescription(chosen.selector.native, chosen.shapes, tuple(sorted(chosen.hints)))


class _Launches:
    """Describes the launches of a plan. `constants` are those of grids, which are added after all
    formulas."""

    def __init__(self, native: ModuleType, plans: Sequence[Plan], launch: DescribeLaunch) -> None:
        assert plans[0].sizing is not None
        self.native = native
        self.plans = plans
        self.launch = launch
        self.constants: dict[int, int] = {}
        self._known = len(plans[0].sizing.nodes)

    def all(self) -> list[SizedLaunchDescription]:
        """The launches, in order."""
        steps = enumerate(self.plans[0].steps)
        return [self._described(k, step) for k, step in steps if isinstance(step, Launch)]

    def _described(self, number: int, step: Launch) -> SizedLaunchDescription:
        x, y, z = map(self._size, step.grid)
        kinds = [parameter.constant for parameter in triton_launch.parameters(step.function)]
        selectors = tuple(
            (value.number, constant)
            for value, constant in zip(step.args, kinds, strict=True)
            if isinstance(value, Formula)
        )
        variants: dict[tuple[int, ...], VariantDescription] = {}
        for plan in self.plans:
            selected, each = self._selected(plan, selectors), plan.steps[number]
            assert isinstance(each, Launch)
            made = None if selected in variants else self._variant(each, selected)
            if made is not None:
                variants[selected] = made
        return SizedLaunchDescription((x, y, z), selectors, tuple(variants.values()))

    def _size(self, size: int | Formula) -> int:
        """The formula of an item of a grid."""
        if isinstance(size, Formula):
            return size.number
        return self._known + self.constants.setdefault(size, len(self.constants))

    def _selected(self, plan: Plan, selectors: tuple[tuple[int, bool], ...]) -> tuple[int, ...]:
        """What the integers of a recorded call select a binary by."""
        assert plan.sizing is not None
        values = plan.sizing.values
        return tuple(
            values[formula] if by_value else self.native.size_class(values[formula])
            for formula, by_value in selectors
        )

    def _variant(self, step: Launch, selected: tuple[int, ...]) -> VariantDescription | None:
        launch = self.launch(step)
        if launch is None:
            return None
        pointer = self.native.PARAMETER_TYPES["pointer"]
        numbers = []
        for move in launch.binary.moves:
            value = step.args[move.argument]
            if isinstance(value, Formula) and move.type != pointer:
                numbers.append((value.number, move.type, move.offset))
        return VariantDescription(selected, launch, tuple(numbers))
