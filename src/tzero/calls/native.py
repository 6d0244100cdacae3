"""`NativeKernel`: a kernel over a host function whose plans are replayed by `tzero._native`.

    call ── native: a plan for these arguments ──► replayed, without a Python frame
            └ none: `_missed` ── Kernel._answer ──► result, and the plan ── describe ──► native

Enters: a plan that Python has recorded. Leaves: a description of it in numbers and objects, which
native code can replay. It must not know how native code decides.

What native code does not take on, it hands to `Kernel.__call__`, from which this class comes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import tzero._native as _native
from tzero import events, measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.adapters.torch_layout import configure, in_a_new_thread
from tzero.calls.kernel import Kernel
from tzero.launches import native as native_launch
from tzero.launches.native import NotNative, ParameterDescription
from tzero.plans import outputs
from tzero.plans.describe import describe
from tzero.plans.plan import (
    Call,
    Plan,
    Refusal,
    View,
)
from tzero.plans.wrapper import drift_in, resume

__all__ = ["NativeKernel", "available", "describe", "make"]


def make(native: ModuleType) -> type[Kernel[Any]]:
    """The kernel class over a build of the native module."""
    native_launch.configure(native)
    why_not = in_a_new_thread(functools.partial(configure, native))
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
            parameters = tuple(
                ParameterDescription(name, constant, name in host.defaults, host.defaults.get(name))
                for name, constant in zip(host.parameters, host.constants, strict=True)
            )
            most = 8 * settings.current().max_specializations
            self._prepare(parameters, (False,) * len(parameters), most)

        @torch_modes.untraced
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

        @torch_modes.untraced
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
            return outputs.added(native.Ring())

        def _stages(self, args: tuple[Any, ...], here: Any) -> dict[str, float]:
            stages = native.STAGES
            if not self._look(stages["guards"], *args):
                return super()._stages(args, here)
            times = [measure.nanoseconds(self._count)]  # a call that does nothing
            for stage in stages.values():
                times.append(measure.nanoseconds(functools.partial(self._look, stage, *args)))
            pairs = itertools.pairwise(times)
            return {name: max(b - a, 0.0) for name, (a, b) in zip(stages, pairs, strict=True)}

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


NativeKernel = make(_native)


def available() -> str:
    """Why plans cannot be replayed natively here; empty where they can.

    >>> available()
    ''
    """
    found: str = NativeKernel.unavailable  # type: ignore[attr-defined]
    return found
