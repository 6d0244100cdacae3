"""Describe what a plan over sizes has besides its steps: formulas, and a binary for each class.

Enters: nothing; the classes are filled by `describe`. Leaves: a `SizesDescription`, which native
code reads by the names of its fields. It must not know how formulas are found.

A formula is a number: that of an input, or the number of inputs plus that of a node. Operations,
comparisons and sources are numbers of `_native.SIZE_OPERATIONS`, `SIZE_COMPARISONS` and
`SIZE_SOURCES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tzero.plans.describe import LaunchDescription

__all__ = [
    "ChoiceDescription",
    "MarksDescription",
    "SizedLaunchDescription",
    "SizesDescription",
    "VariantDescription",
]


class VariantDescription(NamedTuple):
    """A binary of a launch, and what it is for: of each selector the class
    (`_native.size_class`) or the value. `numbers` are the parameters that are formulas, each as
    (formula, type, offset)."""

    selected: tuple[int, ...]
    launch: LaunchDescription
    numbers: tuple[tuple[int, int, int], ...]


class SizedLaunchDescription(NamedTuple):
    """A launch whose grid and arguments are formulas. `selectors` are the formulas that choose the
    binary, each as (formula, by_value)."""

    grid: tuple[int, int, int]
    selectors: tuple[tuple[int, bool], ...]
    variants: tuple[VariantDescription, ...]


class ChoiceDescription(NamedTuple):
    """How a tuned kernel chooses its config: `nearest` is a `_native.Nearest`, `shapes` are the
    formulas of the sizes that it compares, None for an unknown one, and `hints` are the numbers of
    the hints with the plan's config."""

    nearest: Any
    shapes: tuple[tuple[int | None, ...], ...]
    hints: tuple[int, ...]


class MarksDescription(NamedTuple):
    """What an attribute of the tensors among the leaves must be, None for other leaves. A tensor
    without the attribute has an empty set."""

    attribute: str
    of_leaf: tuple[frozenset[int] | None, ...]


class SizesDescription(NamedTuple):
    """The formulas of a plan: `inputs` are (source, leaf, dimension), and `free` says for each
    whether calls of the plan may differ in it; `nodes` are (operation, a, b), with the value of a
    constant as `a`; `conditions` are (comparison, left, right, truth); `slots` are the geometry of
    each slot as (sizes, strides, offset), or None if nothing depends on it; `launches` belong to
    the launch steps, in order. `choice` and `marks` are there if the kernel is tuned."""

    inputs: tuple[tuple[int, int, int], ...]
    free: tuple[bool, ...]
    nodes: tuple[tuple[int, int, int], ...]
    conditions: tuple[tuple[int, int, int, bool], ...]
    slots: tuple[tuple[tuple[int, ...], tuple[int, ...], int] | None, ...]
    launches: tuple[SizedLaunchDescription, ...]
    choice: ChoiceDescription | None = None
    marks: MarksDescription | None = None
