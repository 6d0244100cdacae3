"""`NativeKernel`: a `Kernel` whose plans are replayed by `tzero._native`.

    call ── native: a plan for these arguments ──► replayed, without a Python frame
            ├ a fallback ──► the host function runs as written
            └ none: `_missed` ── find, run ──► result and plan ── describe ──► native

Enters: a plan that Python has recorded, or the fact that calls are not replayed. Leaves: a
description of it, which native code keeps. It must not know how native code finds it. Calls that
native code does not handle go to `Kernel.__call__`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import Parameter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import tzero._native as _native
from tzero import events, measure, sealed, settings
from tzero.adapters import torch_modes
from tzero.adapters.torch_layout import configure, in_a_new_thread
from tzero.arguments.extract import unwrapped
from tzero.arguments.host import Host
from tzero.arguments.objects import METACLASS, is_held
from tzero.arguments.situation import leaves, unsupported
from tzero.calls import explain
from tzero.calls.bound import BoundKernel
from tzero.calls.bound_table import Raw
from tzero.calls.kernel import Kernel
from tzero.calls.reports import Made, Replay, Run
from tzero.calls.specialize import by_value_in, close_sites, found_by_words
from tzero.counts import Count
from tzero.launches import beside, graphs
from tzero.launches import native as native_launch
from tzero.launches.native import NotNative, ParameterDescription
from tzero.plans import outputs
from tzero.plans.captures import Capturing
from tzero.plans.describe import describe, python_functions
from tzero.plans.plan import Call, Plan, View
from tzero.plans.planner import drifted
from tzero.plans.sized import concrete
from tzero.plans.table import Planned
from tzero.plans.wrapper import drift_in, resume

__all__ = ["NativeCalls", "NativeKernel", "available", "make"]

_ENTRIES_PER_BOUND_KERNEL = 8


@dataclass(frozen=True, slots=True)
class FallbackDescription:
    """How native code makes calls that are not replayed: the function to call, and what
    `specialize` needs in it (see `current_call.Call`). `keyless`: calls with other keys can be made
    like this one too, because the host function has no config. `until`: the number of the call that
    is left to Python, which records it again; 0 for none."""

    bound: BoundKernel[Any]
    call: Callable[..., Any]
    note: Callable[..., None]
    base: Raw
    keyless: bool
    until: int = 0

    def lasts(self) -> bool:
        """Whether such calls are still made in this way: another thread may have chosen another
        config."""
        return self.bound.call is self.call and self.bound.is_settled()


class NativeCalls(Kernel[..., Any]):
    """The Python side of a native kernel. `make` combines it with the base class of the extension,
    whose methods are declared below."""

    native: ModuleType
    replays_sizes = True
    unavailable: str
    """Why plans cannot be replayed natively; empty if they can."""

    if TYPE_CHECKING:
        _prepare: Callable[..., None]
        _forget: Callable[[Any], None]
        _count: Callable[[], int]
        _made: Callable[[], tuple[int, int]]
        _generation: Callable[[], int]
        _used: Callable[[], list[tuple[BoundKernel[Any], int]]]
        _look: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._resumed = Count()  # replays that native code began and Python ended
        super().__init__(function, **options)
        self.__dict__.pop("_tick", None)  # the native one counts native hits too
        self.capturing: Capturing | None = None
        if self.graph and self.planner is not None:
            self.capturing = Capturing(
                self.native, self.fallbacks, self.planner.odd, self._end_plan, drifted
            )
        self._always_in_python = self.unavailable
        if self.unavailable or self.planner is None:
            return
        if options.get("key") is not None:
            self._always_in_python = "its key= function must run on each call"
            self.fallbacks.lasting(f"replayed in Python: {self._always_in_python}")
            return
        parameters = tuple(_described(self.host))
        most = _ENTRIES_PER_BOUND_KERNEL * settings.current().max_specializations
        by_value = tuple(k in self.planner.by_value for k in range(len(parameters)))
        self._prepare(parameters, by_value, most, METACLASS if self.options.objects else None)

    # -- called by native code -------------------------------------------------------------------

    @torch_modes.untraced
    def _missed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call. Returns its result, and what native code needs to make such calls, if
        anything: the bound kernel, a description of the plan (None if Python replays it), one of a
        fallback or None, which parameters are compared by value, and the generation."""
        if self.planner is not None:
            self.planner.replays_natively = self._made()[0]
        result, made = self._recorded(args, kwargs)
        generation = self._generation()  # before `lasts`: native code compares it once more
        if made is None or settings.current().verify:
            return result, None
        if isinstance(made, FallbackDescription):
            if _counts_by_identity(self, args, kwargs):
                return result, None  # another object may come to its address
            return result, self._described_fallback(made, generation)
        return result, self._described_plan(made, generation)

    @torch_modes.untraced
    def _unread(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call with arguments of which native code reads only the types. Returns as
        `_missed` does: its result, and a fallback if all calls with such types are made so."""
        result, made = self._recorded(args, kwargs)
        generation = self._generation()
        if not isinstance(made, FallbackDescription) or settings.current().verify:
            return result, None
        if made.base and not (made.keyless and self._unplannable(args, kwargs)):
            return result, None
        if _counts_by_identity(self, args, kwargs):
            return result, None
        return result, self._described_fallback(made, generation)

    def _unplannable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether plans support one of the arguments in no call, whatever its value."""
        given = unwrapped(self.ordered(args, kwargs))
        return any(unsupported(*leaf) for leaf in leaves(given, self.host.parameters))

    def _described_fallback(self, fallback: FallbackDescription, generation: int) -> Any:
        if not fallback.lasts() or self.planner is None:
            return None
        beside.in_fallbacks(self.native)
        places = self.planner.by_value | by_value_in(fallback.bound.facts)
        by_value = tuple(k in places for k in range(len(self.host.parameters)))
        return fallback.bound, None, fallback, by_value, generation

    def _described_plan(self, planned: Planned, generation: int) -> Any:
        if not self._lasts(planned):
            return None
        plan = planned.plan
        names = {plan.leaves[leaf] for leaf in plan.by_value}
        by_value = tuple(name in names for name in self.host.parameters)
        try:
            captures = None if self.capturing is None else self.capturing.of
            description = describe(self.native, plan, self._ring, planned.variants, captures)
        except NotNative as reason:
            self.fallbacks.lasting(f"replayed in Python: {reason}")
            return planned.bound, None, None, by_value, generation
        if description is None:  # Triton has dropped what was launched: record again
            planned.bound.plans.forget(planned)
            return None
        return planned.bound, description, None, by_value, generation

    def _recorded(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Planned | FallbackDescription | None]:
        """Do `_answer`, which is in the open record as a call."""
        record = measure.active()
        if record is None:
            return self._answer(args, kwargs)
        with record.stage("call", self.name):
            return self._answer(args, kwargs)

    def _answer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Planned | FallbackDescription | None]:
        """Make a call; returns its result, and its plan or fallback unless its bound kernel was
        evicted meanwhile."""
        base, bound, args, number = self._find(args, kwargs)
        with self._timed_run():
            result, outcome = self._run(self._noting.in_call, base, bound, args, number)
        if outcome is None or (base and self.table.found(base, args, number) is not bound):
            return result, None
        if isinstance(outcome, Planned):
            return result, outcome
        if not found_by_words(bound.facts, args):
            return result, None
        keyless = self.host.config_at is None and not bound.facts
        until = 0 if sealed.is_sealed() else outcome.until  # else each call would be due
        described = FallbackDescription(bound, bound.call, self._note, base, keyless, until)
        return result, described

    def _timed_run(self) -> AbstractContextManager[None]:
        record = measure.active()
        return nullcontext() if record is None else record.stage("run", self.name)

    def _note(self, base: Raw, bound: BoundKernel[Any], *rest: Any) -> None:
        """Note a value that was given to `specialize` in a fallback that native code made."""
        self._noting.in_call(base, bound, *rest)
        if bound.open_sites:
            self._forget(bound)  # so that `_settled` is called

    def _settled(self, bound: BoundKernel[Any]) -> None:
        """Complete a call that native code made, whose entry was dropped meanwhile."""
        if bound.open_sites:
            close_sites(bound)

    def _lasts(self, planned: Planned) -> bool:
        """Whether a plan is still in use: another thread may have chosen another config."""
        return planned.bound.makes_calls() and planned.bound.plans.has(planned)

    @torch_modes.untraced
    def _resume(self, plan: Plan, start: int, held: Sequence[Any], given: Any) -> Any:
        """Run the rest of a plan that native code cannot finish, because a guard failed midway."""
        self._resumed.add()
        made = concrete(plan, given)
        assert made is not None, "native code has checked that the plan is for these sizes"
        return resume(made, start, held, given, self._drifted)

    def _drifted(self, plan: Plan, said: Any, result: Any = None) -> NoReturn:
        """End a plan and raise `PlanDrift`: a torch function returned something else than when the
        plan was recorded. `said` is the number of its step, or the `Drift`."""
        if isinstance(said, int):
            step = plan.steps[said]
            call = step.call if isinstance(step, View) else step
            assert isinstance(call, Call)
            said = drift_in(plan, call, result)
        self._end_plan(plan)
        drifted(plan, said)

    def _end_plan(self, plan: Plan) -> None:
        """End a plan in whichever table it is."""
        self._forget(None)  # native code may have plans that the tables have evicted
        every = [each for one in self.table.bound_kernels() for each in one.members()]
        for bound in every:
            for found in bound.plans.plans():
                if found.plan is plan:
                    bound.plans.forget(found)

    # -- calls into native code --------------------------------------------------------------------

    def plans_ended(self, which: BoundKernel[Any] | Plan | None, /) -> None:
        """Drop the native entries of a bound kernel, of one plan, or all."""
        self._forget(which)

    @property
    def tier(self) -> int:
        """How calls can be replayed."""
        return super().tier if self.unavailable or self.planner is None else 2

    def graphs(self, plan: Plan | None) -> tuple[str, ...]:
        """Which way each input of a plan's CUDA graphs takes, as far as they are captured."""
        if plan is None or self.capturing is None:
            return ()
        return tuple(self.capturing.ways(plan))

    def replaying(self, plan: Plan, args: tuple[Any, ...]) -> Replay:
        """How a plan would be replayed, as far as is known without running it."""
        given, named = self.ordered.spread(args)
        why = self._why_in_python(plan, given, named)
        if why:
            return Replay("in Python", why)
        look = functools.partial(self._look, self.native.STAGES["guards"], *given, **named)
        description = describe(self.native, plan)
        steps = () if description is None else python_functions(description)
        ran = tuple(dict.fromkeys((*explain.frames(look), *steps)))
        runs = self._runs(given, named)
        return Replay("partly in Python" if ran else "natively", ", ".join(ran), runs)

    def _runs(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Run, ...]:
        """The runs of the plan of a call."""
        return graphs.runs(self.native, self._look(None, *given, **named) or ())

    def _why_in_python(self, plan: Plan, given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """Why native code would leave the replay of a plan to Python; empty if it would not."""
        if self._always_in_python:
            return self._always_in_python
        stages = self.native.STAGES
        if self._look(stages["guards"], *given, **named):
            return ""
        if events.watched():
            return "an observer or a debug log sees each call"
        try:
            if describe(self.native, plan) is None:
                return "Triton has dropped a binary, so the next call is recorded again"
        except NotNative as reason:
            return str(reason)
        if not self._look(stages["reading"], *given, **named):
            return "native code cannot read the arguments"
        if not self._look(stages["lookup"], *given, **named):
            return "native code does not have the plan yet; it gets it in the next call"
        return "a guard fails that only concerns native code, such as a hook on a kernel"

    def _made_so_far(self) -> Made:
        (native, unkeyed), python, resumed = (
            self._made(),
            super()._made_so_far(),
            self._resumed.value(),
        )
        return Made(native - resumed, python.python + resumed, python.unkeyed + unkeyed)

    def stages(self, args: tuple[Any, ...], bound: Any) -> dict[str, float]:
        """The cost of each stage of a native hit, in nanoseconds, measured now."""
        stages = self.native.STAGES
        given, named = self.ordered.spread(args)
        if not self._look(stages["guards"], *given, **named):
            return super().stages(args, bound)
        times = [measure.nanoseconds(self._count)]  # a call that does nothing
        for stage in stages.values():
            look = functools.partial(self._look, stage, *given, **named)
            times.append(measure.nanoseconds(look))
        pairs = itertools.pairwise(times)
        return {name: max(b - a, 0.0) for name, (a, b) in zip(stages, pairs, strict=True)}

    def note_uses(self) -> None:
        """Update `last_used` of bound kernels from native code's hits."""
        for bound, used in self._used():
            bound.family.last_used = max(bound.family.last_used, used)

    def _ring(self) -> Any:
        """The output pool of an allocation in a plan; None without `pool=True`."""
        if not self.pool:
            return None
        if not self.native.rings():
            raise NotNative("in this torch native code cannot count references, as pool=True needs")
        return outputs.added(self.native.Ring())


def _counts_by_identity(
    kernel: NativeCalls, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether an argument of a call counts by identity."""
    if not kernel.options.objects:
        return False
    given = leaves(unwrapped(kernel.ordered(args, kwargs)), kernel.host.parameters)
    return any(is_held(type(value)) for _, value in given)


def _described(host: Host[Any]) -> Iterator[ParameterDescription]:
    """The parameters of a host function. Those that cannot be given by name have names that no
    call can use."""
    for name, kind, constant in zip(host.parameters, host.kinds, host.constants, strict=True):
        yield ParameterDescription(
            f"{name}/" if kind is Parameter.POSITIONAL_ONLY else name,
            constant,
            name in host.defaults,
            host.defaults.get(name),
            keyword_only=kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD),
        )


def make(native: ModuleType) -> type[NativeCalls]:
    """The kernel class for a build of the native module."""
    native_launch.configure(native)
    why_not = in_a_new_thread(functools.partial(configure, native))
    if why_not:
        reason = f"replayed in Python: {why_not}"
        events.emit(events.Event("fallback", "tzero", reason))
    contents = {
        "__module__": __name__,
        "__doc__": "A kernel whose plans are replayed natively; `tzero.kernel` makes it.",
        "native": native,
        "unavailable": why_not,
    }
    made = type("Kernel", (native.Dispatching, NativeCalls), contents)  # as users know it
    if not why_not:
        native.enable_calls(made)
    return made


NativeKernel = make(_native)


def available() -> str:
    """Why plans cannot be replayed natively; empty if they can.

    >>> available()
    ''
    """
    return NativeKernel.unavailable
