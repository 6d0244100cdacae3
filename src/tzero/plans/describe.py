"""Describe a plan for native code to replay.

Enters: a recorded `Plan`. Leaves: a `PlanDescription`, which `native/plan_from.cpp` reads by the
names of its fields, or `NotNative` with the reason why only Python can replay the plan. It must not
know how native code chooses between plans.

Kinds are numbers of `_native.STEP_KINDS`, `VALUE_KINDS`, `GUARD_KINDS` and `PARAMETER_TYPES`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple, cast

import torch

from tzero.adapters.torch_internals import quick_empty_strided
from tzero.adapters.torch_layout import dtype_in
from tzero.launches import native as native_launch
from tzero.launches.native import BinaryDescription, NotNative
from tzero.plans.describe_copies import Copies, CopyDescription, described_copy
from tzero.plans.describe_parts import PartDescription, described_part
from tzero.plans.describe_sizes import describe_sizes
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Copied,
    Fill,
    Formula,
    Launch,
    Mould,
    Nest,
    Part,
    Plan,
    Read,
    Scalar,
    Slot,
    Tensor,
    Value,
    View,
)
from tzero.plans.sized_description import SizesDescription
from tzero.plans.wrapper import filling, wanted
from tzero.reading import guards

__all__ = ["PlanDescription", "describe", "python_functions"]

_IN_C = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)

# As in `_native.GUARD_KINDS`.
_GUARD_KINDS: dict[type, str] = {
    guards.Same: "same",
    guards.Equal: "equal",
    guards.Check: "check",
    guards.Absent: "absent",
    guards.Code: "code",
    guards.OfClass: "of_class",
    guards.OwnDict: "own_dict",
    guards.Held: "held",
    guards.Bases: "bases",
    guards.Items: "items",
    guards.Item: "item",
    guards.Result: "result",
    guards.Kept: "kept",
    guards.Files: "files",
    guards.Setting: "setting",
}


# -- descriptions ----------------------------------------------------------------------------------


class ValueDescription(NamedTuple):
    """What a step is given, or a call returns. `place` is that of a slot, a leaf or a formula;
    `object` is a constant, or what makes a sequence of its items; `names` are the keys of a
    dict."""

    kind: int
    place: int = 0
    object: Any = None
    items: tuple[ValueDescription, ...] = ()
    names: tuple[Any, ...] = ()


class GuardDescription(NamedTuple):
    """What a name must be in a dict or a cell; `function` is what a check calls."""

    where: dict[str, Any] | CellType
    name: str
    value: Any
    kind: int
    function: Any


class SlotDescription(NamedTuple):
    """A tensor, in torch's numbers, and the leaf or the guard that it comes from, if any."""

    leaf: int | None
    guard: int | None
    dtype: int
    device_type: int
    device_index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class AllocateDescription(NamedTuple):
    """Make a tensor: from the ring, by torch's quick function, which takes the current device, or
    by the plain one. `changes` is how often the plan then changes it in place."""

    slot: int
    cuda_device: int | None
    quick: Any
    quick_args: tuple[Any, ...]
    plain: Any
    plain_args: tuple[Any, ...]
    plain_kwargs: dict[str, Any]
    ring: Any
    changes: int


class FillDescription(NamedTuple):
    """Fill a tensor with one element, `pattern`; torch does it by `function` where native code does
    not. `version` is the tensor's afterwards, 0 if torch does not count the fill."""

    slot: int
    cuda_device: int | None
    pattern: bytes
    bytes: int
    function: Any
    value: Any
    version: int


class ViewDescription(NamedTuple):
    """An address in another tensor's memory, `offset` bytes after its own. If `is_tensor`, the view
    is also made as a tensor, `elements` after the other; if not, launches alone use it."""

    slot: int
    base: int
    offset: int
    is_empty: bool
    itemsize: int
    is_tensor: bool
    elements: int


class CallDescription(NamedTuple):
    """Call a function of torch; `keywords` are the names of the last of `args`."""

    function: Any
    name: str
    args: tuple[ValueDescription, ...]
    keywords: tuple[str, ...]
    result: ValueDescription


class PointerDescription(NamedTuple):
    """A parameter that is the address of a tensor; `aligned` if the binary assumes 16 bytes."""

    slot: int
    offset: int
    aligned: bool


class ScalarDescription(NamedTuple):
    """A parameter that is a number of the call."""

    leaf: int
    type: int
    offset: int


class LaunchDescription(NamedTuple):
    """Launch a binary. `function` is its kernel's number in the plan, `block` its parameters with
    gaps for pointers and scalars, `args` the arguments for an error."""

    function: int
    binary: BinaryDescription
    block: bytes
    pointers: tuple[PointerDescription, ...]
    scalars: tuple[ScalarDescription, ...]
    args: tuple[ValueDescription, ...]
    grid: tuple[int, ...]


Details = (
    AllocateDescription
    | FillDescription
    | CopyDescription
    | ViewDescription
    | CallDescription
    | LaunchDescription
    | PartDescription
)


class StepDescription(NamedTuple):
    """A step; `number` is its place in the plan."""

    kind: int
    number: int
    details: Details


class PlanDescription(NamedTuple):
    """A whole plan, beside the plan itself, which Python resumes where native code cannot go on.
    `sizes` is None for a plan whose calls all have the same sizes. `bare` is as in the plan."""

    plan: Plan
    guards: tuple[GuardDescription, ...]
    slots: tuple[SlotDescription, ...]
    functions: tuple[Any, ...]
    steps: tuple[StepDescription, ...]
    result: ValueDescription
    sizes: SizesDescription | None = None
    bare: tuple[tuple[int, tuple[str, ...]], ...] = ()


# -- describing ------------------------------------------------------------------------------------


def describe(
    native: ModuleType,
    plan: Plan,
    ring: Callable[[], Any] = lambda: None,
    variants: Sequence[Plan] = (),
    captures: Callable[[Plan, Part], Any] | None = None,
) -> PlanDescription | None:
    """Describe a plan. None if Triton has dropped one of its binaries; `NotNative` if only Python
    can replay it. `ring` makes an allocation's pool, or None. `variants` are plans over sizes that
    do the same with others. `captures` makes what launches the graphs of a part."""
    if len(plan.slots) > native.MOST_SLOTS:
        raise NotNative(f"its plan has {len(plan.slots)} tensors, more than {native.MOST_SLOTS}")
    return _Describer(native, plan, ring, variants, captures).description()


def python_functions(description: PlanDescription) -> tuple[str, ...]:
    """The Python functions that the steps of a plan call, by name.

    ::

        python_functions(describe(native, plan))  # ("functional.softmax",)
    """
    called = [each.details for each in description.steps]
    return tuple(
        each.name
        for each in called
        if isinstance(each, CallDescription) and not isinstance(each.function, _IN_C)
    )


class _Describer:
    def __init__(
        self,
        native: ModuleType,
        plan: Plan,
        ring: Callable[[], Any],
        variants: Sequence[Plan],
        captures: Callable[[Plan, Part], Any] | None,
    ) -> None:
        self.captures = captures
        self.native = native
        self.plan = plan
        self.ring = ring
        self.variants = variants
        self.functions: list[Any] = []
        self._launches: dict[int, LaunchDescription | None] = {}  # by the identity of their steps
        self.made = {step.slot for step in plan.steps if isinstance(step, Allocate)}
        # How often each tensor was changed in place. In inference mode torch does not count that.
        self.versions: Counter[int] = Counter()
        self.counts = not torch.is_inference_mode_enabled()
        # A function of torch may give a tensor other memory, so that its views must be tensors too.
        self.copies = Copies(plan)
        self.calls = any(
            isinstance(s, Read) or (isinstance(s, Call) and not self._changes(s))
            for s in plan.steps
        )
        self.views = self._views()
        origins = {slot: base for slot, (base, _) in self.views.items()}
        self.tensors = wanted(plan, launches=self.calls, origins=origins)

    def description(self) -> PlanDescription | None:
        plan = self.plan
        watched = tuple(self._guard(each) for each in plan.guards)
        slots = tuple(map(self._slot, plan.slots))
        steps: list[StepDescription] = []
        parts = {part.first: part for part in plan.parts if self.captures is not None}
        # The number of a part in the description; those of a plan's steps, with the parts before.
        before = [sum(first < k for first in parts) for k in range(len(plan.steps) + 1)]
        for number, step in enumerate(plan.steps):
            if number in parts:
                made = self._part(parts[number], before)
                steps.append(StepDescription(self.native.STEP_KINDS["part"], number, made))
            kind, details = self._step(step)
            if details is None:
                return None
            steps.append(StepDescription(self.native.STEP_KINDS[kind], number, details))
        sizes = describe_sizes(self.native, (plan, *self.variants), self._launch)
        functions = tuple(self.functions)
        result = self._value(plan.result)
        told = slots, functions, tuple(steps), result, sizes
        return PlanDescription(plan, watched, *told, plan.bare)

    def _part(self, part: Part, before: Sequence[int]) -> PartDescription:
        assert self.captures is not None
        outputs = (self._allocate(Allocate(slot, 0)) for slot in part.outputs)
        some = self.plan.slots[(*part.inputs, *part.outputs)[0]]
        of = self.captures(self.plan, part), _cuda_device(some), tuple(outputs)
        return described_part(part, before, *of, self.counts)

    def _guard(self, guard: guards.Guard) -> GuardDescription:
        where = guard.where
        if type(where) is not dict and not isinstance(where, CellType):
            raise NotNative(f"{guard.text} is in a {type(where).__name__}")
        kind = self.native.GUARD_KINDS[_GUARD_KINDS[type(guard)]]
        check = guard.check if isinstance(guard, guards.Check) else None
        return GuardDescription(where, guard.name, guard.value, kind, check)

    def _slot(self, slot: Slot) -> SlotDescription:
        devices = self.native.DEVICE_TYPES
        if slot.device.type not in devices:
            raise NotNative(f"{slot.name} is on {slot.device}")
        return SlotDescription(
            leaf=slot.leaf,
            guard=slot.guard,
            dtype=_number_of(self.native, slot.dtype),
            device_type=devices[slot.device.type],
            device_index=slot.device.index or 0,
            size=tuple(slot.size),
            stride=tuple(slot.stride),
        )

    def _step(self, step: Any) -> tuple[str, Details | None]:
        if isinstance(step, Allocate):
            return "allocate", self._allocate(step)
        if isinstance(step, Fill):  # of a new tensor, which nothing else refers to
            return "fill", self._fill(step.slot, step.value, 0)
        if (copied := self.copies.of(step)) is not None:
            return "copy", self._copy(step, copied)
        if isinstance(step, Call) and not self.calls:  # a torch function might keep the tensor
            at, value = filling(step) or (0, 0)
            self.versions[at] += self.counts
            return "fill", self._fill(at, value, self.versions[at])
        if isinstance(step, View) and step.slot not in self.tensors:
            return "view", self._view(step.slot, step.base, step.offset, is_tensor=False)
        if isinstance(step, View) and step.slot in self.views:
            return "view", self._view(step.slot, *self.views[step.slot], is_tensor=True)
        if isinstance(step, View):
            return "call", self._call(step.call)
        if isinstance(step, Call):
            return "call", self._call(step)
        if isinstance(step, Read):
            read = dataclasses.replace(step.call, result=Constant(step.value))
            return "read", self._call(read)
        return "launch", self._launch(step)

    def _views(self) -> dict[int, tuple[int, int]]:
        """The views that native code makes: by slot, the slot of what they are made of, and the
        offset there. A view of a view is made of the first tensor; the views between are not made
        for it."""
        found: dict[int, tuple[int, int]] = {}
        # Where native code cannot make a view, Python goes on, which does not repeat a read.
        if not self.native.makes_views() or any(isinstance(s, Read) for s in self.plan.steps):
            return found
        # A function of torch may give a tensor other memory than its earlier views have. In a plan
        # over sizes the offset is a formula, from the base.
        is_direct = self.calls or self.plan.sizing is not None
        for step in self.plan.steps:
            if isinstance(step, View) and step.is_strided and self._is_known(step.slot):
                direct = step.base, 0
                base, offset = direct if is_direct else found.get(step.base, direct)
                found[step.slot] = base, offset + step.offset
        return found

    def _is_known(self, slot: int) -> bool:
        """Whether the geometry of a slot is known for all sizes of the plan."""
        return self.plan.sizing is None or self.plan.sizing.slots[slot] is not None

    def _view(self, at: int, base: int, offset: int, is_tensor: bool) -> ViewDescription:
        slot = self.plan.slots[at]
        return ViewDescription(
            slot=at,
            base=base,
            offset=offset * slot.dtype.itemsize,
            is_empty=0 in slot.size,
            itemsize=slot.dtype.itemsize,
            is_tensor=is_tensor,
            elements=offset,
        )

    def _allocate(self, step: Allocate) -> AllocateDescription:
        slot = self.plan.slots[step.slot]
        changes = 0
        if self.counts and not self.calls:
            fills = (filling(each) for each in self.plan.steps)
            changes = sum(each is not None and each[0] == step.slot for each in fills)
            changes += list(self.copies.made()).count(step.slot)
        # The quick function ignores torch.utils.deterministic.fill_uninitialized_memory.
        quick = None
        if not torch.are_deterministic_algorithms_enabled():
            quick = quick_empty_strided(slot.device.type)
        return AllocateDescription(
            slot=step.slot,
            cuda_device=_cuda_device(slot),
            quick=quick,
            quick_args=(slot.size, slot.stride, slot.dtype),
            plain=torch.empty_strided,
            plain_args=(slot.size, slot.stride),
            plain_kwargs={"dtype": slot.dtype, "device": slot.device},
            ring=None if 0 in slot.size else self.ring(),
            changes=changes,
        )

    def _changes(self, step: Call) -> bool:
        """Whether a call only fills a tensor that this plan allocated, or copies to a tensor whose
        changes are counted."""
        found = filling(step)
        return self.copies.is_counted(step) or (found is not None and found[0] in self.made)

    def _copy(self, step: Call, copied: Copied) -> CopyDescription:
        at = copied.target
        is_alone = copied.counts and not self.calls and at in self.made
        self.versions[at] += is_alone
        allocation = self._allocate(Allocate(at, 0)) if copied.is_new else None
        told = allocation, self.versions[at] if is_alone else 0, self._call(step)
        slot = self.plan.slots[at]
        place = _cuda_device(slot)
        return described_copy(slot, copied, place, *told, inference=not self.counts)

    def _fill(self, at: int, value: bool | int | float, version: int) -> FillDescription:
        slot = self.plan.slots[at]
        try:
            one = torch.empty(1, dtype=slot.dtype, device="cpu").fill_(value)
            pattern = bytes(one.view(torch.uint8).tolist())
        except (RuntimeError, TypeError) as error:
            raise NotNative(f"{slot.name} is filled with {value!r} ({error})") from error
        size = len(pattern)
        for each in slot.size:
            size *= each
        return FillDescription(
            slot=at,
            cuda_device=_cuda_device(slot),
            pattern=pattern,
            bytes=size,
            function=torch.Tensor.fill_,
            value=value,
            version=int(version),
        )

    # -- launches ------------------------------------------------------------------------------

    def _launch(self, step: Launch) -> LaunchDescription | None:
        if id(step) not in self._launches:  # a plan over sizes needs that of each step twice
            self._launches[id(step)] = self._described(step)
        return self._launches[id(step)]

    def _described(self, step: Launch) -> LaunchDescription | None:
        name = step.function.__name__
        self._check_count(name, len(step.args), "parameters", self.native.MOST_PARAMETERS)
        native_launch.check_kernel(self.native, step.function)
        binary = native_launch.described(self.native, step.function, step.compiled)
        if binary is None:
            return None
        device = None if binary.cuda is None else binary.cuda.device
        block = bytearray(binary.block_bytes)
        pointers, scalars = [], []
        for move in binary.moves:
            value, offset = step.args[move.argument], move.offset
            if move.type == self.native.PARAMETER_TYPES["pointer"]:
                slot = self._pointed(name, value, device)
                aligned = _is_aligned(step.compiled, move.argument)
                pointers.append(PointerDescription(slot, offset, aligned))
            elif isinstance(value, Scalar):
                scalars.append(ScalarDescription(value.leaf, move.type, offset))
            elif not isinstance(value, Formula):  # `describe_sizes` has these
                packed = self._packed(name, move.type, value)
                block[offset : offset + len(packed)] = packed
        return LaunchDescription(
            function=self._function(step.function),
            binary=binary,
            block=bytes(block),
            pointers=tuple(pointers),
            scalars=tuple(scalars),
            args=tuple(map(self._value, step.args)),
            grid=tuple(size if isinstance(size, int) else 0 for size in step.grid),
        )

    def _check_count(self, name: str, count: int, what: str, most: int) -> None:
        if count > most:
            raise NotNative(f"{name} has {count} {what}, more than {most}")

    def _packed(self, name: str, type_: int, value: Value) -> bytes:
        packed = self.native.packed(type_, value.value) if isinstance(value, Constant) else None
        if packed is None:
            raise NotNative(f"{name} is given a value that does not fit its parameter's type")
        found: bytes = packed
        return found

    def _pointed(self, name: str, value: Value, device: int | None) -> int:
        """The slot of a tensor that is passed by address. It must be on the binary's device, a
        number of CUDA's or None for the CPU: Triton decides about others on each launch."""
        if not isinstance(value, Tensor):
            raise NotNative(f"{name} is given an address that is not a tensor's")
        where = self.plan.slots[value.slot].device
        if (where.type, where.index) != (("cpu", None) if device is None else ("cuda", device)):
            raise NotNative(f"{name} is given a tensor on {where}")
        return value.slot

    def _function(self, function: Any) -> int:
        for k, known in enumerate(self.functions):
            if known is function:
                return k
        self.functions.append(function)
        return len(self.functions) - 1

    # -- calls and values ----------------------------------------------------------------------

    def _call(self, call: Call) -> CallDescription:
        count = len(call.args) + len(call.kwargs)
        self._check_count(call.name, count, "arguments", self.native.MOST_ARGUMENTS)
        values = (*call.args, *(value for _, value in call.kwargs))
        return CallDescription(
            function=call.function,
            name=call.name,
            args=tuple(map(self._value, values)),
            keywords=tuple(name for name, _ in call.kwargs),
            result=self._value(call.result),
        )

    def _value(self, value: Value) -> ValueDescription:
        kinds = self.native.VALUE_KINDS
        if isinstance(value, Tensor):
            return ValueDescription(kinds["tensor"], place=value.slot)
        if isinstance(value, Scalar):
            return ValueDescription(kinds["scalar"], place=value.leaf)
        if isinstance(value, Constant):
            return ValueDescription(kinds["constant"], object=value.value)
        if isinstance(value, Formula):
            return ValueDescription(kinds["formula"], place=value.number)
        return ValueDescription(
            kinds[_nest_kind(value)],
            object=_named(value.kind),
            items=tuple(map(self._value, value.items)),
            names=tuple(value.names),
        )


@functools.cache
def _number_of(native: ModuleType, dtype: torch.dtype) -> int:
    """The number of a dtype in native code."""
    return dtype_in(native.tensor_words(torch.empty(0, dtype=dtype, device="cpu")))


def _is_aligned(kernel: Any, index: int) -> bool:
    """Whether a binary assumes that 16 divides the address."""
    return any(name == "tt.divisibility" for name, *_ in kernel.src.attrs.get((index,), ()))


def _cuda_device(slot: Slot) -> int | None:
    return slot.device.index or 0 if slot.device.type == "cuda" else None


@functools.cache
def _named(kind: type | Mould) -> Any:
    """What makes a named tuple from its items without calling its class, which may do more."""
    is_named = not isinstance(kind, Mould) and hasattr(kind, "_fields")
    return functools.partial(tuple.__new__, cast("Any", kind)) if is_named else kind


def _nest_kind(nest: Nest) -> str:
    kind = nest.kind
    if isinstance(kind, Mould) or kind is torch.Size:
        return "sequence"
    if kind in (tuple, list, dict, slice):
        return kind.__name__
    if issubclass(kind, tuple) and (hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields")):
        return "sequence"
    raise NotNative(f"it makes a {kind.__name__}")
