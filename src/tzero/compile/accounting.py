"""What compiling has cost: counters, seconds by kernel, and a line for each compile.

Enters: what the service did, as it does it. Leaves: `CompileStats`, the kernels that took longest,
an event and a span for each compile. It must not know how compiling is done.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tzero import measure
from tzero.compile.request import Request
from tzero.events import Event, emit, watched

__all__ = ["Book", "CompileStats", "Cost", "Done", "Layer", "Where"]

Layer = Literal["memory", "disk", "remote"]
Where = Literal["inline", "process", "thread"]


@dataclass(frozen=True, slots=True)
class CompileStats:
    """Counts since the service was made.

    ::

        tzero.compile.service().stats().hits["disk"]
    """

    requests: int
    """What was asked for, in all."""
    joined: int
    """Requests for what was being compiled already."""
    hits: Mapping[str, int]
    """Requests that a cache met: ``memory``, ``disk`` or ``remote``."""
    compiled: Mapping[str, int]
    """Compiles that succeeded: ``inline``, or in a ``process`` or ``thread`` beside the caller."""
    failed: int
    """Requests that ended in an error."""
    reloads: int
    """How often the main process had to read a kernel's source again to compile it itself."""
    seconds: float
    """Time spent compiling, all workers together."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kernel has cost.

    >>> print(Cost("add", 2, 0.5))
    add: 0.500 s in 2 compiles
    """

    kernel: str
    compiles: int
    seconds: float

    def __str__(self) -> str:
        many = "compile" if self.compiles == 1 else "compiles"
        return f"{self.kernel}: {self.seconds:.3f} s in {self.compiles} {many}"


@dataclass(frozen=True, slots=True)
class Done:
    """One compile that is over: where it ran, and from when to when on the monotonic clock.

    >>> Done("process", 4711, 4711, 0, 2_500_000_000).seconds
    2.5
    """

    where: Where
    pid: int
    thread: int
    start: int
    end: int
    why: str = ""
    """Why it ran there, where that was not the usual thing."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) / 1e9


class Book:
    """Where the service writes down what it does.

    >>> book = Book()
    >>> book.asked()
    >>> book.stats().requests
    1
    """

    def __init__(self) -> None:
        self._change = threading.Lock()  # protects all below
        self._counts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._compiled: Counter[str] = Counter()
        self._costs: dict[str, tuple[int, int]] = {}  # compiles and nanoseconds, by kernel

    def asked(self, joined: bool = False) -> None:
        """Note a request, and whether it joined another."""
        with self._change:
            self._counts["requests"] += 1
            self._counts["joined"] += joined

    def reloaded(self) -> None:
        """Note that the main process read a kernel's source again."""
        with self._change:
            self._counts["reloads"] += 1

    def hit(self, request: Request, layer: Layer) -> None:
        """Note a request that a cache met, and tell of it where someone listens."""
        with self._change:
            self._hits[layer] += 1
        if watched():
            facts = {"digest": request.digest, "backend": request.backend, "layer": layer}
            found = Event("cache", request.name, f"layer={layer}", MappingProxyType(facts))
            emit(found, logging.DEBUG)

    def compiled(self, request: Request, done: Done) -> None:
        """Note a compile that succeeded, and tell of it."""
        with self._change:
            self._compiled[done.where] += 1
            compiles, before = self._costs.get(request.name, (0, 0))
            self._costs[request.name] = (compiles + 1, before + done.end - done.start)
        self._tell(request, done, "")

    def failed(self, request: Request, error: BaseException, done: Done | None = None) -> None:
        """Note a request that ended in an error, and tell of it; ``done`` where it was begun."""
        with self._change:
            self._counts["failed"] += 1
        # Ctrl-C and shutdown stop many at once, and nobody is left to wonder why.
        level = logging.DEBUG if isinstance(error, CancelledError) else None
        self._tell(request, done, f"{type(error).__name__}: {error}".partition("\n")[0], level)

    def _tell(
        self, request: Request, done: Done | None, problem: str, level: int | None = None
    ) -> None:
        facts: dict[str, object] = {"digest": request.digest, "backend": request.backend}
        if done is not None:
            facts |= {"where": done.where, "pid": done.pid, "seconds": round(done.seconds, 6)}
            if done.why:
                facts["why"] = done.why
            record = measure.active()
            if record is not None:
                times = done.start, done.end, done.thread, done.pid
                record.add(measure.Span("compile", request.name, *times))
        facts["layer"] = "compiled" if not problem else "none"
        if problem:
            facts["problem"] = problem
        line = " ".join(f"{key}={_word(value)}" for key, value in facts.items())
        emit(Event("compile", request.name, line, MappingProxyType(facts)), level)

    def stats(self) -> CompileStats:
        """The counts so far."""
        with self._change:
            return CompileStats(
                requests=self._counts["requests"],
                joined=self._counts["joined"],
                hits={layer: self._hits[layer] for layer in ("memory", "disk", "remote")},
                compiled={
                    where: self._compiled[where] for where in ("inline", "process", "thread")
                },
                failed=self._counts["failed"],
                reloads=self._counts["reloads"],
                seconds=sum(taken for _, taken in self._costs.values()) / 1e9,
            )

    def top(self, count: int) -> list[Cost]:
        """The kernels that took longest, the longest first."""
        with self._change:
            costs = [Cost(name, n, taken / 1e9) for name, (n, taken) in self._costs.items()]
        return sorted(costs, key=lambda cost: -cost.seconds)[:count]


def _word(value: object) -> str:
    """A value as one word of a log line."""
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c == '"' for c in text) else text
