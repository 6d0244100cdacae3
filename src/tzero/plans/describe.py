"""Describes a plan to native code, as tuples of numbers and objects.

Enters: a recorded `Plan`. Leaves: its description for `native/plan_from.cpp`, or `NotNative` with
the reason why only Python can replay it. It must not know how native code uses it.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CellType, ModuleType
from typing import Any

import torch

from tzero.adapters.torch_internals import quick_empty_strided
from tzero.adapters.torch_layout import dtype_in
from tzero.launches import native as native_launch
from tzero.launches.native import NotNative
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Fill,
    Launch,
    Nest,
    Plan,
    Scalar,
    Slot,
    Tensor,
    Value,
    View,
)
from tzero.plans.wrapper import filling, wanted
from tzero.reading.guards import Absent, Check, Equal, Guard, Same

__all__ = ["describe"]

_MOST_SLOTS = 256
_MOST_ARGUMENTS = 64

_GUARDS = {Same: 0, Equal: 1, Check: 2, Absent: 3}  # as in native/plan.h
_DEVICES = {"cpu": 0, "cuda": 1}  # the numbers of torch's device types
_TENSOR, _SCALAR, _CONSTANT, _TUPLE, _LIST, _DICT, _SEQUENCE = range(7)
_ALLOCATE, _FILL, _VIEW, _CALL, _LAUNCH = range(5)


def describe(
    native: ModuleType, plan: Plan, ring: Callable[[], Any] = lambda: None
) -> tuple[Any, ...] | None:
    """The description of a plan for native/plan_from.cpp; None if Triton has dropped a kernel of it
    since. Raises `NotNative` if only Python can replay it. `ring` makes the output pool of an
    allocation, or None."""
    if len(plan.slots) > _MOST_SLOTS:
        raise NotNative(f"its plan has more than {_MOST_SLOTS} tensors")
    return _Describer(native, plan, ring).description()


class _Describer:
    def __init__(self, native: ModuleType, plan: Plan, ring: Callable[[], Any]) -> None:
        self.native = native
        self.plan = plan
        self.ring = ring
        self.functions: list[Any] = []
        self.made = {step.slot for step in plan.steps if isinstance(step, Allocate)}
        # How often each slot was changed in place. In inference mode torch does not count changes.
        self.versions: Counter[int] = Counter()
        self.counts = not torch.is_inference_mode_enabled()
        # A torch function may give a tensor other memory; a view of it keeps the old memory.
        self.calls = any(isinstance(s, Call) and not self._fills(s) for s in plan.steps)
        self.tensors = wanted(plan, launches=self.calls)

    def description(self) -> tuple[Any, ...] | None:
        """The whole plan."""
        plan = self.plan
        guards = tuple(map(_guard, plan.guards))
        slots = tuple(map(self._slot, plan.slots))
        steps = []
        for number, step in enumerate(plan.steps):
            kind, said = self._step(step)
            if said is None:
                return None
            steps.append((kind, number, said))
        return (plan, guards, slots, tuple(self.functions), tuple(steps), _value(plan.result))

    def _slot(self, slot: Slot) -> tuple[Any, ...]:
        if slot.device.type not in _DEVICES:
            raise NotNative(f"{slot.name} is on {slot.device}")
        words = self.native.tensor_words(torch.empty(0, dtype=slot.dtype, device="cpu"))
        geometry = (
            *(dtype_in(words), _DEVICES[slot.device.type], slot.device.index or 0),
            (*slot.size, *slot.stride),
        )
        leaf = -1 if slot.leaf is None else slot.leaf
        return (leaf, -1 if slot.guard is None else slot.guard, geometry)

    def _step(self, step: Any) -> tuple[int, tuple[Any, ...] | None]:
        if isinstance(step, Allocate):
            return _ALLOCATE, self._allocate(step)
        if isinstance(step, Fill):  # of a new tensor, which nothing else refers to
            return _FILL, self._fill(step.slot, step.value, 0)
        if isinstance(step, Call) and not self.calls:  # a torch function might keep the tensor
            at, value = filling(step) or (0, 0)
            self.versions[at] += self.counts
            return _FILL, self._fill(at, value, self.versions[at])
        if isinstance(step, View) and step.slot not in self.tensors:
            slot = self.plan.slots[step.slot]
            is_empty = 0 in slot.size
            return _VIEW, (step.slot, step.base, step.offset * slot.dtype.itemsize, is_empty)
        if isinstance(step, View):
            return _CALL, _call(step.call)
        if isinstance(step, Call):
            return _CALL, _call(step)
        return _LAUNCH, self._launch(step)

    def _allocate(self, step: Allocate) -> tuple[Any, ...]:
        slot = self.plan.slots[step.slot]
        changes = 0  # in place by this plan: the version at which a ring may reuse the tensor
        if self.counts and not self.calls:
            fills = (filling(each) for each in self.plan.steps)
            changes = sum(each is not None and each[0] == step.slot for each in fills)
        # torch's quick allocator does not fill memory, which deterministic mode asks for.
        quick = None
        if not torch.are_deterministic_algorithms_enabled():
            quick = quick_empty_strided(slot.device.type)
        return (
            *(step.slot, _cuda_device(slot), quick, (slot.size, slot.stride, slot.dtype)),
            *(torch.empty_strided, (slot.size, slot.stride)),
            {"dtype": slot.dtype, "device": slot.device},
            None if 0 in slot.size else self.ring(),
            changes,
        )

    def _fills(self, step: Call) -> bool:
        """Whether a call only fills a tensor that this plan allocated."""
        found = filling(step)
        return found is not None and found[0] in self.made

    def _fill(self, at: int, value: bool | int | float, version: int) -> tuple[Any, ...]:
        """`version` is the tensor's version after the fill, 0 for its initial contents."""
        slot = self.plan.slots[at]
        try:
            one = torch.empty(1, dtype=slot.dtype, device="cpu").fill_(value)
            pattern = bytes(one.view(torch.uint8).tolist())
        except (RuntimeError, TypeError) as error:
            raise NotNative(f"{slot.name} is filled with {value!r} ({error})") from error
        size = len(pattern)
        for each in slot.size:
            size *= each
        fill = torch.Tensor.fill_
        return (at, _cuda_device(slot), pattern, size, fill, value, version)

    # -- launches ------------------------------------------------------------------------------

    def _launch(self, step: Launch) -> tuple[Any, ...] | None:
        name = step.function.__name__
        if len(step.args) > _MOST_ARGUMENTS:
            raise NotNative(f"{name} has more than {_MOST_ARGUMENTS} parameters")
        _check_kernel(self.native, step.function)
        spec = native_launch.described(self.native, step.function, step.compiled)
        if spec is None:
            return None
        device, moves, size, on_cpu = spec[4], spec[5], spec[6], spec[8]
        block = bytearray(size)
        pointers, numbers = [], []
        for index, type_, offset in moves:
            value = step.args[index]
            if type_ == 0:
                self._check_place(name, value, None if on_cpu else device)
                assert isinstance(value, Tensor)
                pointers.append((value.slot, offset, _is_aligned(step.compiled, index)))
            elif isinstance(value, Scalar):
                numbers.append((value.leaf, type_, offset))
            else:
                block[offset : offset + 8] = self._packed(name, type_, value)
        return (
            *(self._function(step.function), spec, bytes(block), tuple(pointers), tuple(numbers)),
            *(tuple(map(_value, step.args)), tuple(step.grid)),
        )

    def _packed(self, name: str, type_: int, value: Value) -> bytes:
        packed = self.native.packed(type_, value.value) if isinstance(value, Constant) else None
        if packed is None:
            raise NotNative(f"{name} is given a value that its parameter does not take as it is")
        found: bytes = packed
        return found

    def _check_place(self, name: str, value: Value, device: int | None) -> None:
        """Refuse tensors that are not on the binary's device: Triton handles those."""
        if not isinstance(value, Tensor):
            raise NotNative(f"{name} is given an address that is not a tensor's")
        where = self.plan.slots[value.slot].device
        if (where.type, where.index) != (("cpu", None) if device is None else ("cuda", device)):
            raise NotNative(f"{name} is given a tensor on {where}")

    def _function(self, function: Any) -> int:
        for k, known in enumerate(self.functions):
            if known is function:
                return k
        self.functions.append(function)
        return len(self.functions) - 1


def _check_kernel(native: ModuleType, function: Any) -> None:
    """Refuse kernels whose attributes native code cannot read from fields or from `__dict__`."""
    if isinstance(function, native.Launchable):
        return
    for name in ("pre_run_hooks", "debug", "device_caches", "used_global_vals"):
        if inspect.getattr_static(type(function), name, None) is not None:
            raise NotNative(f"{function.__name__} computes its attribute {name!r}")
        if name not in vars(function):
            raise NotNative(f"{function.__name__} has no attribute {name!r} of its own")


def _is_aligned(kernel: Any, index: int) -> bool:
    """Whether a binary requires that 16 divides the address of an argument."""
    return any(name == "tt.divisibility" for name, *_ in kernel.src.attrs.get((index,), ()))


def _cuda_device(slot: Slot) -> int:
    return slot.device.index or 0 if slot.device.type == "cuda" else -1


def _guard(guard: Guard) -> tuple[Any, ...]:
    where = guard.where
    if type(where) is not dict and not isinstance(where, CellType):
        raise NotNative(f"{guard.text} is in a {type(where).__name__}")
    check = guard.check if isinstance(guard, Check) else None
    return (where, guard.name, guard.value, _GUARDS[type(guard)], check)


def _call(call: Call) -> tuple[Any, ...]:
    if len(call.args) + len(call.kwargs) > _MOST_ARGUMENTS:
        raise NotNative(f"{call.name} is given more than {_MOST_ARGUMENTS} arguments")
    values = (*call.args, *(value for _, value in call.kwargs))
    names = tuple(name for name, _ in call.kwargs)
    return (call.function, call.name, tuple(map(_value, values)), names, _value(call.result))


def _value(value: Value) -> tuple[Any, ...]:
    """A value for native code: kind, number, object, items, names."""
    if isinstance(value, Tensor):
        return (_TENSOR, value.slot, None, (), ())
    if isinstance(value, Scalar):
        return (_SCALAR, value.leaf, None, (), ())
    if isinstance(value, Constant):
        return (_CONSTANT, 0, value.value, (), ())
    kind, made = _kind(value), value.kind
    return (kind, 0, _named(made), tuple(map(_value, value.items)), tuple(value.names))


@functools.cache
def _named(kind: type) -> Any:
    """Makes a named tuple of its items without calling its `__new__`."""
    return functools.partial(tuple.__new__, kind) if hasattr(kind, "_fields") else kind


def _kind(nest: Nest) -> int:
    kind = nest.kind
    if kind in (tuple, list, dict):
        return _TUPLE if kind is tuple else _LIST if kind is list else _DICT
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _SEQUENCE
    if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"):
        return _SEQUENCE
    raise NotNative(f"it makes a {kind.__name__}")
