"""Runs a program once with `tzero.install`, and notes what its kernels do: for `tzero trace` and
`tzero report`.

::

    program ─┬─ launches, timed one by one ─────────────────────────┐
             ├─ binaries that launches need: compiled or loaded ────┤
             ├─ calls of host functions, timed by native code ──────┼──► Run
             ├─ events: misses, fallbacks, compiles, searches ──────┤
             └─ at the end: counts of each kernel, plans ───────────┘

Enters: a script or the name of a module, and its arguments. Leaves: a `Run`. It must not know how a
run is shown. Calls stay native meanwhile.

Seen are the process itself and its compile workers. Of launches those are seen that are written
``kernel[grid](...)``.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

from tzero import events, locks, measure, versions
from tzero.adapters import triton_timing
from tzero.adapters.triton_launch import JITFunction, driver
from tzero.api.install import KernelLaunches, install, installed
from tzero.calls import program
from tzero.calls.kernel import Kernel as Host
from tzero.commands.record import (
    AUTOTUNER,
    Candidate,
    Compile,
    Kernel,
    Plan,
    Run,
    Search,
    Span,
    Told,
)
from tzero.counts import Count
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.launches.tiers import tier

__all__ = ["MOST_SPANS", "watch"]

MOST_SPANS = 100_000
"""The most launches of which each is kept; the others are counted. So many fit into a trace that a
browser opens in a second."""

MOST_EVENTS = 10_000
MOST_PLANS = 4
"""The most plans that are shown of a kernel: the latest."""

Clock = Callable[[int], float]
"""Seconds since the program began, of nanoseconds of `time.perf_counter_ns`."""


def watch(target: str, arguments: Sequence[str], *, is_module: bool = False) -> Run:
    """Run a program to its end. A process that it has forked ends here.

    ::

        watch("train.py", ["--steps", "3"])
    """
    own, seen = os.getpid(), _Seen()
    install()
    with ExitStack() as stack:
        record = stack.enter_context(measure.recording())
        stack.enter_context(events.observe(seen.told, calls=False))
        stack.enter_context(triton_timing.binaries_timed(seen.binary))
        stack.enter_context(triton_timing.launches_timed(seen.launched, _kinds()))
        began = datetime.now(UTC)
        start = time.perf_counter_ns()
        status = program.status_of(target, arguments, is_module=is_module)
        if os.getpid() != own:
            sys.exit(status)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        end = time.perf_counter_ns()

    def clock(nanoseconds: int) -> float:
        return (nanoseconds - start) / 1e9

    spans = record.spans
    return Run(
        program=((*(("-m",) if is_module else ()), target, *arguments)),
        status=status,
        seconds=clock(end),
        began=began.astimezone().isoformat(timespec="seconds"),
        versions=_versions(),
        machine=_machine(),
        kernels=tuple(sorted(_kernels(seen, spans), key=lambda each: -each.calls)),
        events=tuple(Told(clock(at), *rest) for at, *rest in seen.events),
        compiles=tuple(_compiles(seen, spans, clock)),
        searches=tuple(_searches(seen, clock)),
        plans=tuple(_plans(seen.hosts())),
        spans=tuple(_spans(seen, spans, clock)),
        dropped=seen.left_out.value() + record.dropped,
    )


def _kinds() -> tuple[type, ...]:
    """The classes of kernels of tzero's own."""
    if tier() < 2:
        return (PythonJit,)
    from tzero.launches.native import NativeJit

    return PythonJit, NativeJit


class _Tuned(NamedTuple):
    """A search by Triton's autotuner, which a launch has made."""

    kernel: str
    start: int
    end: int
    rows: list[triton_timing.Candidate]
    chosen: str


class _Calls:
    """The launches of one kernel, with what is around it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel  # and its id is not given to another one
        self.name = str(_function_of(kernel).__name__)
        self.tuner = triton_timing.tuner_of(kernel)
        self.tuned = 0
        self.times = Count()
        """Those that no host function of tzero's has made."""
        self.took: list[int] = []
        """Nanoseconds of those launches of which each is kept."""


class _Seen:
    """What is noted while the program runs."""

    def __init__(self) -> None:
        self._lock = locks.lock()  # protects what follows; lists are only appended to
        self.events: list[tuple[int, str, str, str]] = []
        self.launches: list[tuple[str, int, int, int]] = []
        self.left_out = Count()
        self.binaries: list[tuple[str, int, int, bool, int]] = []
        self.searches: list[tuple[int, str, Any]] = []
        self.tuned: list[_Tuned] = []
        self.calls: dict[int, _Calls] = {}
        self._hosts: dict[int, Host[..., Any]] = {}

    def told(self, event: events.Event) -> None:
        """An event: its arguments are not kept, since they hold the program's tensors."""
        now = time.perf_counter_ns()
        kernel = event.facts.get("kernel")
        with self._lock:
            if event.kind == "miss" and isinstance(kernel, Host):
                if kernel.candidate:  # made by a search
                    return
                self._hosts[id(kernel)] = kernel
            if event.kind == "tune" and "choice" in event.facts:
                self.searches.append((now, event.kernel, event.facts))
            if len(self.events) < MOST_EVENTS:
                self.events.append((now, event.kind, event.kernel, event.reason))

    def hosts(self) -> list[Host[..., Any]]:
        """The host functions that were called, in order."""
        return list(self._hosts.values())

    def binary(self, kernel: Any, start: int, end: int, is_compiled: bool) -> None:
        """A launch has got a binary."""
        with self._lock:
            place = threading.get_ident()
            self.binaries.append((kernel.__name__, start, end, is_compiled, place))

    def launched(self, kernel: Any, start: int, end: int) -> None:
        """A launch has ended. It is on the program's way, so it takes no lock."""
        if current.is_trial:
            return
        calls = self.calls.get(id(kernel)) or self._met(kernel)
        if current.call is None:
            calls.times.add()
        if calls.tuner is not None:
            self._look_at(calls, start, end)
        if len(self.launches) < MOST_SPANS:
            self.launches.append((calls.name, start, end, threading.get_ident()))
            calls.took.append(end - start)
        else:
            self.left_out.add()

    def _met(self, kernel: Any) -> _Calls:
        with self._lock:
            return self.calls.setdefault(id(kernel), _Calls(kernel))

    def _look_at(self, calls: _Calls, start: int, end: int) -> None:
        """Note a search, if the launch has made its autotuner search."""
        tuned = triton_timing.tuned(calls.tuner)
        if tuned > calls.tuned:
            found = triton_timing.candidates(calls.tuner)
            self.tuned.append(_Tuned(calls.name, start, end, *found))
        calls.tuned = tuned


def _function_of(kernel: Any) -> Any:
    while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


# -- what was seen, as rows ------------------------------------------------------------------------


def _kernels(seen: _Seen, spans: Sequence[measure.Span]) -> Iterator[Kernel]:
    took: dict[str, list[int]] = {}
    for span in spans:
        if span.stage == "call":
            took.setdefault(span.kernel, []).append(span.nanoseconds)
    for host in seen.hosts():
        yield _host(host, _median(took.get(host.name, [])))
    counted: dict[tuple[str, str], list[KernelLaunches]] = {}
    for each in installed().kernels:
        counted.setdefault((each.kernel, each.module), []).append(each)
    for function, calls in _by_function(seen):
        is_own = isinstance(function, PythonJit)
        same = [] if is_own else counted.get((function.__name__, function.__module__), [])
        took_each = _median([each for one in calls for each in one.took])
        times = sum(each.times.value() for each in calls)
        if same:
            mean = same[0].microseconds
            yield _counted(same.pop(0), mean or took_each, _lines_of(function.fn))
        elif times:
            yield _launched(function, is_own, times, took_each)
    for left in counted.values():
        yield from (_counted(each, each.microseconds, "") for each in left)


def _by_function(seen: _Seen) -> list[tuple[Any, list[_Calls]]]:
    """The kernels that were launched, each with what was launched around it."""
    found: dict[int, tuple[Any, list[_Calls]]] = {}
    for each in seen.calls.values():
        function = _function_of(each.kernel)
        found.setdefault(id(function), (function, []))[1].append(each)
    return list(found.values())


def _counted(counted: KernelLaunches, microseconds: float | None, place: str) -> Kernel:
    return Kernel(
        *(counted.kernel, counted.module, "Triton kernel", counted.launches, counted.native),
        microseconds=microseconds,
        place=place,
        others=dict(counted.reasons),
        trials=counted.trials,
    )


def _median(nanoseconds: Sequence[int]) -> float | None:
    """The middle one, of two the lower: a first call compiles."""
    return statistics.median_low(nanoseconds) / 1e3 if nanoseconds else None


def _host(host: Host[..., Any], microseconds: float | None) -> Kernel:
    stats = host.stats()
    others = {"replayed in Python": stats.python_replays, "recorded": stats.recordings}
    left = stats.plain_calls - stats.recordings
    lasting = [why for why in host.fallbacks.reasons if why.startswith("not replayed")]
    if left:  # which of several reasons each call had is not counted
        others[lasting[0] if len(lasting) == 1 else "run as written"] = left
    wrapped = getattr(host, "helion", None)
    function = host.host.function if wrapped is None else wrapped.fn
    kind = "host function" if wrapped is None else "Helion kernel"
    return Kernel(
        *(host.name, function.__module__, kind, stats.calls),
        native=stats.native_replays,
        microseconds=microseconds,
        place=_lines_of(function),
        others={why: count for why, count in others.items() if count},
    )


def _launched(function: Any, is_own: bool, calls: int, microseconds: float | None) -> Kernel:
    """A kernel whose launches are timed, and not counted one by one: they count as native if no
    reason was told why they are not."""
    reasons = function.fallbacks.reasons if is_own else ()
    is_native = is_own and tier() == 2 and not reasons
    kind = "tzero.jit" if is_own else "Triton kernel"
    others = dict.fromkeys(reasons or ["Triton launches"], calls)
    return Kernel(
        *(function.__name__, function.__module__ or "", kind, calls),
        native=calls if is_native else 0,
        microseconds=microseconds,
        place=_lines_of(function.fn),
        others={} if is_native else others,
    )


def _lines_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _compiles(seen: _Seen, spans: Sequence[measure.Span], clock: Clock) -> Iterator[Compile]:
    for name, start, end, is_compiled, thread in seen.binaries:
        where = "compiled here" if is_compiled else "loaded, or waited for"
        yield Compile(name, clock(start), clock(end), where, thread)
    for span in spans:
        if span.stage == "compile":
            where = "compiled in a worker" if span.process != os.getpid() else "compiled here"
            times = clock(span.start), clock(span.end)
            yield Compile(span.kernel, *times, where, span.thread, span.process)


def _searches(seen: _Seen, clock: Clock) -> Iterator[Search]:
    for at, kernel, facts in seen.searches:
        choice, found = facts["choice"], facts["search"]
        rows: tuple[Candidate, ...] = ()
        if found is not None:
            rows = tuple(_candidate(*each) for each in found.outcomes.items())
        yield Search(
            kernel=kernel,
            at=clock(at),
            chosen=repr(choice.variant),
            why=f"{choice.how}: {choice.why}",
            arguments=facts["arguments"],
            seconds=0.0 if found is None else found.seconds,
            candidates=rows,
        )
    for each in seen.tuned:
        rows = tuple(
            Candidate(one.config, one.seconds, "", one.low, one.high)
            if one.seconds < math.inf
            else Candidate(one.config, None)
            for one in each.rows
        )
        yield Search(
            kernel=each.kernel,
            at=clock(each.end),
            chosen=each.chosen,
            why=AUTOTUNER,
            seconds=(each.end - each.start) / 1e9,
            candidates=rows,
        )


def _candidate(config: Any, outcome: Any) -> Candidate:
    """A config with the outcome by which it was chosen, or not."""
    if not outcome.usable:
        return Candidate(repr(config), None, outcome.problem)
    known = outcome.low > 0 and outcome.high < math.inf
    ends = (outcome.low, outcome.high) if known else (None, None)
    return Candidate(repr(config), outcome.median, "", *ends)


def _plans(hosts: Sequence[Host[..., Any]]) -> Iterator[Plan]:
    for host in hosts:
        every = [each for one in host.table.bound_kernels() for each in one.members()]
        plans = [found.plan for bound in every for found in bound.plans.plans()]
        for plan in plans[-MOST_PLANS:]:
            lines = [line.strip() for line in str(plan).splitlines()[1:]]
            guards = [line.removeprefix("assumes ") for line in lines if line[:8] == "assumes "]
            steps = [line for line in lines if line[:8] != "assumes "]
            yield Plan(host.name, tuple(guards), tuple(steps))


def _spans(seen: _Seen, spans: Sequence[measure.Span], clock: Clock) -> Iterator[Span]:
    for name, start, end, thread in seen.launches:
        yield Span("launch", name, clock(start), clock(end), thread)
    own = (0, os.getpid())
    room = MOST_SPANS
    trials = [
        (kernel, at - round(facts["search"].seconds * 1e9), at)
        for at, kernel, facts in seen.searches
        if facts["search"] is not None
    ]
    for span in spans:
        if span.stage == "compile":
            continue  # it is in `compiles`
        if any(n == span.kernel and a <= span.start and span.end <= b for n, a, b in trials):
            continue  # a candidate was called
        room -= 1
        if room < 0:
            seen.left_out.add()
            continue
        process = 0 if span.process in own else span.process
        times = clock(span.start), clock(span.end)
        yield Span(span.stage, span.kernel, *times, span.thread, process)


# -- the surroundings ------------------------------------------------------------------------------


def _versions() -> dict[str, str]:
    found = {row.title: versions.installed(row.package) for row in versions.SUPPORTED}
    return {"tzero": versions.TZERO, **{title: each for title, each in found.items() if each}}


def _machine() -> str:
    target = driver.active.get_current_target()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{name}, {target.backend} {target.arch}, {os.cpu_count()} cores"
