"""Generates a Python function that replays a plan without native code.

    Plan ── write ──► def add(x, y):                 the source, to read
                          t2 = empty_strided(...)
                          launch_1(x, y, t2, 3000)   and the function, to call
                          return t2

Enters: a plan. Leaves: a function of the leaves that runs the plan's steps, its source, and
`resume`, which runs the rest of a plan that native code has begun. It must not know keys, or when a
plan is valid.

The result of a torch function must have the geometry that it had when the plan was recorded,
because later steps rely on it. Operators whose output sizes depend on values are not recorded. If
the fake kernel of an operator is wrong about that, the check here finds it, when it is too late to
run the host function instead.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, MappingProxyType
from typing import Any, NoReturn, cast

import torch

from tzero import locks
from tzero.adapters import triton_launch
from tzero.arguments import tensor_facts
from tzero.launches.python import over
from tzero.plans.drift import Drift
from tzero.plans.outputs import Ring
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Fill,
    Formula,
    Launch,
    Mould,
    Nest,
    Plan,
    Read,
    Scalar,
    Slot,
    Step,
    Tensor,
    Value,
    View,
    geometry,
    grid_of,
    is_sequence_type,
    tensors_in,
)
from tzero.plans.torch_ops import Picked
from tzero.reading.guards import Absent, Check
from tzero.symbolic.formulas import OPERATIONS

__all__ = [
    "Drifted",
    "OtherValue",
    "Wrapper",
    "built",
    "drift_in",
    "filling",
    "fits",
    "made_as",
    "resume",
    "wanted",
    "write",
]

Drifted = Callable[[Plan, Drift], NoReturn]
"""Called, to raise, if a step does not do what it did when the plan was recorded."""

_PLAIN = (bool, int, str, type(None), torch.dtype)


class Wrapper:
    """A plan's steps as a Python function, generated on first use: native code replays most plans
    without it.

    `call` takes the leaves of the arguments; `holds` says whether all guards of the plan hold.
    """

    def __init__(self, plan: Plan, pool: bool, drifted: Drifted) -> None:
        self._made_of = plan, pool, drifted
        # The facts of tensors in globals and closures, by slot, as they are now.
        self._facts = {
            k: _held_facts(plan.guards[slot.guard].value)
            for k, slot in enumerate(plan.slots)
            if slot.guard is not None
        }

    @locks.cached_property
    def holds(self) -> Callable[[], bool]:
        """The function that checks all guards."""
        return _holds(self._made_of[0], self._facts)

    @locks.cached_property
    def _writer(self) -> _Writer:
        return _Writer(*self._made_of)

    @locks.cached_property
    def source(self) -> str:
        """The source of the function."""
        return self._writer.source()

    @locks.cached_property
    def call(self) -> Callable[..., Any]:
        """The function."""
        source, writer = self.source, self._writer
        exec(compile(source, f"<plan of {writer.plan.kernel}>", "exec"), writer.world)
        found: Callable[..., Any] = writer.world[writer.function]
        return found


def _raise(plan: Plan, drift: Drift) -> NoReturn:
    raise RuntimeError(
        f"{plan.kernel}: {drift.words} is {drift.now}, and it was {drift.before} in the plan"
    )


def write(plan: Plan, *, pool: bool = False, drifted: Drifted = _raise) -> Wrapper:
    """Generate the function of a plan; with a pool, its allocations come from rings."""
    return Wrapper(plan, pool, drifted)


def _holds(plan: Plan, facts: Mapping[int, Any]) -> Callable[[], bool]:
    """A function that checks all guards of a plan in one expression, identity first. `facts` are
    those of tensors in globals and closures, by slot."""
    world: dict[str, Any] = {}
    words = ["True"]
    for k, guard in enumerate(plan.guards):
        world[f"ask_{k}"] = guard.holds
        if isinstance(guard, (Check, Absent)):
            words.append(f"ask_{k}()")
            continue
        world[f"value_{k}"] = guard.value
        world[f"where_{k}"] = guard.where
        now = f"where_{k}.get({guard.name!r}, missing)"
        if isinstance(guard.where, CellType) or type(guard.name) not in (str, bytes, int):
            words.append(f"ask_{k}()")
        else:
            words.append(f"({now} is value_{k} or ask_{k}())")
    for k, slot in enumerate(plan.slots):
        if slot.guard is not None:
            tensor = plan.guards[slot.guard].value
            world[f"look_{k}"] = functools.partial(_has_facts, tensor, facts[k])
            words.append(f"look_{k}()")
    world["missing"] = object()
    exec(_code(f"def holds(): return {' and '.join(words)}", f"<world of {plan.kernel}>"), world)
    found: Callable[[], bool] = world["holds"]
    return found


@functools.lru_cache
def _code(source: str, name: str) -> CodeType:
    """Compiled once: the plans of a kernel for several sizes have the same guards."""
    return compile(source, name, "exec")


class _Writer:
    def __init__(self, plan: Plan, pool: bool, drifted: Drifted) -> None:
        self.plan = plan
        self.pool = pool
        self.drifted = drifted
        self.world: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor}
        self.function = plan.kernel if _is_free(plan.kernel) else "call"
        names = enumerate(plan.leaves)
        self.leaves = [
            name if _is_free(name) and name != self.function else f"leaf_{k}" for k, name in names
        ]
        self.tensors = {
            k: self.leaves[slot.leaf]
            if slot.leaf is not None
            else self._held(slot.guard)
            if slot.guard is not None
            else slot.name
            for k, slot in enumerate(plan.slots)
        }

    def source(self) -> str:
        """The source of the function."""
        lines = [f"def {self.function}({', '.join(self.leaves)}):"]
        used = wanted(self.plan, launches=True)
        for k, step in enumerate(self.plan.steps):
            if not isinstance(step, View) or step.slot in used:
                text, note = self._step(k, step)
                place = ", ".join([*note, *([f"line {step.line}"] if step.line else [])])
                lines.append(f"    {text}{'  # ' + place if place else ''}")
        lines.append(f"    return {self._value(self.plan.result)}")
        return "\n".join(lines) + "\n"

    def _step(self, k: int, step: Step) -> tuple[str, list[str]]:
        """A line of the function, and its comment."""
        if isinstance(step, Allocate):
            slot = self.plan.slots[step.slot]
            if self.pool and self.plan.sizing is None:
                self.world[f"output_{k}"] = Ring(functools.partial(made_as, slot)).take
                return f"{self.tensors[step.slot]} = output_{k}()", [geometry(slot)]
            self.world["empty_strided"] = torch.empty_strided
            sizes, strides = self._geometry(step.slot)
            made = f"{sizes}, {strides}, dtype={slot.dtype}"
            device = f'device="{slot.device}"'
            return f"{self.tensors[step.slot]} = empty_strided({made}, {device})", []
        if isinstance(step, Fill):  # through `data`: initial contents do not count as a change
            return f"{self.tensors[step.slot]}.data.fill_({self._constant(step.value)})", []
        if isinstance(step, View):
            called, target = self._called(k, step.call), self.tensors[step.slot]
            shown = geometry(self.plan.slots[step.slot], self.plan, step.slot)
            return f"{target} = {called}", [shown]
        if isinstance(step, Call):
            return self._checked(k, step), []
        if isinstance(step, Read):
            self.world[f"read_{k}"] = functools.partial(_compare, Constant(step.value))
            return f"read_{k}({self._called(k, step.call)})", [f"is {step.value!r}"]
        launch, given = f"launch_{k}", ", ".join(self._launch_arguments(step))
        grid = grid_of(self.plan, step)
        if any(isinstance(size, Formula) for size in step.grid):
            self.world[launch] = over(step.function)
            sizes = ", ".join(
                self._value(size) if isinstance(size, Formula) else str(size) for size in step.grid
            )
            return f"{launch}[{sizes}]({given})", [f"{step.function.__name__}[{grid}]"]
        self.world[launch] = over(step.function)[step.grid]
        return f"{launch}({given})", [f"{step.function.__name__}[{grid}]"]

    def _geometry(self, slot: int) -> tuple[str, str]:
        """The sizes and strides of a slot, as code."""
        sizing = self.plan.sizing
        shape = None if sizing is None else sizing.slots[slot]
        if shape is None:
            each = self.plan.slots[slot]
            return str(list(each.size)), str(list(each.stride))
        sizes, strides = (
            f"[{', '.join(self._value(Formula(each)) for each in part)}]" for part in shape[:2]
        )
        return sizes, strides

    def _launch_arguments(self, step: Launch) -> list[str]:
        names = [parameter.name for parameter in triton_launch.parameters(step.function)]
        given, named = step.spelled(names, self._value)
        return [*given, *(f"{name}={text}" for name, text in named.items())]

    def _called(self, k: int, call: Call) -> str:
        given = [self._value(arg) for arg in call.args]
        given += [f"{name}={self._value(arg)}" for name, arg in call.kwargs]
        function, picked = call.function, ""
        if isinstance(function, Picked):
            function, picked = function.function, f"[{function.index}]"
        name = self._named(k, function, call.name.removesuffix(picked))
        return f"{name}({', '.join(given)}){picked}"

    def _checked(self, k: int, call: Call) -> str:
        """A call whose result is compared with the recorded one."""
        text = self._called(k, call)
        target = self._target(call.result)
        if not target or filling(call) is not None:
            return text
        there = {slot for step in self.plan.steps[:k] for slot in _made(step)}
        for slot, each in enumerate(self.plan.slots):
            if each.leaf is not None or each.guard is not None:
                there.add(slot)
        values = (*call.args, *(value for _, value in call.kwargs), call.result)
        given = dict.fromkeys(s for value in values for s in tensors_in(value) if s in there)
        self.world[f"checked_{k}"] = _Checked(self.plan, call, tuple(given), self.drifted)
        names = [self.tensors[slot] for slot in given]
        return f"{target} = checked_{k}({', '.join([text, *names])})"

    def _target(self, value: Value) -> str:
        """The assignment target of a result: names for slots, `_` for everything else."""
        if isinstance(value, Tensor):  # a tensor of the world is not assigned to: it is the same
            return (
                "_" if self.plan.slots[value.slot].guard is not None else self.tensors[value.slot]
            )
        if isinstance(value, Nest) and any(True for _ in tensors_in(value)):
            return f"({', '.join(self._target(item) or '_' for item in value.items)},)"
        return ""

    def _named(self, k: int, function: Any, called: str) -> str:
        """A torch function by the name that a person would write."""
        for name in (called, f"torch.{called}"):
            first, *rest = name.split(".")
            try:
                found = functools.reduce(getattr, rest, self.world[first])
            except (AttributeError, KeyError):
                continue
            if found is function or found == function:
                return name
        self.world[f"call_{k}"] = function
        return f"call_{k}"

    def _value(self, value: Value) -> str:
        if isinstance(value, Tensor):
            return self.tensors[value.slot]
        if isinstance(value, Scalar):
            return self.leaves[value.leaf]
        if isinstance(value, Constant):
            return self._constant(value.value)
        if isinstance(value, Formula):
            return self._formula(value.number)
        items = [self._value(item) for item in value.items]
        if value.kind is slice:
            return f"slice({', '.join(items)})"
        if value.kind is torch.Size:
            return f"torch.Size([{', '.join(items)}])"
        if value.kind is list:
            return f"[{', '.join(items)}]"
        if value.kind is dict:
            pairs = zip(value.names, items, strict=True)
            return "{" + ", ".join(f"{self._constant(n)}: {item}" for n, item in pairs) + "}"
        if value.kind is tuple:
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if is_sequence_type(value.kind):
            return f"{self._kind(value.kind)}(({''.join(f'{item}, ' for item in items)}))"
        return f"tuple.__new__({self._kind(value.kind)}, ({', '.join(items)},))"

    def _formula(self, number: int) -> str:
        """A formula as code."""
        sizing = self.plan.sizing
        assert sizing is not None
        self.world |= _COMPUTING
        return sizing.text(number, self.leaves)

    def _kind(self, kind: type | Mould) -> str:
        """What makes a nest by its name, unless that is taken."""
        name = kind.__name__
        taken = {self.function, *self.leaves}
        if not _is_free(name) or name in taken or self.world.get(name, kind) is not kind:
            name = f"kind_{len(self.world)}"
        self.world[name] = kind
        return name

    def _constant(self, value: Any) -> str:
        plain = type(value) in _PLAIN or (type(value) is float and math.isfinite(value))
        if type(value) is slice:
            plain = all(type(each) in _PLAIN for each in (value.start, value.stop, value.step))
        if plain:
            return repr(value)
        name = f"constant_{len(self.world)}"
        self.world[name] = value
        return name

    def _held(self, guard: int) -> str:
        name = f"global_{guard}"
        self.world[name] = self.plan.guards[guard].value
        return name


_held_facts = tensor_facts.reader("held")


def _has_facts(tensor: torch.Tensor, facts: tuple[Any, ...]) -> bool:
    return _held_facts(tensor) == facts


_OWN = re.compile(r"(t|leaf_|launch_|call_|checked_|read_|constant_|global_|output_|kind_)\d+|_+")


_COMPUTING: dict[str, Any] = {
    "cdiv": OPERATIONS["cdiv"].compute,
    "next_power_of_2": OPERATIONS["next_power_of_2"].compute,
    "ceil": math.ceil,
    "floor": math.floor,
}
"""What formulas call, besides builtins."""

_TAKEN = frozenset(
    ["torch", "Tensor", "empty_strided", "slice", "tuple", "abs", "min", "max", "int", *_COMPUTING]
)


def _is_free(name: str) -> bool:
    """Whether the generated source does not use a name for anything else."""
    taken = name in _TAKEN or keyword.iskeyword(name)
    return name.isidentifier() and not taken and _OWN.fullmatch(name) is None


def _made(step: Step) -> Sequence[int]:
    """The slots that a step makes."""
    if isinstance(step, (Allocate, View)):
        return (step.slot,)
    return tuple(tensors_in(step.result)) if isinstance(step, Call) else ()


class OtherValue(Exception):
    """A tensor has another value than the plan is for. Nothing that outlives the call was done."""


def _compare(before: Constant, found: Any) -> None:
    if Constant(found) != before:
        raise OtherValue


# -- results of torch functions --------------------------------------------------------------------


class _Checked:
    """Returns the result of a call if it is as the plan says, and raises if not. `slots` are those
    of the tensors that follow the result."""

    __slots__ = ("call", "drifted", "plan", "slots")

    def __init__(self, plan: Plan, call: Call, slots: tuple[int, ...], drifted: Drifted) -> None:
        self.plan = plan
        self.call = call
        self.slots = slots
        self.drifted = drifted

    def __call__(self, result: Any, *given: torch.Tensor) -> Any:
        if not fits(self.plan, self.call.result, result, dict(zip(self.slots, given, strict=True))):
            self.drifted(self.plan, drift_in(self.plan, self.call, result))
        return result


def _is_among(value: Any, others: Iterable[Any]) -> bool:
    """Whether a value is one of these objects; a step may have thousands."""
    return any(map(operator.is_, others, itertools.repeat(value)))


def fits(plan: Plan, value: Value, result: Any, known: dict[int, Any]) -> bool:
    """Whether a result is as recorded. `known` has the existing tensors by slot; new tensors are
    added to it.

    >>> plan = Plan("f", (), frozenset(), (), (), (), Constant(None))
    >>> fits(plan, Constant(1), 1, {}), fits(plan, Constant(1), 2, {})
    (True, False)
    """
    if isinstance(value, Tensor):
        before = known.get(value.slot)
        if before is not None:
            return result is before
        if type(result) is not torch.Tensor or _is_among(result, known.values()):
            return False
        if result.layout is not torch.strided:
            return False
        known[value.slot] = result
        slot = plan.slots[value.slot]
        kind = (result.dtype, result.device, result.dim())
        if kind != (slot.dtype, slot.device, len(slot.size)):
            return False
        geometry = (tuple(result.size()), tuple(result.stride()))
        computed = slot.opaque or plan.sizing is not None
        return computed or geometry == (slot.size, slot.stride)
    if isinstance(value, Nest):
        items = _items(result) if type(result) is value.kind else ()
        if len(items) != len(value.items) or value.kind is dict:
            return False
        pairs = zip(value.items, items, strict=True)
        return all(fits(plan, item, each, known) for item, each in pairs)
    return value == Constant(result)


def _items(result: Any) -> tuple[Any, ...]:
    return tuple(result)


def drift_in(plan: Plan, call: Call, result: Any) -> Drift:
    """How the result of a torch function differs from the recorded one."""
    return Drift(f"the result of {call.name}", _said(plan, call.result), _shown(result))


def _said(plan: Plan, value: Value) -> str:
    if isinstance(value, Tensor):
        slot = plan.slots[value.slot]
        return f"{slot.name}, {geometry(slot)}"
    items = [_said(plan, item) for item in value.items] if isinstance(value, Nest) else []
    return f"({', '.join(items)})" if items else "no tensor"


def _shown(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        kind, size = str(result.dtype).removeprefix("torch."), list(result.size())
        strides = f" strides {list(result.stride())}" if result.layout is torch.strided else ""
        return f"a {type(result).__name__}, {kind}{size}{strides} on {result.device}"
    if isinstance(result, (list, tuple)):
        return f"({', '.join(map(_shown, result))})"
    return f"a {type(result).__name__}"


def filling(step: Step) -> tuple[int, bool | int | float] | None:
    """The slot that a call fills in place, and the number; None for other steps."""
    if not isinstance(step, Call) or step.function is not torch.Tensor.fill_:
        return None
    if len(step.args) != 2 or step.kwargs:
        return None
    tensor, number = step.args
    if not isinstance(tensor, Tensor) or not isinstance(number, Constant):
        return None
    return (tensor.slot, number.value) if type(number.value) in (bool, int, float) else None


def made_as(slot: Slot) -> torch.Tensor:
    """A new tensor with the geometry of a slot."""
    return torch.empty_strided(slot.size, slot.stride, dtype=slot.dtype, device=slot.device)


_NONE: Mapping[int, int] = MappingProxyType({})


def wanted(plan: Plan, *, launches: bool, origins: Mapping[int, int] = _NONE) -> set[int]:
    """The slots that are needed as tensors, not only as addresses; with `launches`, also those that
    are passed to kernels. `origins` has the views that native code makes itself: by slot, the slot
    of the tensor that each is made of.

    >>> wanted(Plan("f", (), frozenset(), (), (), (), Tensor(3)), launches=False)
    {3}
    """
    used = set(tensors_in(plan.result))
    for step in reversed(plan.steps):
        if isinstance(step, Launch) and launches:
            for arg in step.args:
                used.update(tensors_in(arg))
        call = step if isinstance(step, Call) else step.call if isinstance(step, Read) else None
        if isinstance(step, View) and step.slot in used:
            if step.slot in origins:
                used.add(origins[step.slot])
            else:
                call = step.call
        if call is not None:
            for arg in (*call.args, *(value for _, value in call.kwargs)):
                used.update(tensors_in(arg))
    return used


def resume(
    plan: Plan,
    start: int,
    held: Sequence[Any],
    given: Sequence[Any],
    drifted: Drifted = _raise,
) -> Any:
    """Run the steps of a plan from `start` on; none of them reads a value. `held` are the tensors
    of the slots so far, None for views that were not made yet; `given` are the leaves of the
    arguments."""
    slots = list(held)
    views = {step.slot: step for step in plan.steps if isinstance(step, View)}

    def tensor(slot: int) -> Any:
        if slots[slot] is None:
            call = views[slot].call
            slots[slot] = call.function(*map(value, call.args), **_named(call, value))
        return slots[slot]

    def value(of: Value) -> Any:
        return built(of, tensor, given)

    def done(call: Call) -> None:
        result = call.function(*map(value, call.args), **_named(call, value))
        known = {k: each for k, each in enumerate(slots) if each is not None}
        if not fits(plan, call.result, result, known):
            drifted(plan, drift_in(plan, call, result))
        for k, each in known.items():
            slots[k] = each

    for step in plan.steps[start:]:
        if isinstance(step, Allocate):
            slots[step.slot] = made_as(plan.slots[step.slot])
        elif isinstance(step, Fill):
            tensor(step.slot).data.fill_(step.value)
        elif isinstance(step, Call):
            done(step)
        elif isinstance(step, Launch):
            names = [parameter.name for parameter in step.function.params]
            args, kwargs = step.spelled(names, value)
            step.function[step.grid](*args, **kwargs)
    return value(plan.result)


def built(of: Value, tensor: Callable[[int], Any], given: Sequence[Any]) -> Any:
    """What a value stands for: `tensor` has the tensors of the slots, `given` are the leaves of the
    arguments.

    >>> built(Nest(list, (Constant(1), Scalar(0))), lambda slot: None, (2,))
    [1, 2]
    """
    if isinstance(of, Tensor):
        return tensor(of.slot)
    if isinstance(of, Scalar):
        return given[of.leaf]
    if isinstance(of, Constant):
        return of.value
    assert isinstance(of, Nest), "a plan over sizes is made concrete first"
    items = [built(item, tensor, given) for item in of.items]
    if of.kind is dict:
        return dict(zip(of.names, items, strict=True))
    whole = of.kind in (list, tuple) or is_sequence_type(of.kind)
    kind = cast("Any", of.kind)
    return kind(items) if whole else tuple.__new__(kind, items)


def _named(call: Call, value: Callable[[Value], Any]) -> dict[str, Any]:
    return {name: value(each) for name, each in call.kwargs}
