"""Adapts Triton's launches, compiles and autotuners for someone who times them.

Enters: functions that are told of each launch, and of each binary that is compiled or loaded.
Leaves: Triton's classes with these calls in them, until a block ends; what an autotuner has found.
It must not know who asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from tzero import locks
from tzero.adapters.triton_entries import around_subscripts
from tzero.adapters.triton_launch import ASTSource

__all__ = [
    "Candidate",
    "binaries_timed",
    "candidates",
    "launches_timed",
    "trials_timed",
    "tuned",
    "tuner_of",
]

Note = Callable[[Any, int, int], None]
"""Gets a kernel or what is around it, and the start and the end of its launch in nanoseconds."""

_lock = locks.lock()  # held while methods of Triton's classes are replaced


@contextmanager
def launches_timed(note: Note, kinds: Sequence[type] = ()) -> Iterator[None]:
    """Time each launch that is written ``kernel[grid](...)``, until the block ends: of Triton's
    kernels, and of `kinds`, which have a ``[]`` of their own.

    ::

        with launches_timed(lambda kernel, start, end: print(kernel, end - start)):
            add_kernel[(1,)](x, y, out, 64)
    """
    clock = time.perf_counter_ns

    def around(kernel: Any, grid: Any, launch: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return launch(*args, **kwargs)
            finally:
                note(kernel, start, clock())

        return timed

    with ExitStack() as stack:
        stack.enter_context(around_subscripts(around))
        for kind in kinds:
            stack.enter_context(around_subscripts(around, kind))
        yield


@contextmanager
def binaries_timed(note: Callable[[Any, int, int, bool], None]) -> Iterator[None]:
    """Time whatever a launch does to get a binary that it has not launched yet, until the block
    ends: the kernel, the start and the end in nanoseconds, and whether it was compiled here. If
    not, it was loaded from a cache, or another process has compiled it.

    ::

        with binaries_timed(lambda kernel, start, end, is_compiled: print(kernel, is_compiled)):
            add_kernel[(1,)](x, y, out, 64)
    """
    lowered = _Lowered()
    with _lock:
        do_compile, make_ir = JITFunction._do_compile, ASTSource.make_ir

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer, lowered.here = lowered.here, False
        start = time.perf_counter_ns()
        try:
            return do_compile(self, *args, **kwargs)
        finally:
            note(self, start, time.perf_counter_ns(), lowered.here)
            lowered.here = outer

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        lowered.here = True
        return make_ir(self, *args, **kwargs)

    with _lock:
        JITFunction._do_compile, ASTSource.make_ir = timed, noted
    try:
        yield
    finally:
        with _lock:
            if JITFunction._do_compile is timed:
                JITFunction._do_compile = do_compile
            if ASTSource.make_ir is noted:
                ASTSource.make_ir = make_ir


@contextmanager
def trials_timed(note: Note) -> Iterator[None]:
    """Time each config that an autotuner tries, until the block ends: the autotuner, the start and
    the end in nanoseconds. Compiling for it is part of that.

    ::

        with trials_timed(lambda tuner, start, end: print(tuner.base_fn.__name__, end - start)):
            tuned_kernel[(1,)](x, y, out, 64)
    """
    with _lock:
        inner = Autotuner._bench

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return inner(self, *args, **kwargs)
        finally:
            note(self, start, time.perf_counter_ns())

    with _lock:
        Autotuner._bench = timed
    try:
        yield
    finally:
        with _lock:
            if Autotuner._bench is timed:
                Autotuner._bench = inner


class _Lowered(threading.local):
    here = False


def tuner_of(kernel: Any) -> Any:
    """The autotuner around a kernel, through heuristics; None if there is none.

    >>> tuner_of(print) is None
    True
    """
    while kernel is not None and not isinstance(kernel, Autotuner):
        kernel = getattr(kernel, "fn", None)
    return kernel


def tuned(tuner: Any) -> int:
    """For how many keys an autotuner has found a config."""
    return len(tuner.cache)


class Candidate(NamedTuple):
    """A config that an autotuner has timed: its text, and seconds, or infinity if it failed.

    >>> Candidate("BLOCK: 64", 2e-6).seconds
    2e-06
    """

    config: str
    seconds: float
    low: float | None = None
    """Four of five samples were not shorter, and four of five not longer; None where Triton did not
    keep that."""
    high: float | None = None


def candidates(tuner: Any) -> tuple[list[Candidate], str]:
    """The configs that an autotuner has timed last, and the one that it has chosen."""
    timings = getattr(tuner, "configs_timings", None) or {}
    rows = [_candidate(str(config), each) for config, each in timings.items()]
    return rows, str(getattr(tuner, "best_config", ""))


def _candidate(config: str, timing: Any) -> Candidate:
    """A config with what Triton keeps of it: milliseconds, or these with their 20 % and 80 %."""
    if not isinstance(timing, Sequence):
        return Candidate(config, timing / 1e3)
    middle, *ends = (each / 1e3 for each in timing)
    return Candidate(config, middle, *(ends if len(ends) == 2 else ()))
