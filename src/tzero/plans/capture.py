"""Runs one call of a host function while it is recorded.

Enters: a host function and the arguments of one call. Leaves: its result, and the plan or a
refusal. It must not know what a step is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

from torch.overrides import TorchFunctionMode

from tzero.adapters import intercept, torch_modes
from tzero.plans import replaced
from tzero.plans.plan import Plan, Refusal
from tzero.plans.record import Recorder, Subject, failure, unfollowed
from tzero.plans.torch_ops import is_custom
from tzero.reading.dependencies import Dependencies

__all__ = ["capture"]


def capture(subject: Subject, args: tuple[Any, ...]) -> tuple[Any, Plan | Refusal]:
    """Call a host function; returns its result, and its plan or a refusal. A failure of the
    recorder itself is a refusal too: the host function gets its call and its result in any case."""
    odd = replaced.obscured()
    if odd:
        return subject.function(*args), Refusal(f"the program has replaced {odd}", lasting=False)
    try:
        recorder = Recorder(subject, args)
        before, misses = recorder.given(), _misses(subject.dependencies)
    except Exception as error:
        return subject.function(*args), failure(error)
    if recorder.refusal is not None:
        recorder.close()
        return subject.function(*args), recorder.refusal
    with contextlib.closing(recorder):
        return _recorded(recorder, args, before, misses)


def _recorded(
    recorder: Recorder, args: tuple[Any, ...], before: Any, misses: list[int]
) -> tuple[Any, Plan | Refusal]:
    """Make the call. `before` are the facts of its arguments, `misses` is how often cached
    functions have missed so far."""
    subject, path = recorder.subject, recorder.path
    followed = contextlib.nullcontext(True) if path is None else path.followed()
    operators = _Operators(recorder)
    recorder.mode = _Functions(recorder, operators)
    with (
        recorder.mode,
        operators,
        intercept.intercepted(recorder),
        followed as is_followed,
    ):
        if path is not None and not is_followed:
            path.miss()
        recorder.torch.modes = torch_modes.dispatch()
        result = subject.function(*args)
        if torch_modes.dispatch() != recorder.torch.modes:
            recorder.refuse("it changes torch's modes and does not restore them", show=False)
        elif recorder.refusal is None:
            with recorder.unseen():
                why = recorder.torch.why_not_in_modes()
            if why:
                recorder.refuse(why, show=False)
    try:
        if recorder.refusal is None and recorder.given() != before:
            recorder.refuse("it changes the items or the geometry of its arguments", show=False)
        if _misses(subject.dependencies) != misses:  # the next call will hit
            recorder.refuse("it calls a cached function that missed", lasting=False, show=False)
        return result, recorder.refusal or recorder.plan(result)
    except Exception as error:
        return result, failure(error)


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder, operators: _Operators) -> None:
        super().__init__()
        self.recorder, self.operators = recorder, operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.casts = torch_modes.cast_on()
        func = replaced.called(func, sys._getframe(1))
        return self.recorder.function(func, args, kwargs or {})


class _Operators(torch_modes.Dispatching):
    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.casts: tuple[Any, ...] = ()  # what autocast is on where torch was called last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.recorder.operator(func, args, kwargs)
        # A replay calls a custom operator, which runs its code then.
        if is_custom(func):
            with unfollowed(self.recorder.path):
                result = func(*args, **kwargs)
        else:
            with torch_modes.casting_as_called(func, self.casts):
                result = func(*args, **kwargs)
        self.recorder.operated(result)
        return result


def _misses(dependencies: Dependencies) -> list[int]:
    """The cache misses of `functools.lru_cache` functions that the host function calls."""
    kept = (
        g.value for g in dependencies.guards if isinstance(g.value, functools._lru_cache_wrapper)
    )
    return [each.cache_info().misses for each in kept]
