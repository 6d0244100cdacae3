"""`NativeKernel`: a kernel over a host function whose plans are replayed by `tzero._native`.

    call ── native: a plan for these arguments ──► replayed, without a Python frame
            └ none: `_missed` ── Kernel._answer ──► result, and the plan ── describe ──► native

Enters: a plan that Python has recorded. Leaves: a description of it in numbers and objects, which
native code can replay. It must not know how native code decides.

What native code does not take on, it hands to `Kernel.__call__`, from which this class comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, ModuleType
from typing import Any, NoReturn

import torch

import tzero._native as _native
from tzero import events, intercept, measure, modes, native_launch, pool, settings
from tzero.dispatch import Kernel
from tzero.native_launch import NotNative
from tzero.plan import (
    Allocate,
    Call,
    Constant,
    Fill,
    Guard,
    Launch,
    Nest,
    Plan,
    Refusal,
    Scalar,
    Slot,
    Tensor,
    Value,
    View,
)
from tzero.replay import drift_in, filling, resume, wanted

__all__ = ["NativeKernel", "available", "describe", "make"]

_MOST_SLOTS = 256
_MOST_ARGUMENTS = 64

_HOW = {"is": 0, "equals": 1, "asks": 2, "absent": 3}
_DEVICES = {"cpu": 0, "cuda": 1}  # the numbers of torch's device types
_TENSOR, _SCALAR, _CONSTANT, _TUPLE, _LIST, _DICT, _SEQUENCE = range(7)
_ALLOCATE, _FILL, _VIEW, _CALL, _LAUNCH = range(5)


def make(native: ModuleType) -> type[Kernel[Any]]:
    """The kernel class over a build of the native module."""
    native_launch.configure(native)
    why_not = _in_a_new_thread(functools.partial(_configure, native))
    if why_not:
        reason = f"Python replays: {why_not}"
        events.emit(events.Event("refusal", "tzero", reason))

    class NativeKernel(native.Dispatching, Kernel):  # type: ignore[name-defined, misc, type-arg]
        """A kernel whose plans are replayed natively; `tzero.kernel` makes it."""

        unavailable = why_not

        def __init__(self, function: Callable[..., Any], **options: Any) -> None:
            super().__init__(function, **options)
            self.__dict__.pop("_tick", None)  # the native one counts hits too
            self._told: set[str] = set()
            if why_not or self._planner is None:
                return
            if options.get("key") is not None:
                self._tell_once("its key= function is asked on each call")
                return
            host = self.host
            empty = inspect.Parameter.empty
            parameters = tuple(
                (name, name in host.defaults, host.defaults.get(name, empty), constant)
                for name, constant in zip(host.parameters, host.constants, strict=True)
            )
            most = 8 * settings.current().max_specializations
            self._prepare(parameters, (False,) * len(parameters), most)

        @modes.untraced
        def _missed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            """Make a call in Python; its result, and how native code replays it from now on: the
            bound kernel, a description, or None for a plan that is Python's, and which numbers
            count by value."""
            result, planned = self._answer(args, kwargs)
            if planned is None or settings.current().verify:
                return result, None
            plan = planned.plan
            names = {plan.leaves[leaf] for leaf in plan.by_value}
            by_value = tuple(name in names for name in self.host.parameters)
            try:
                description = describe(native, plan, self._ring)
            except NotNative as reason:
                self._tell_once(str(reason))
                return result, (planned.bound, None, by_value)
            if description is None:  # Triton has dropped what was launched: it is recorded again
                if self._planner is not None:
                    self._planner.forget(planned)
                return result, None
            return result, (planned.bound, description, by_value) if self._lasts(planned) else None

        @property
        def tier(self) -> int:
            """How calls are replayed at best."""
            return super().tier if why_not or self._planner is None else 2

        @modes.untraced
        def _resume(self, plan: Plan, start: int, held: Sequence[Any], given: Any) -> Any:
            return resume(plan, start, held, given, self._drifted)

        def _drifted(self, plan: Plan, said: Any, result: Any = None) -> NoReturn:
            """A call of torch's, by its step or as Python says it, returned something else than it
            did when the plan was recorded. The plan is forgotten."""
            if isinstance(said, int):
                step = plan.steps[said]
                call = step.call if isinstance(step, View) else step
                assert isinstance(call, Call)
                said = drift_in(plan, call, result)
            self._forget(None)
            assert self._planner is not None
            every = [each for one in self._entries.bound_kernels() for each in one.members()]
            for bound in every:
                for found in list(bound.plans.values()):
                    if not isinstance(found, Refusal) and found.plan is plan:
                        self._planner.forget(found)
            self._planner.drifted(plan, said)

        def _ring(self) -> Any:
            """What an allocation of a plan takes its tensors from, if not torch alone."""
            if not self.pool:
                return None
            if not native.rings():
                raise NotNative("this torch does not show who holds a tensor, which pool=True asks")
            return pool.added(native.Ring())

        def _stages(self, args: tuple[Any, ...], here: Any) -> dict[str, float]:
            if not self._look(2, *args):
                return super()._stages(args, here)
            times = [measure.nanoseconds(self._count)]  # a call that does nothing
            for stage in range(3):
                times.append(measure.nanoseconds(functools.partial(self._look, stage, *args)))
            names = ("reading", "lookup", "guards")
            pairs = itertools.pairwise(times)
            return {name: max(b - a, 0.0) for name, (a, b) in zip(names, pairs, strict=True)}

        def _look_back(self) -> None:
            for bound, used in self._used():
                bound.family.last_used = max(bound.family.last_used, used)

        def _tell_once(self, reason: str) -> None:
            if reason not in self._told:
                self._told.add(reason)
                events.emit(events.Event("refusal", self.name, f"Python replays: {reason}"))

    NativeKernel.__name__ = "Kernel"  # as which people know it
    if not why_not:
        native.enable_calls(NativeKernel)
        intercept.add_switch(native.recording)
    return NativeKernel


# -- what native code reads of torch ---------------------------------------------------------------


def _in_a_new_thread(ask: Callable[[], str]) -> str:
    """The answer of a thread in which torch is set to nothing, whatever it is here set to."""
    answers: list[Any] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    found: str = answers[0]
    return found


def _configure(native: ModuleType) -> str:
    """Tell native code where torch keeps what plans look at, each held against what torch says in
    Python. Why plans cannot be native here; empty where they can."""
    missing = native.open_torch()
    if missing:
        return f"this torch does not have {missing}"
    wrong = _wrong_modes(native)
    if wrong:
        return wrong
    tensors = _examples()
    key_set = _key_set_offset(tensors)
    if key_set < 0:
        return "a tensor's dispatch keys are not where they are looked for"
    plain_keys = _plain_keys(tensors)
    facts: dict[str, Any] = {
        "dtype": torch.dtype,
        "measure": vars(measure),
        "settings": vars(settings._held),
        "key_set": key_set,
        "plain_keys": plain_keys,
        "storage": _storage_offset(),
        "gradients": _gradients_offset(),
        **_plain_modes(native),
    }
    native.configure_plans(**facts, ready=False)
    numbers: dict[int, torch.dtype] = {}
    for tensor in tensors:
        words = native.tensor_words(tensor)
        known = words and numbers.setdefault(_dtype_in(words), tensor.dtype)
        if words != _expected(tensor, words, plain_keys) or known not in (
            None,
            tensor.dtype,
        ):
            return "a tensor's geometry is not where it is looked for"
    written = torch.empty(2, device="cpu").zero_().zero_()
    native.bump_version(written)
    if native.tensor_version(written) != written._version or written._version != 3:
        return "a tensor's version is not what torch says"
    native.configure_plans(**facts, ready=True)
    return ""


def _wrong_modes(native: ModuleType) -> str:
    """What native code reads otherwise of this thread than torch says; empty if nothing."""

    def offsets() -> tuple[int, int]:
        included, excluded, *rest = native.torch_modes()
        grad, deterministic, functions, threads = rest
        said = (
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch._C._len_torch_function_stack(),
        )
        if (grad, deterministic, functions) != said:
            wrong.append("its modes")
        if threads not in (-1, torch.get_num_threads()):
            wrong.append("its threads")
        now_included = torch._C._dispatch_tls_local_include_set().raw_repr()
        now_excluded = torch._C._dispatch_tls_local_exclude_set().raw_repr()
        return included ^ now_included, excluded ^ now_excluded

    wrong: list[str] = []
    differences = {offsets()}
    for context in (
        torch.inference_mode(),
        torch.no_grad(),
        torch.overrides.BaseTorchFunctionMode(),
    ):
        with context:
            differences.add(offsets())
    with _flag_on(torch._C.DispatchKey.AutocastCPU):
        differences.add(offsets())
    if len(differences) != 1:
        wrong.append("its dispatch keys")
    return f"torch says otherwise of a thread than is read ({', '.join(wrong)})" if wrong else ""


@contextlib.contextmanager
def _flag_on(key: Any) -> Iterator[None]:
    before = torch._C._dispatch_tls_is_dispatch_key_included(key)
    torch._C._dispatch_tls_set_dispatch_key_included(key, not before)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(key, before)


def _plain_modes(native: ModuleType) -> dict[str, int]:
    """The dispatch keys that may be on and off in a thread whose calls native code replays: those
    that inference mode changes."""
    with torch.inference_mode(False):
        before = native.torch_modes()
    with torch.inference_mode():
        within = native.torch_modes()
    return {"plain_included": before[0] ^ within[0], "plain_excluded": before[1] ^ within[1]}


def _examples() -> list[torch.Tensor]:
    """Tensors of every kind that plans tell apart, and some that they do not take."""
    plain = torch.empty(3, 4, device="cpu", dtype=torch.float32)
    shifted = torch.empty(7, device="cpu", dtype=torch.float16)[1:6:2]
    with torch.inference_mode():
        inference = torch.empty(2, 1, device="cpu", dtype=torch.int8)
    return [
        plain,
        plain.t(),
        shifted,
        inference,
        torch.empty((), device="cpu", dtype=torch.int64),
        torch.empty(2, device="cpu", dtype=torch.complex64).conj(),
        torch._neg_view(torch.empty(2, device="cpu", dtype=torch.float32)),
        torch.empty(5, device="cpu", dtype=torch.float32, requires_grad=True),
        torch.nn.Parameter(torch.empty(2, 3, device="cpu", dtype=torch.bfloat16)),
        torch.empty(2, 2, device="cpu", dtype=torch.float32).to_sparse(),
        torch.empty(2, device="meta"),
    ]


def _keys(tensor: torch.Tensor) -> int:
    found: int = torch._C._dispatch_keys(tensor).raw_repr()
    return found


_MOST_OBJECT_BYTES = 208  # of torch's C++ tensor, in every version known


def _key_set_offset(tensors: list[torch.Tensor]) -> int:
    """Where in the C++ object of a tensor its dispatch keys are: at the one place that holds them
    for all of some tensors. -1 where there is no such place, or several."""
    found = [
        offset
        for offset in range(0, _MOST_OBJECT_BYTES, 8)
        if all(
            ctypes.c_uint64.from_address(tensor._cdata + offset).value == _keys(tensor)
            for tensor in tensors
        )
    ]
    return found[0] if len(found) == 1 else -1


def _words(address: int, size: int) -> list[int]:
    return [ctypes.c_uint64.from_address(address + at).value for at in range(0, size, 8)]


def _storage_offset() -> int:
    """Where in the C++ object of a tensor its storage is; -1 where that is not known, or torch does
    not count references where they are looked for, behind the first pointer of both objects."""
    tensor = torch.empty(3, device="cpu")
    storage = tensor.untyped_storage()._cdata
    words = _words(tensor._cdata, _MOST_OBJECT_BYTES)
    found = [8 * k for k, word in enumerate(words) if word == storage]

    def counts() -> tuple[int, int]:
        return _words(tensor._cdata, 16)[1], _words(storage, 16)[1]

    alone = counts()
    view = tensor[1:]
    viewed = counts()
    del view
    after = counts()
    graph = (tensor.requires_grad_() * tensor).grad_fn
    saved = counts()
    del graph
    tensor.requires_grad_(False)
    right = viewed[1] == alone[1] + 1 and after == alone and saved[0] > alone[0]
    return found[0] if len(found) == 1 and right and counts()[1] == alone[1] else -1


def _gradients_offset() -> int:
    """Where in the C++ object of a tensor it says what there is about gradients: the one word that
    is empty in a new tensor, and is not once it has required some. -1 where there is none."""
    tensor = torch.empty(3, device="cpu")
    before = _words(tensor._cdata, _MOST_OBJECT_BYTES)
    tensor.requires_grad_().requires_grad_(False)
    pairs = enumerate(zip(before, _words(tensor._cdata, _MOST_OBJECT_BYTES), strict=True))
    found = [8 * k for k, (one, other) in pairs if one == 0 and other != 0]
    return found[0] if len(found) == 1 else -1


def _plain_keys(tensors: list[torch.Tensor]) -> int:
    """The dispatch keys of tensors that native code reads: strided ones, on the CPU or a GPU."""
    keys = 0
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            keys |= _keys(tensor)
    for key in (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.AutocastCUDA):
        keys |= torch._C.DispatchKeySet(key).raw_repr()
    return keys


def _expected(
    tensor: torch.Tensor, words: tuple[int, ...] | None, plain_keys: int
) -> tuple[int, ...] | None:
    """The words of a tensor as native/tensors.h has them, from what torch says; but for the number
    of its dtype, which Python does not know, and which is taken from the words that were read."""
    if _keys(tensor) & ~plain_keys:
        return None
    first = (
        (type(tensor) is torch.nn.Parameter)
        | tensor.requires_grad << 1
        | (tensor.data_ptr() & 15) << 4
        | (_dtype_in(words) if words else 0) << 8
        | max(tensor.get_device(), 0) << 16
        | tensor.dim() << 24
    )
    return (first, _keys(tensor), *tensor.size(), *tensor.stride())


def _dtype_in(words: tuple[int, ...]) -> int:
    return words[0] >> 8 & 0xFF


# -- a plan in numbers -----------------------------------------------------------------------------


def describe(
    native: ModuleType, plan: Plan, ring: Callable[[], Any] = lambda: None
) -> tuple[Any, ...] | None:
    """A plan as native/plan_from.cpp takes it; None where the world has changed since it was made,
    and `NotNative` where it is for Python alone. `ring` makes what its tensors come from, if
    anything."""
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
        # How often each was changed in place. In inference mode torch does not count that.
        self.versions: Counter[int] = Counter()
        self.counts = not torch.is_inference_mode_enabled()
        # A function of torch's may give a tensor other memory: a view then keeps what it looks at.
        self.calls = any(isinstance(s, Call) and not self._fills(s) for s in plan.steps)
        self.tensors = wanted(plan, launches=self.calls)

    def description(self) -> tuple[Any, ...] | None:
        """All of the plan."""
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
            *(_dtype_in(words), _DEVICES[slot.device.type], slot.device.index or 0),
            (*slot.size, *slot.stride),
        )
        leaf = -1 if slot.leaf is None else slot.leaf
        return (leaf, -1 if slot.guard is None else slot.guard, geometry)

    def _step(self, step: Any) -> tuple[int, tuple[Any, ...] | None]:
        if isinstance(step, Allocate):
            return _ALLOCATE, self._allocate(step)
        if isinstance(step, Fill):  # of a new tensor, which nobody has
            return _FILL, self._fill(step.slot, step.value, 0)
        if isinstance(step, Call) and not self.calls:  # else one may keep the tensor, and see it
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
        changes = 0  # in place, here: how a tensor comes back to a ring
        if self.counts and not self.calls:
            fills = (filling(each) for each in self.plan.steps)
            changes = sum(each is not None and each[0] == step.slot for each in fills)
        # torch's short way does not fill memory with a value that shows, where that is asked for.
        quick = None
        if not torch.are_deterministic_algorithms_enabled():
            quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{slot.device.type}", None)
        return (
            *(step.slot, _cuda_device(slot), quick, (slot.size, slot.stride, slot.dtype)),
            *(torch.empty_strided, (slot.size, slot.stride)),
            {"dtype": slot.dtype, "device": slot.device},
            None if 0 in slot.size else self.ring(),
            changes,
        )

    def _fills(self, step: Call) -> bool:
        """Whether a call only sets a tensor of this plan to a number."""
        found = filling(step)
        return found is not None and found[0] in self.made

    def _fill(self, at: int, value: bool | int | float, version: int) -> tuple[Any, ...]:
        """`version` is the tensor's afterwards, 0 for what it has in it from the beginning."""
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
        """Tensors are where the binary runs; elsewhere Triton has a say."""
        if not isinstance(value, Tensor):
            raise NotNative(f"{name} is given an address that is no tensor's")
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
    """What native code reads of a kernel is in its fields, or plainly in its dict."""
    if isinstance(function, native.Launchable):
        return
    for name in ("pre_run_hooks", "debug", "device_caches", "used_global_vals"):
        if inspect.getattr_static(type(function), name, None) is not None:
            raise NotNative(f"{function.__name__} computes its attribute {name!r}")
        if name not in vars(function):
            raise NotNative(f"{function.__name__} has no attribute {name!r} of its own")


def _is_aligned(kernel: Any, index: int) -> bool:
    """Whether a binary is made for an address that 16 divides."""
    return any(name == "tt.divisibility" for name, *_ in kernel.src.attrs.get((index,), ()))


def _cuda_device(slot: Slot) -> int:
    return slot.device.index or 0 if slot.device.type == "cuda" else -1


def _guard(guard: Guard) -> tuple[Any, ...]:
    where = guard.where
    if type(where) is not dict and not isinstance(where, CellType):
        raise NotNative(f"{guard.words} is in a {type(where).__name__}")
    return (where, guard.name, guard.value, _HOW[guard.how], guard.check)


def _call(call: Call) -> tuple[Any, ...]:
    if len(call.args) + len(call.kwargs) > _MOST_ARGUMENTS:
        raise NotNative(f"{call.name} is given more than {_MOST_ARGUMENTS} arguments")
    values = (*call.args, *(value for _, value in call.kwargs))
    names = tuple(name for name, _ in call.kwargs)
    return (call.function, call.name, tuple(map(_value, values)), names, _value(call.result))


def _value(value: Value) -> tuple[Any, ...]:
    """A value as native code takes it: kind, number, object, items, names."""
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
    """What makes a named tuple of its items, whatever its class does when it is called."""
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


NativeKernel = make(_native)


def available() -> str:
    """Why plans cannot be replayed natively here; empty where they can.

    >>> available()
    ''
    """
    found: str = NativeKernel.unavailable  # type: ignore[attr-defined]
    return found
