"""Which steps of a plan can be made as CUDA graphs, and what goes into and out of each.

    linear, launch, item(), launch, linear
    └─── part ───┘   cut   └─── part ───┘

Enters: a plan, and the tensors of the call that was recorded. Leaves: the plan with its parts and
its cuts. It must not know how graphs are captured.

A part is a run of steps on one device. What it is given keeps its own memory: arguments, tensors of
the world, and what earlier steps made. What later steps or the caller need of what it makes is an
output, which is in memory of its own, because the memory of a graph is written again by the next
launch. A view of an output is made again when the graph was launched, and a view of an input too.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch

from tzero.adapters import triton_launch
from tzero.adapters.torch_internals import storage_id
from tzero.adapters.triton_reads import only_read
from tzero.plans.plan import (
    Allocate,
    Call,
    Cut,
    Fill,
    Launch,
    Part,
    Plan,
    Read,
    Slot,
    Step,
    Value,
    View,
    tensors_in,
)

__all__ = ["called", "made_by", "parted", "used_by"]

_LEAST = 2
"""A part has at least so many steps that run on the device."""


def parted(
    plan: Plan,
    tensors: Sequence[torch.Tensor],
    kind: str = "cuda",
    odd: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """A plan with its parts. `tensors` are those of the slots when it was recorded; `kind` is the
    type of the device that parts run on; `odd` are names of functions that no part has, and why.

    >>> from tzero.plans.plan import Constant
    >>> parted(Plan("f", (), frozenset(), (), (), (), Constant(None)), []).parts
    ()
    """
    device = _device(plan, kind)
    cuts = {k: why for k, step in enumerate(plan.steps) if (why := _obstacle(plan, step, device))}
    cuts |= {k: odd[name] for k, step in enumerate(plan.steps) if (name := called(step)) in odd}
    storages = [storage_id(tensor) for tensor in tensors]
    while True:
        parts = [_part(plan, first, after, storages) for first, after in _runs(plan, cuts)]
        unfit = next((found for part in parts if (found := _unfit(plan, part, storages))), None)
        if unfit is None:
            break
        cuts[unfit.number] = unfit.reason
    told = tuple(Cut(k, why) for k, why in sorted(cuts.items()))
    return dataclasses.replace(plan, parts=tuple(parts), cuts=told)


def called(step: Step) -> str:
    """What a step calls or launches.

    >>> called(Allocate(3, 1))
    ''
    """
    if isinstance(step, Launch):
        return str(step.function.__name__)
    return step.name if isinstance(step, Call) else ""


def _device(plan: Plan, kind: str) -> torch.device | None:
    """The device that most steps work on."""
    found = [slot.device for slot in plan.slots if slot.device.type == kind]
    return max(set(found), key=found.count) if found else None


def _obstacle(plan: Plan, step: Step, device: torch.device | None) -> str:
    """Why no part has a step; usually empty."""
    if isinstance(step, View):
        return ""
    if isinstance(step, Read):
        return f"{step.call.name} reads the value of a tensor"
    if isinstance(step, Call) and step.cut:
        return step.cut
    slots = (*used_by(step), *made_by(step))
    elsewhere = next((plan.slots[k] for k in slots if plan.slots[k].device != device), None)
    return "" if elsewhere is None else f"{elsewhere.name} is on {elsewhere.device}"


def _runs(plan: Plan, cuts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Where steps without a cut begin and end, if some of them run on the device."""
    ends = [*sorted(cuts), len(plan.steps)]
    first = 0
    for end in ends:
        work = [k for k in range(first, end) if isinstance(plan.steps[k], (Call, Launch, Fill))]
        if len(work) >= _LEAST:
            yield first, end
        first = end + 1


def _part(plan: Plan, first: int, after: int, storages: Sequence[int]) -> Part:
    """The part of some steps."""
    steps = plan.steps[first:after]
    known = {slot for step in plan.steps[:first] for slot in made_by(step)}
    known |= {k for k, slot in enumerate(plan.slots) if not _is_made(slot)}
    made = {slot for step in steps for slot in made_by(step)} - known
    inputs = {slot for step in steps for slot in used_by(step)} - made
    needed = {slot for step in plan.steps[after:] for slot in used_by(step)} & made
    needed |= set(tensors_in(plan.result)) & made
    again: list[int] = []
    for k in range(after - 1, first - 1, -1):  # a view needs what it is made of
        step = plan.steps[k]
        if isinstance(step, View) and step.slot in needed:
            again.append(k)
            needed.remove(step.slot)
            needed |= set(used_by(step)) & made
    allocated = {step.slot for step in steps if isinstance(step, Allocate)}
    copied = needed - allocated
    writes = [slot for step in steps if isinstance(step, Call) for slot in step.writes]
    return Part(
        first,
        after,
        tuple(sorted(inputs)),
        tuple(sorted(needed)),
        tuple(sorted(copied)),
        tuple(again[::-1]),
        tuple(slot for slot in writes if slot in inputs),
        tuple(_only_read(steps, inputs, storages)),
    )


def _only_read(
    steps: Sequence[Step], inputs: Iterable[int], storages: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """The inputs that no step changes, and how many steps read each. A launch may change whatever
    it is given, unless its kernel only reads it; what has the same memory counts as one."""
    calls = [step for step in steps if isinstance(step, Call)]
    written = {storages[slot] for call in calls for slot in (*call.writes, *call.unseen)}
    written |= {storages[slot] for step in steps for slot in _may_write(step)}
    readers: Counter[int] = Counter()
    for step in steps:
        if isinstance(step, (Call, Launch)):
            readers.update({storages[slot] for slot in used_by(step)})
    for slot in sorted(inputs):
        if storages[slot] not in written:
            yield slot, readers[storages[slot]]


def _may_write(step: Step) -> Iterator[int]:
    """The slots that a launch or a fill may change."""
    if isinstance(step, Fill):
        yield step.slot
    elif isinstance(step, Launch):
        read = only_read(step.compiled)
        parameters = triton_launch.parameters(step.function) if read else ()
        names = [parameter.name for parameter in parameters] or [""] * len(step.args)
        for name, value in zip(names, step.args, strict=True):
            if name not in read:
                yield from tensors_in(value)


def _is_made(slot: Slot) -> bool:
    return slot.leaf is None and slot.guard is None


def _unfit(plan: Plan, part: Part, storages: Sequence[int]) -> Cut | None:
    """The step that must not be in a part: what it returns is needed later, and a copy would not
    do."""
    for k in range(part.first, part.after):
        step = plan.steps[k]
        if not isinstance(step, Call):
            continue
        for slot in made_by(step):
            if slot not in part.copied:
                continue
            if _shares(plan, slot, storages):
                return Cut(k, f"the result of {step.name} shares memory with another tensor")
            if not _is_dense(plan.slots[slot]):
                return Cut(k, f"the result of {step.name} has gaps or overlaps in memory")
    return None


def _shares(plan: Plan, slot: int, storages: Sequence[int]) -> bool:
    """Whether a tensor that a function returned has the memory of one that is no view of it."""
    alike = [k for k, storage in enumerate(storages) if storage == storages[slot]]
    if len(alike) == 1:
        return False
    views = {step.slot: step.base for step in plan.steps if isinstance(step, View)}
    for root in alike:
        while root in views:
            root = views[root]
        if root != slot:
            return True
    return False


def _is_dense(slot: Slot) -> bool:
    """Whether the elements of a tensor fill its memory, each at a place of its own."""
    pairs = sorted((stride, size) for size, stride in zip(slot.size, slot.stride, strict=True))
    expected = 1
    for stride, size in pairs:
        if size == 0:
            return True
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def used_by(step: Step) -> Iterator[int]:
    """The slots that a step needs.

    >>> list(used_by(Allocate(3, 1)))
    []
    """
    values: tuple[Value, ...] = ()
    if isinstance(step, Launch):
        values = step.args
    elif isinstance(step, Fill):
        yield step.slot
    elif isinstance(step, (Call, Read, View)):
        if isinstance(step, View):
            yield step.base
        call = step if isinstance(step, Call) else step.call
        values = (*call.args, *(value for _, value in call.kwargs))
    for value in values:
        yield from tensors_in(value)


def made_by(step: Step) -> Sequence[int]:
    """The slots that a step makes, and those of what it returns that was there before.

    >>> made_by(Allocate(3, 1))
    (3,)
    """
    if isinstance(step, (Allocate, View)):
        return (step.slot,)
    return tuple(tensors_in(step.result)) if isinstance(step, Call) else ()
