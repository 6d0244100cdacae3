"""What one call of a host function does, step by step: a Plan, or a Refusal that says why not.

    host function ──► torch functions ── what did they do to tensors? ──► Allocate, Fill, View, Call
                  └─► launches ── of which kernel, with which arguments? ──► Launch

Enters: the torch functions, operators and launches of one call, as `capture` sees them. Leaves: the
plan, or the refusal. It must not know how plans are kept or replayed.

Two torch modes are on while the host function runs. The function mode sees every torch function
that Python code calls, getters of attributes included: each is a step, a read of something that the
key has, or a reason to refuse. The dispatch mode sees the operators that run in such a function,
which tell what it is: a view, an allocation, a read of values. An operator that runs outside of any
torch function is a reason to refuse too.

A plan may contain only what gives the same result in every call that its guards admit. So it
contains no sizes that depend on values, and no objects whose state may change. A value of a tensor
may be read while nothing was done that outlives the call: the plan is for that value alone.

Other code may interrupt a host function in the same thread: signal handlers, finalizers, weak
reference callbacks. It is recognized by stack frames that belong neither to the host function, nor
to its helpers, nor to a library. Such a recording is discarded, and the next call is recorded
instead. (Callbacks in C have no frames, and are attributed to the host function.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tzero import settings
from tzero.adapters import torch_graphs, triton_launch
from tzero.adapters.python_frames import untraced
from tzero.adapters.torch_internals import (
    DisableTorchFunction,
    OpOverload,
    is_higher_order,
    is_wrapped_launch,
)
from tzero.adapters.torch_modes import is_innermost
from tzero.arguments.objects import is_object
from tzero.arguments.situation import NUMBERS, TENSORS, leaves, situation, unsupported
from tzero.plans import torch_ops, values
from tzero.plans.call_sizes import LaunchSizes
from tzero.plans.frames import Stack, is_timed
from tzero.plans.grids import Meta
from tzero.plans.parts import parted
from tzero.plans.plan import (
    Constant,
    Launch,
    Plan,
    Read,
    Refusal,
    Scalar,
    Step,
    Value,
    View,
    replaced,
)
from tzero.plans.results import Result
from tzero.plans.sized import sized
from tzero.plans.sizes import Sizes
from tzero.plans.slots import Slots
from tzero.plans.torch_steps import TorchSteps
from tzero.plans.values import NotAStep, NotYet, constant_of, shared
from tzero.reading.bytecode import span_of, uses_low_bits
from tzero.reading.dependencies import Dependencies
from tzero.reading.forwarded import Passing
from tzero.reading.guards import Equal, Guard, Setting
from tzero.reading.path import Path, interrupted_by
from tzero.reading.special import Callee
from tzero.reading.world import World
from tzero.symbolic.formulas import Source

__all__ = [
    "HELD",
    "NO_LAUNCH",
    "SHARED",
    "Graphed",
    "Recorder",
    "Subject",
    "failure",
    "unfollowed",
]


class Graphed(NamedTuple):
    """Which work becomes CUDA graphs: that of a type of device, except for some functions, by name,
    each with the reason."""

    kind: str
    odd: Mapping[str, str]


class Subject(NamedTuple):
    """A host function to record, and what was read from its source. `code` is that of its frames;
    `host` is the function itself, if the call is to be followed instruction by instruction, because
    its source may read what no guard could watch."""

    kernel: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    code: Any
    passing: Passing
    dependencies: Dependencies
    host: Any = None
    free: frozenset[Source] = frozenset()
    """The sizes, strides and integers of a followed call that may differ in another call."""
    launcher: Any = None
    """A function that launches kernels, as ``launcher(kernel, grid, *args, **options)``, and does
    nothing else with their arguments."""
    require: Callable[[Sizes], None] | None = None
    """Adds conditions on sizes: those under which another call is one of this function."""
    by_value: frozenset[int] = frozenset()
    """The leaves that are numbers of which plans must have the value, whatever is done with
    them."""
    graphed: Graphed | None = None
    """Set if the work of the call becomes CUDA graphs: then it need not launch a kernel."""


def failure(error: Exception) -> Refusal:
    """The refusal for an error of the recorder; while plans are verified it is raised instead.

    >>> print(failure(KeyError("x")))
    recording it failed (KeyError: 'x')
    """
    if settings.current().verify:
        raise error
    words = (str(error).splitlines() or [""])[0][:200]
    return Refusal(f"recording it failed ({type(error).__name__}: {words})")


class Recorder:
    """What was recorded of one call so far. After a refusal nothing more is recorded."""

    def __init__(self, subject: Subject, args: tuple[Any, ...]) -> None:
        self.subject = subject
        self.args = args
        self.refusal: Refusal | None = None
        self.leaves = list(leaves(args, subject.parameters))
        self.slots = Slots(self._is_kept)
        self._objects: dict[int, int] = {}  # leaves that count by identity, by id
        self.steps: list[Step] = []
        self._guards: list[Guard] = []
        self._passed: set[tuple[str, Any]] = set()  # parameter, and the launch that forwarded it
        self._ran: list[torch_ops.Ran] | None = None
        self._paused = False
        self.mode: TorchFunctionMode | None = None
        """The mode that shows it torch functions."""
        self._is_hidden = False  # whether that mode is off
        # Of a followed call, the path knows which code is the host function's.
        read = (subject.function, *subject.dependencies.helpers) if subject.host is None else ()
        self._stack = Stack(subject.code, read)
        self.sizes: Sizes | None = None
        if subject.host is not None and subject.free:
            self.sizes = Sizes(self.slots, self.leaves, subject.free, self._stack.line)
            self.sizes.arguments(args, subject.parameters)
            self.sizes.launcher = subject.launcher
        self.torch = TorchSteps(self.slots, self.steps, self._stack.line, self._guards, self.sizes)
        self.path = self._path(subject.host) if subject.host is not None else None
        # A block of the recorder's own code, which needs not be followed.
        self._own = contextlib.nullcontext() if self.path is None else untraced()
        for k, (name, value) in enumerate(self.leaves):
            odd = "" if self._holds(k, name, value) else unsupported(name, value)
            if odd:
                self.refuse(odd, show=False)
            elif type(value) in TENSORS and not self.slots.has(value):
                self.slots.add(value, name, leaf=k)
                self._guards += subject.dependencies.of_parameters(value)
                named = subject.dependencies.attributes | subject.dependencies.loaded
                put = sorted(named.intersection(vars(value)))
                if put:
                    reason = f"it reads {name}.{put[0]}, which someone put on that tensor"
                    self.refuse(reason, lasting=False, show=False)
        if self.path is not None:
            self._guards += subject.dependencies.guards
        if self.sizes is not None and subject.require is not None:
            subject.require(self.sizes)
        held = subject.dependencies.tensors.values()
        if any(self.slots.has(tensor) for tensor in held):
            self.refuse(HELD, show=False, outside=True)
        if shared(args, subject.dependencies.guards):
            self.refuse(SHARED, lasting=False, show=False, outside=True)
        for k, tensor in subject.dependencies.tensors.items():
            if type(tensor) in TENSORS and not self.slots.has(tensor):
                self.slots.add(tensor, subject.dependencies.guards[k].text, guard=k)
                self._guards += subject.dependencies.of_parameters(tensor)

    def _path(self, host: FunctionType | MethodType) -> Path:
        if sys.gettrace() is not None:
            self.refuse("a debugger or coverage tool traces it", lasting=False, show=False)

        def stop(
            reason: str, file: str, line: int, lasting: bool = True, outside: bool = False
        ) -> None:
            if self.refusal is None:
                self.refusal = Refusal(reason, file, line, lasting, outside)

        world = World(self._held)
        if isinstance(host, MethodType):
            world.enter(host.__self__, "the object that it is a method of")
        callee = Callee.of(host, [value for _, value in self.leaves])
        integers = None if self.sizes is None else self.sizes.integers
        path = Path(callee, self.args, world, stop, integers)
        path.hiding(self._hide, self._show)
        self._stack.known = path.codes
        return path

    def _holds(self, leaf: int, name: str, value: Any) -> bool:
        """Whether a leaf counts by identity, so that what is read of it is guarded."""
        if self.path is None or self.subject.graphed is None or not is_object(value):
            return False
        self._objects[id(value)] = leaf
        return self.path.world.hold(value, f"the argument {name!r}")

    def _held(self, tensor: torch.Tensor, name: str, guard: int) -> None:
        """A tensor that the call found in the world, and the number of its guard."""
        slot = self.slots.of(tensor)
        if slot is not None and self.slots.all[slot].leaf is not None:
            self.refuse(HELD, show=False, outside=True)
        elif slot is None and type(tensor) in TENSORS:
            self._paused, before = True, self._paused
            self.slots.add(tensor, name, guard=guard)
            self._paused = before

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards so far; the numbers of those that came first stay as they are."""
        read = self.subject.dependencies.guards if self.path is None else self.path.world.guards
        return (*read, *self._guards)

    def given(self) -> tuple[Any, ...]:
        """The facts and the identities of the arguments."""
        held = [(name, id(value)) for name, value in leaves(self.args, self.subject.parameters)]
        objects = self.subject.graphed is not None
        return situation(self.args, range(len(self.args)), objects=objects), held

    # -- torch functions -----------------------------------------------------------------------

    def function(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a torch function and record what it did."""
        if self.refusal is not None or self._paused or self._ran is not None:
            return func(*args, **kwargs)
        with self._own:
            is_other = self._interrupted() or is_wrapped_launch(func)  # `launch` sees these
        if is_other:
            return func(*args, **kwargs)
        self._ran = []
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self.refuse(f"it catches an exception of {torch_ops.named(func)}")
            raise
        finally:
            ran, self._ran = self._ran, None
        try:
            self._paused = True  # torch functions that the recorder calls are not recorded
            with self._own, DisableTorchFunction():
                if self.refusal is None and not self._is_alignment(func, args):
                    self.torch.note(func, args, kwargs, result, ran)
        except NotAStep as refused:
            self.refuse(str(refused), lasting=not isinstance(refused, NotYet))
        except Exception as error:
            self.refuse(failure(error).reason)
        finally:
            self._paused = False
        return result

    def _is_alignment(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether a call reads an address of which only the low bits are used, which the key has
        for the arguments."""
        if func is not torch.Tensor.data_ptr or not self.torch.has_known_alignment(args[0]):
            return False
        caller = self._stack.caller()
        if caller is None or not uses_low_bits(caller):
            return False
        if self.sizes is not None:
            self.sizes.pin_place(args[0])
        return True

    def operator(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note an operator that is about to run."""
        with self._own:
            self._operator(func, args, kwargs)

    def _operator(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if is_higher_order(func):
            if not is_wrapped_launch(func):
                self.refuse(f"it runs {func}, whose operators tzero does not see")
        elif self._ran is not None:
            self._ran.append(torch_ops.Ran(func, args, kwargs))
        elif not self._paused and not self._interrupted():
            self.refuse(f"it runs {func} outside of any torch function")

    def operated(self, result: Any) -> None:
        """Note what the operator returned that ran last."""
        if self._ran and isinstance(result, torch.Tensor):
            with self._own:
                self._ran[-1] = self._ran[-1]._replace(result=weakref.ref(result))

    # -- launches ------------------------------------------------------------------------------

    def launch(
        self,
        function: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        launch: Callable[[Any], Any],
    ) -> Any:
        """Make a launch and record it."""
        if self.refusal is not None or self._ran is not None:  # inside a torch function
            return launch(grid)
        marks = None
        with self._own:
            is_other = self._interrupted()
            if self.sizes is not None and not is_other:
                marks = LaunchSizes(self.sizes, function, args, kwargs)
        if is_other:
            return launch(grid)
        answers: list[Any] = []
        read: set[str] = set()

        def asking(meta: Any) -> Any:
            answers.append(self._asked(grid, meta, marks, read))
            return answers[-1]

        self._paused = True
        try:
            with self._own:
                stream = triton_launch.current_stream()
            self._hide()
            kernel = launch(asking if callable(grid) else grid)
        except BaseException:
            self.refuse(f"it catches an exception of the launch of {function.__name__}")
            self._paused = False
            raise
        finally:
            self._show()
        try:
            with self._own:
                if self.refusal is None:
                    sizes = answers[-1] if answers else grid
                    self._launched(function, kernel, sizes, args, kwargs, read, stream)
                    if marks is not None:
                        self.steps[-1] = marks.added(self.steps[-1], sizes)
        except NotAStep as refused:
            self.refuse(str(refused))
        except Exception as error:
            self.refuse(failure(error).reason)
        finally:
            self._paused = False
        return kernel

    def _asked(
        self,
        grid: Callable[[Any], Any],
        meta: Any,
        marks: LaunchSizes | None,
        read: set[str],
    ) -> Any:
        """The answer of a grid function; the names of the arguments that it reads join `read`."""
        self._paused = False
        with self._own:
            shown = Meta(meta)
            if marks is not None:
                marks.show(shown)
        self._show()
        answer = grid(shown)
        self._hide()
        self._paused = True
        with self._own:
            read.update(shown.read)
            if marks is not None:
                marks.answered(shown.read)
        return answer

    def _hide(self) -> None:
        """See no torch functions for a while: they would be ignored. Those of a mode that is inside
        of the recorder's are left to it."""
        with self._own:
            if self.mode is not None and is_innermost(self.mode):
                self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                self._is_hidden = True

    def _show(self) -> None:
        """See torch functions again."""
        if self.mode is not None and self._is_hidden:
            with self._own:
                self.mode.__enter__()  # type: ignore[no-untyped-call]
                self._is_hidden = False

    def _launched(
        self,
        function: Any,
        kernel: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        read: set[str],
        stream: Any,
    ) -> None:
        name = function.__name__
        if is_timed():
            self.refuse(f"an autotuner times {name}", lasting=False)  # the next call has a config
            return
        if kernel is None:
            raise NotAStep(f"Triton gives no compiled kernel for {name}")
        if self.steps and stream != getattr(self, "_stream", stream):
            raise NotAStep(f"{name} is launched on another stream than the kernel before it")
        self._stream = stream
        self.torch.acted = True
        given, options = triton_launch.named(function, args, kwargs)
        passed = self._passed_on(function)
        values: list[Value] = []
        # What a grid function reads, or a constant or an option is given, is used by value.
        left = dict(passed)
        for parameter in triton_launch.parameters(function):
            value = given[parameter.name]
            source = None if parameter.constant else passed.get(parameter.name)
            if parameter.name in read:
                source = None
            if source is not None and value is self.args[source.place]:
                del left[parameter.name]
                values.append(Scalar(source.leaf))
            elif parameter.constant:
                values.append(Constant(value))
            else:
                values.append(self.slots.value(value, f"argument {parameter.name!r} of {name}"))
        looked_at = {source.name for source in left.values()}
        for source in passed.values():
            if source.name not in looked_at:
                self._passed.add((source.name, source.span))
        words = tuple((k, constant_of(v, f"option {k!r} of {name}")) for k, v in options.items())
        sizes = tuple(int(size) for size in (*grid, 1, 1)[:3])
        told = (tuple(values), words, kernel, self._stack.line(), (len(args), tuple(kwargs)))
        self.steps.append(Launch(function, sizes, *told))  # type: ignore[arg-type]

    def _passed_on(self, function: Any) -> dict[str, _Source]:
        """The kernel parameters to which this launch forwards a parameter of the host function;
        none if the host function does not launch directly."""
        frame = self._stack.launching()
        if frame is None:
            return {}
        span = span_of(frame)
        found = {}
        for place, name in self.subject.passing.calls.get(span, {}).items():
            at = self.subject.parameters.index(name)
            leaf = next((k for k, each in enumerate(self.leaves) if each[0] == name), None)
            if leaf is None or type(self.args[at]) not in NUMBERS:
                continue
            target = place if isinstance(place, str) else function.params[place].name
            found[target] = _Source(name, at, leaf, span)
        return found

    def nested(self, kernel: Any) -> None:
        """Another tzero kernel is called. Its host function becomes part of this recording, guarded
        by its count of config changes."""
        if self.sizes is not None and (kernel.has_choice or kernel.changes):
            self.sizes.lose(f"the config of {kernel.name}, which it calls, may depend on sizes")
        words = f"the configs of {kernel.name}"
        guard = Equal(words, vars(kernel), "changes", kernel.changes)
        if guard not in self._guards:
            self._guards.append(guard)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Record and follow nothing of what happens in this block."""
        outer, self._paused = self._paused, True
        try:
            with unfollowed(self.path):
                yield
        finally:
            self._paused = outer

    # -- the plan ------------------------------------------------------------------------------

    def plan(self, result: Any) -> Plan | Refusal:
        """The plan of the finished call, or why there is none."""
        world = None if self.path is None else self.path.world
        views = {step.slot for step in self.steps if isinstance(step, View)}
        made = Result(self.slots, self._objects, self._is_kept, world)
        others = [*self.args, *(guard.value for guard in self.guards)]
        try:
            value = made.value(result, others, self.slots.made | views)
            self._settled()
        except NotAStep as refused:
            self.refuse(str(refused), show=False)
        if self.refusal is not None:
            return self.refusal
        numbers = {k for k, (_, value) in enumerate(self.leaves) if type(value) in NUMBERS}
        uses = self.subject.passing.uses
        seen = self._passed
        free = {n for n, spans in uses.items() if spans and all((n, s) in seen for s in spans)}
        by_value = frozenset(k for k in numbers if self.leaves[k][0] not in free)
        by_value |= self.subject.by_value
        back: dict[Value, Value] = {Scalar(k): Constant(self.leaves[k][1]) for k in by_value}
        if self.sizes is not None:
            value = self.sizes.result(value, result)
            back |= self.sizes.numbers(by_value)
        loaded = self.subject.dependencies.loaded
        read = {} if world is None else world.of_arguments
        plan = Plan(
            self.subject.kernel,
            tuple(name for name, _ in self.leaves),
            by_value,
            self.guards,
            tuple(self.slots.all),
            tuple(replaced(step, back) for step in self.steps),
            value,
            self.subject.code.co_filename,
            bare=values.bare(self.leaves, lambda each: read.get(id(each), loaded)),
        )
        if self.subject.graphed is not None:
            chosen = Setting.of(_CHOSEN, torch_graphs.setting, torch_graphs.setting())
            plan = dataclasses.replace(plan, guards=(*plan.guards, chosen))
            return parted(plan, self.slots.tensors, *self.subject.graphed)
        return plan if self.sizes is None else sized(plan, self.sizes)

    def _is_kept(self, value: FunctionType | torch.Generator) -> bool:
        """Whether an object was there before the call, and guards keep it."""
        if self.path is not None:
            return self.path.world.has(value, passing=False)
        return any(guard.value is value for guard in self.guards)

    def _settled(self) -> None:
        if self.subject.graphed is None and not any(isinstance(s, Launch) for s in self.steps):
            raise NotAStep(NO_LAUNCH)
        for slot, tensor in zip(self.slots.all, self.slots.tensors, strict=True):
            geometry = (slot.dtype, slot.size, slot.stride)
            if (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride())) != geometry:
                raise NotAStep(f"the geometry of {slot.name} changes while it runs")
        if self.path is not None:
            self.path.finish()
            if shared(self.args, self.path.world.guards):
                self.refuse(SHARED, lasting=False, show=False, outside=True)
        for guard in self.guards:
            if not guard.holds():
                self.refuse(f"{guard.text} changes while it runs", show=False, outside=True)

    def close(self) -> None:
        """Let go of the path and the mode, which refer to this recorder, so that nothing keeps the
        tensors of the call alive."""
        self.path = self.mode = None
        self.slots.is_generator_kept = lambda _: False
        if self.sizes is not None:
            self.sizes.close()

    def refuse(
        self, reason: str, *, lasting: bool = True, show: bool = True, outside: bool = False
    ) -> None:
        """Record why this call cannot be replayed; only the first reason counts."""
        if self.refusal is None:
            place = self._stack.place() if show else ("", 0)
            read = tuple(step for step in self.steps if isinstance(step, Read))
            self.refusal = Refusal(reason, *place, lasting=lasting, outside=outside, read=read)

    def _interrupted(self) -> bool:
        """Whether code other than the host function calls torch or a kernel; that ends this
        recording."""
        stranger = self._stack.stranger()
        if stranger:
            self.refuse(interrupted_by(stranger), lasting=False, show=False, outside=True)
        return bool(stranger)


NO_LAUNCH = "it launches no kernel"
_CHOSEN = "torch's settings, by which it chooses kernels"
HELD = "an argument is a tensor that a global or a closure holds too"
SHARED = "an argument is or holds a list, tuple or dict that a global or a closure holds too"


class _Source(NamedTuple):
    """A forwarded parameter of the host function: its name, its place, its leaf, and the source
    span of the launch that forwards it."""

    name: str
    place: int
    leaf: int
    span: Any


def unfollowed(path: Path | None) -> AbstractContextManager[None]:
    """A block of the recorder's own calls, or of calls that each replay makes too."""
    return contextlib.nullcontext() if path is None else path.paused()
