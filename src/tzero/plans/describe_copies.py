"""Describes the copies of a plan for native code: which calls these are, and who counts changes.

Enters: a plan. Leaves: a `CopyDescription` for each call that native code makes as a copy. It must
not know how calls and allocations are described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tzero.plans.plan import Allocate, Call, Copied, Plan, Slot, Step, View

if TYPE_CHECKING:
    from tzero.plans.describe import AllocateDescription, CallDescription

__all__ = ["Copies", "CopyDescription", "described_copy"]


class CopyDescription(NamedTuple):
    """Copy the memory of one slot's tensor to another, which has `bytes`; torch does it by `call`
    where native code does not. `allocation` makes the target, if it is new. If torch `counts` the
    change, `version` is the target's afterwards, 0 if not the plan alone changes it. Plans for
    inference mode have `inference`."""

    target: int
    source: int
    cuda_device: int | None
    itemsize: int
    bytes: int
    allocation: AllocateDescription | None
    counts: bool
    inference: bool
    version: int
    call: CallDescription


def described_copy(
    slot: Slot,
    copied: Copied,
    cuda_device: int | None,
    allocation: AllocateDescription | None,
    version: int,
    call: CallDescription,
    *,
    inference: bool,
) -> CopyDescription:
    """Describe a copy to a slot."""
    size = slot.dtype.itemsize
    ends = copied.target, copied.source, cuda_device
    return CopyDescription(
        *(*ends, size, math.prod(slot.size) * size, allocation),
        *(copied.counts, inference, version, call),
    )


class Copies:
    """The copies of a plan, by the number of their call.

    >>> from tzero.plans.plan import Constant
    >>> Copies(Plan("f", (), frozenset(), (), (), (), Constant(0))).of(Allocate(0, 1)) is None
    True
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made = {step.slot for step in plan.steps if isinstance(step, Allocate)}
        self._bases: Mapping[int, int] = {
            step.slot: step.base for step in plan.steps if isinstance(step, View)
        }

    def of(self, step: Step) -> Copied | None:
        """What a step copies, if native code does it. The graph of a part holds torch's call."""
        if not isinstance(step, Call) or step.copies is None or self._plan.parts:
            return None
        sizing, copied = self._plan.sizing, step.copies
        if sizing is not None and None in (
            sizing.slots[copied.target],
            sizing.slots[copied.source],
        ):
            return None
        return copied

    def is_counted(self, step: Step) -> bool:
        """Whether a step is a copy, and native code knows how often the plan changes its target. It
        does not for one through a view of a tensor that the plan allocates."""
        copied = self.of(step)
        return copied is not None and (
            copied.target in self._made or self._root(copied.target) not in self._made
        )

    def made(self) -> Iterator[int]:
        """The slots of tensors that the plan allocates and copies to, once for each change that
        torch counts."""
        for step in self._plan.steps:
            copied = self.of(step)
            if copied is not None and copied.counts and copied.target in self._made:
                yield copied.target

    def _root(self, slot: int) -> int:
        while slot in self._bases:
            slot = self._bases[slot]
        return slot
