"""Count what compiling costs, and emit one event per compile.

Enters: what the service did, reported as it happens. Leaves: `CompileStats`, the kernels that took
longest, an event and a span for each compile. It must not know how compiling is done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import CancelledError
from types import MappingProxyType
from typing import Literal, NamedTuple

from tzero import locks, measure
from tzero.compile.request import Request
from tzero.events import Event, emit, watched

__all__ = ["Accounting", "CompileRun", "CompileStats", "Cost", "Layer", "Where"]

Layer = Literal["memory", "disk", "remote"]
Where = Literal["inline", "process", "thread", "executor"]


class CompileStats(NamedTuple):
    """Counts since the service was made.

    ::

        tzero.compile.service().stats().hits["disk"]
    """

    requests: int
    """All requests."""
    joined: int
    """Requests that joined a compile already in flight."""
    hits: Mapping[str, int]
    """Cache hits by layer: ``memory``, ``disk`` or ``remote``."""
    compiled: Mapping[str, int]
    """Successful compiles: ``inline`` in the caller, in a worker ``process``, on a ``thread``, or
    by an ``executor`` of the user's."""
    failed: int
    """Requests that ended in an error."""
    reloads: int
    """How often the main process read a kernel's source again to compile it itself."""
    seconds: float
    """Time spent compiling, summed over all workers."""


class Cost(NamedTuple):
    """Number of compiles of one kernel, and their total time.

    >>> print(Cost("add", 2, 0.5))
    add: 0.500 s in 2 compiles
    """

    kernel: str
    compiles: int
    seconds: float

    def __str__(self) -> str:
        noun = "compile" if self.compiles == 1 else "compiles"
        return f"{self.kernel}: {self.seconds:.3f} s in {self.compiles} {noun}"


class CompileRun(NamedTuple):
    """Where one compile ran, and when: start and end in nanoseconds of ``time.perf_counter_ns``.

    >>> CompileRun("process", 4711, 4711, 0, 2_500_000_000).seconds
    2.5
    """

    where: Where
    pid: int
    thread: int
    start: int
    end: int
    why: str = ""
    """Why it ran there, if that is not the default place."""

    @property
    def seconds(self) -> float:
        """Duration."""
        return (self.end - self.start) / 1e9


class Accounting:
    """Counters of one service.

    >>> accounting = Accounting()
    >>> accounting.requested(joined=True)
    >>> accounting.stats().joined
    1
    """

    def __init__(self) -> None:
        self._lock = locks.lock()  # protects everything below
        self._counts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._compiled: Counter[str] = Counter()
        self._costs: dict[str, tuple[int, int]] = {}  # compiles and nanoseconds, by kernel

    def requested(self, joined: bool = False) -> None:
        """Count a request, and whether it joined another."""
        with self._lock:
            self._counts["requests"] += 1
            self._counts["joined"] += joined

    def reloaded(self) -> None:
        """Count a kernel whose source the main process read again."""
        with self._lock:
            self._counts["reloads"] += 1

    def hit(self, request: Request, layer: Layer) -> None:
        """Count a cache hit; emit an event if someone watches."""
        with self._lock:
            self._hits[layer] += 1
        if watched():
            facts = {"digest": request.digest, "backend": request.backend, "layer": layer}
            event = Event("cache", request.name, f"layer={layer}", MappingProxyType(facts))
            emit(event, logging.DEBUG)

    def compiled(self, request: Request, run: CompileRun) -> None:
        """Count a successful compile, and emit its event."""
        with self._lock:
            self._compiled[run.where] += 1
            compiles, before = self._costs.get(request.name, (0, 0))
            self._costs[request.name] = (compiles + 1, before + run.end - run.start)
        self._emit(request, run, "")

    def failed(self, request: Request, error: BaseException, run: CompileRun | None = None) -> None:
        """Count a failed request, and emit its event. ``run`` is None if it never started."""
        with self._lock:
            self._counts["failed"] += 1
        # Ctrl-C and shutdown cancel many jobs at once: a warning for each would be noise.
        level = logging.DEBUG if isinstance(error, CancelledError) else None
        self._emit(request, run, f"{type(error).__name__}: {error}".partition("\n")[0], level)

    def _emit(
        self, request: Request, run: CompileRun | None, problem: str, level: int | None = None
    ) -> None:
        facts: dict[str, object] = {"digest": request.digest, "backend": request.backend}
        if run is not None:
            facts |= {"where": run.where, "pid": run.pid, "seconds": round(run.seconds, 6)}
            if run.why:
                facts["why"] = run.why
            record = measure.active()
            if record is not None:
                times = run.start, run.end, run.thread, run.pid
                record.add(measure.Span("compile", request.name, *times))
        facts["layer"] = "compiled" if not problem else "none"
        if problem:
            facts["problem"] = problem
        line = " ".join(f"{key}={_quoted(value)}" for key, value in facts.items())
        emit(Event("compile", request.name, line, MappingProxyType(facts)), level)

    def stats(self) -> CompileStats:
        """Return the counts so far."""
        with self._lock:
            return CompileStats(
                requests=self._counts["requests"],
                joined=self._counts["joined"],
                hits={layer: self._hits[layer] for layer in ("memory", "disk", "remote")},
                compiled={
                    where: self._compiled[where]
                    for where in ("inline", "process", "thread", "executor")
                },
                failed=self._counts["failed"],
                reloads=self._counts["reloads"],
                seconds=sum(taken for _, taken in self._costs.values()) / 1e9,
            )

    def top(self, count: int) -> list[Cost]:
        """Return the kernels that took longest, longest first."""
        with self._lock:
            costs = [Cost(name, n, taken / 1e9) for name, (n, taken) in self._costs.items()]
        return sorted(costs, key=lambda cost: -cost.seconds)[:count]


def _quoted(value: object) -> str:
    """A value as one field of a log line; quoted if it has spaces."""
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c == '"' for c in text) else text
