"""`Plan`: the steps of one call of a host function, as data that can be replayed.

    guards   what must hold of globals, closures and attributes for the plan to be valid
    slots    the tensors of the call: arguments, globals, and what the steps make
    steps    allocate, fill, view, call an operator, launch a kernel
    result   what the host function returned, in terms of the slots

Enters: what `record` saw. Leaves: frozen values that print readably. It must not know how a plan is
recorded or replayed.

Arguments are numbered as leaves: the items of lists, tuples and dicts, in order, and all other
arguments.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tzero.plans.sizing import Sizing
from tzero.reading.guards import Guard, Held, same_value
from tzero.shown import first_line, in_cells

__all__ = [
    "Allocate",
    "Call",
    "Constant",
    "Copied",
    "Cut",
    "Fill",
    "Formula",
    "Launch",
    "Mould",
    "Nest",
    "Part",
    "Plan",
    "Read",
    "Refusal",
    "Scalar",
    "Slot",
    "Step",
    "Tensor",
    "View",
]


T = TypeVar("T")


# -- values: arguments and results of steps --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """The tensor in a slot.

    >>> Tensor(0)
    Tensor(slot=0)
    """

    slot: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """The number at a leaf of the arguments; each call passes its own.

    >>> Scalar(2)
    Scalar(leaf=2)
    """

    leaf: int


@dataclass(frozen=True, slots=True)
class Formula:
    """An integer that a plan over sizes computes for each call: the number of a formula in its
    `Sizing`.

    >>> Formula(3)
    Formula(number=3)
    """

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value that is the same in every call of the plan.

    >>> Constant(1) == Constant(True), Constant(1) == Constant(1)
    (False, True)
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and same_value(self.value, other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


@dataclass(frozen=True, slots=True)
class Mould:
    """Makes an object of a class from what it holds: `items` and `attributes` have the name and the
    place of each. No code of the class runs.

    >>> class Point: ...
    >>> Mould(Point, (), (("x", 0), ("y", 0)))((3,)).y
    3
    """

    kind: type
    items: tuple[tuple[Any, int], ...]
    attributes: tuple[tuple[str, int], ...]

    @property
    def __name__(self) -> str:
        return self.kind.__name__

    def __call__(self, held: Sequence[Any]) -> Any:
        """A new object."""
        base: Any = next(each for each in _MADE_OF if issubclass(self.kind, each))
        made = base.__new__(self.kind)
        for name, place in self.items:
            base.__setitem__(made, name, held[place])
        own = object.__getattribute__(made, "__dict__")
        own.update((name, held[place]) for name, place in self.attributes)
        return made


_MADE_OF = (collections.OrderedDict, dict, object)


@dataclass(frozen=True, slots=True)
class Nest:
    """A list, tuple, named tuple or dict of values; `names` are the keys of a dict. Of formulas it
    may be a torch.Size or a slice too. A result may be an object that a `Mould` makes of values.

    >>> Nest(tuple, (Tensor(0), Constant(None))).items[1]
    Constant(value=None)
    """

    kind: type | Mould
    items: tuple[Value, ...]
    names: tuple[Any, ...] = ()


Value = Tensor | Scalar | Formula | Constant | Nest


def is_sequence_type(kind: type | Mould) -> bool:
    """Whether a type is a struct sequence, such as the result of `torch.sort`: a tuple with named
    items, made of one sequence. A `Mould` makes objects so, too.

    >>> is_sequence_type(torch.return_types.sort), is_sequence_type(tuple)
    (True, False)
    """
    return isinstance(kind, Mould) or hasattr(kind, "n_sequence_fields")


def tensors_in(value: Value) -> Iterator[int]:
    """The slots that a value names, in order.

    >>> list(tensors_in(Nest(list, (Tensor(3), Constant(1), Tensor(1)))))
    [3, 1]
    """
    if isinstance(value, Tensor):
        yield value.slot
    elif isinstance(value, Nest):
        for item in value.items:
            yield from tensors_in(item)


def replaced(thing: Any, by: Mapping[Any, Any]) -> Any:
    """A value or a step with some values replaced.

    >>> replaced(Nest(list, (Scalar(1), Tensor(0))), {Scalar(1): Constant(7)}).items[0]
    Constant(value=7)
    """
    if not by:
        return thing
    if isinstance(thing, (Scalar, Tensor, Formula)):
        return by.get(thing, thing)
    if isinstance(thing, Nest):
        items = tuple(replaced(item, by) for item in thing.items)
        known = [item.value for item in items if isinstance(item, Constant)]
        if thing.kind in (slice, torch.Size) and len(known) == len(items):
            return Constant(slice(*known) if thing.kind is slice else torch.Size(known))
        return dataclasses.replace(thing, items=items)
    if isinstance(thing, Launch):
        grid = tuple(_size(replaced(each, by)) for each in thing.grid)
        args = tuple(replaced(each, by) for each in thing.args)
        told = (thing.options, thing.compiled, thing.line, thing.spelling)
        return Launch(thing.function, grid, args, *told)  # `dataclasses.replace` takes longer
    if isinstance(thing, Call):
        named = tuple((name, replaced(each, by)) for name, each in thing.kwargs)
        args = tuple(replaced(each, by) for each in thing.args)
        return dataclasses.replace(thing, args=args, kwargs=named)
    if isinstance(thing, (View, Read)):
        return dataclasses.replace(thing, call=replaced(thing.call, by))
    return thing


def _size(value: Any) -> Any:
    """An item of a grid, which is a formula or a plain integer."""
    return value.value if isinstance(value, Constant) else value


# -- slots ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the call: where it comes from, and its geometry. `leaf` is set for an argument,
    `guard` for a tensor in a global or a closure; a step makes the others. `opaque`: another call
    of a plan over sizes may have another geometry there, which no step depends on.

    >>> Slot("x", torch.float32, torch.device("cpu"), (4,), (1,), leaf=0).name
    'x'
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    leaf: int | None = None
    guard: int | None = None
    opaque: bool = False


# -- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copied:
    """What a call does that only copies the elements of one slot to another one, in the
    order in which they are in memory: `is_new` if it makes the target, `counts` if torch counts a
    change of it."""

    target: int
    source: int
    is_new: bool
    counts: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Call a torch function; `result` names the slots that it makes. `line` is the host
    function's. `cut` says why no CUDA graph can hold it, if so; `writes` are the slots that it
    changes in place, each as often as torch counts a change; `unseen` are those that it changes
    and torch does not count. `copies` is set if it does nothing else."""

    function: Callable[..., Any]
    name: str
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]
    result: Value
    line: int
    cut: str = ""
    writes: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    copies: Copied | None = field(default=None, compare=False)  # other sizes may have other gaps


@dataclass(frozen=True, slots=True)
class Read:
    """Call a torch function that reads the value of a tensor: the plan is for `value` alone.

    Steps before it change nothing that outlives the call, so if the value is another one, the host
    function can still run as written."""

    call: Call
    value: bool | int | float
    line: int


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make an uninitialized tensor."""

    slot: int
    line: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill a newly allocated tensor with a number."""

    slot: int
    value: bool | int | float
    line: int


@dataclass(frozen=True, slots=True)
class View:
    """Create a view of another slot's tensor, starting `offset` elements after it. `call` makes the
    view as a tensor, if more than its address is needed. If `is_strided`,
    `torch.as_strided` would make the same view, of the base or of what that is a view of."""

    slot: int
    base: int
    offset: int
    call: Call
    line: int
    is_strided: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a kernel of Triton or of a backend. `args` are in the order of its parameters.

    `spelling` is how the launch was written, which pre-run hooks see: how many arguments were given
    by position, and the names of the others and of the options, in order. None: all by position.
    `compiled` is what was launched when the plan was recorded; a replay must check that it would
    still be launched.
    """

    function: Any
    grid: tuple[int | Formula, int | Formula, int | Formula]
    args: tuple[Value, ...]
    options: tuple[tuple[str, Constant], ...]
    compiled: Any
    line: int
    spelling: tuple[int, tuple[str, ...]] | None = None

    def spelled(
        self, parameters: Sequence[str], shown: Callable[[Value], T]
    ) -> tuple[list[T], dict[str, T]]:
        """The positional and keyword arguments of the launch, each as `shown`."""
        every = dict(zip(parameters, self.args, strict=True)) | dict(self.options)
        default = len(parameters), tuple(name for name, _ in self.options)
        positional, named = default if self.spelling is None else self.spelling
        given = [shown(every[name]) for name in parameters[:positional]]
        return given, {name: shown(every[name]) for name in named}


Step = Allocate | Fill | View | Call | Read | Launch


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that can be made as one CUDA graph: those from `first` up to `after`.

    `inputs` are the slots of tensors that were there before, `outputs` of those that are needed
    later; of these, `copied` are made by the steps and copied from the graph's memory. `again` are
    the numbers of steps that make views of them, once the graph was launched; `writes` are inputs
    that torch functions change in place, as in `Call`. `read` are inputs that are only read, each
    with the number of steps that do.
    """

    first: int
    after: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    copied: tuple[int, ...]
    again: tuple[int, ...]
    writes: tuple[int, ...]
    read: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A step that no CUDA graph holds, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call of a host function did.

    `leaves` are the names of the arguments' leaves; `by_value` are the numbers of the leaves whose
    values the host function used: the plan is for one value of each. With a `sizing` it is for
    other sizes too; what its slots and views say of their geometry is that of the recorded call.
    `unsized` says why a call that was followed for that has none. `parts` are made as CUDA graphs
    where native code replays the plan; `cuts` are the steps between them. `bare` are the leaves
    that are tensors, each with names that were read and that it must not have itself.
    """

    kernel: str
    leaves: tuple[str, ...]
    by_value: frozenset[int]
    guards: tuple[Guard, ...]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    result: Value
    file: str = ""
    sizing: Sizing | None = None
    unsized: str = ""
    parts: tuple[Part, ...] = ()
    cuts: tuple[Cut, ...] = ()
    bare: tuple[tuple[int, tuple[str, ...]], ...] = ()

    __repr__ = first_line
    _repr_pretty_ = in_cells

    def __str__(self) -> str:
        return "\n".join(page(self))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call cannot be replayed, and the line of the host function that prevents it.

    >>> print(Refusal("it reads the value of a tensor (Tensor.item)", "add.py", 12))
    it reads the value of a tensor (Tensor.item), at add.py:12
    """

    reason: str
    file: str = ""
    line: int = 0
    lasting: bool = True  # whether the next call in the same situation would fail too
    outside: bool = False  # whether the cause lies outside of the host function
    read: tuple[Read, ...] = ()  # the values that it had read
    until: int = 0  # the number of the call that is recorded again; none if 0

    def is_due(self, now: int) -> bool:
        """Whether a call with this number is to be recorded again."""
        return 0 < self.until <= now

    def __str__(self) -> str:
        return f"{self.reason}, at {self.file}:{self.line}" if self.line else self.reason


# -- plans as text --------------------------------------------------------------------------------


def page(plan: Plan) -> Iterator[str]:
    """The lines of a plan as text: what it assumes, then its steps."""
    yield f"{plan.kernel}({', '.join(plan.leaves)})"
    for k, slot in enumerate(plan.slots):
        if slot.leaf is not None or slot.guard is not None:
            yield f"  assumes {slot.name}: {geometry(slot, plan, k)}"
    sizing = plan.sizing
    free = () if sizing is None else [each.leaf for each in sizing.free if each.what == "number"]
    for leaf in sorted(plan.by_value):
        if leaf not in free:
            yield f"  assumes the value of {plan.leaves[leaf]}"
    if sizing is not None:
        for condition in sizing.conditioned(plan.leaves):
            yield f"  assumes {condition}"
    for guard in plan.guards:
        if not isinstance(guard.value, torch.Tensor):
            # Read from the source, where `kernel[grid]` and `tensor[i]` look alike.
            is_operator = guard.text.startswith("torch.Tensor.__")
            what = "torch's own, if the operator meets a tensor"
            value = guard.value[0] if isinstance(guard, Held) else guard.value
            yield f"  assumes {guard.text}: {what if is_operator else short(value)}"
    parts = {part.first: part for part in plan.parts}
    cuts = {cut.number: cut.reason for cut in plan.cuts}
    for k, step in enumerate(plan.steps):
        if k in parts:
            yield f"  one CUDA graph of the next {parts[k].after - k} steps:"
        notes = [f"line {step.line}"] if step.line else []
        notes += [f"not in a graph: {cuts[k]}"] if k in cuts else []
        indent = "    " if any(part.first <= k < part.after for part in plan.parts) else "  "
        yield f"{indent}{said(plan, step)}{'  # ' + ', '.join(notes) if notes else ''}"
    yield f"  return {shown(plan, plan.result)}"
    yield from _sizes(plan)


def _sizes(plan: Plan) -> Iterator[str]:
    """What of its sizes a plan leaves open, and what not and why, in one line."""
    if plan.sizing is not None:
        free = [plan.sizing.text(k, plan.leaves) for k in range(len(plan.sizing.free))]
        words = [f"sizes: any {', '.join(free)}", *plan.sizing.pinned]
        yield f"  {'; '.join(words)}"
    elif plan.unsized:
        yield f"  sizes: only these: {plan.unsized}"


def said(plan: Plan, step: Step) -> str:
    """A step as one line of text."""
    if isinstance(step, Allocate):
        slot = plan.slots[step.slot]
        return f"{slot.name} = empty {geometry(slot, plan, step.slot)}"
    if isinstance(step, Fill):
        return f"fill {plan.slots[step.slot].name} with {step.value!r}"
    if isinstance(step, View):
        slot, base = plan.slots[step.slot], plan.slots[step.base].name
        shape = None if plan.sizing is None else plan.sizing.slots[step.slot]
        offset = str(step.offset) if shape is None else shown(plan, Formula(shape.offset))
        start = f" from {offset}" if offset != "0" else ""
        return f"{slot.name} = {base} as {geometry(slot, plan, step.slot)}{start}"
    if isinstance(step, Read):
        return f"{said(plan, step.call)} is {step.value!r}"
    if isinstance(step, Call):
        given = [shown(plan, arg) for arg in step.args]
        given += [f"{name}={shown(plan, arg)}" for name, arg in step.kwargs]
        made = ", ".join(plan.slots[slot].name for slot in tensors_in(step.result))
        return f"{made + ' = ' if made else ''}{step.name}({', '.join(given)})"
    given = [shown(plan, arg) for arg in step.args]
    given += [f"{name}={value.value!r}" for name, value in step.options]
    return f"launch {step.function.__name__}[{grid_of(plan, step)}]({', '.join(given)})"


def grid_of(plan: Plan, step: Launch) -> str:
    """The grid of a launch as text."""
    return f"({', '.join(shown(plan, _value(size)) for size in step.grid)})"


def _value(size: int | Formula) -> Value:
    return Constant(size) if isinstance(size, int) else size


def shown(plan: Plan, value: Value) -> str:
    """A value as text, with tensors by name."""
    if isinstance(value, Tensor):
        return plan.slots[value.slot].name
    if isinstance(value, Scalar):
        return plan.leaves[value.leaf]
    if isinstance(value, Constant):
        return short(value.value)
    if isinstance(value, Formula):
        return "?" if plan.sizing is None else plan.sizing.text(value.number, plan.leaves)
    items = [shown(plan, item) for item in value.items]
    if value.kind is list:
        return f"[{', '.join(items)}]"
    if value.kind is dict:
        pairs = zip(value.names, items, strict=True)
        return "{" + ", ".join(f"{name!r}: {item}" for name, item in pairs) + "}"
    if value.kind is tuple:
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return f"{value.kind.__name__}({', '.join(items)})"


def geometry(slot: Slot, plan: Plan | None = None, number: int = 0) -> str:
    """A slot's dtype, sizes, strides and device as text; with its plan and its number there, what a
    plan over sizes computes is shown as formulas."""
    kind = str(slot.dtype).removeprefix("torch.")
    sizes, strides = map(str, (list(slot.size), list(slot.stride)))
    sizing = None if plan is None else plan.sizing
    if plan is not None and sizing is not None:
        shape = sizing.slots[number]
        if shape is None:
            return f"{kind} of {len(slot.size)} dimensions on {slot.device}"
        sizes, strides = (
            f"[{', '.join(sizing.text(each, plan.leaves) for each in part)}]" for part in shape[:2]
        )
    return f"{kind}{sizes} strides {strides} on {slot.device}"


def short(value: Any) -> str:
    """A value as a name, or as text of at most 60 characters."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
