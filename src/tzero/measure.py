"""How long each stage of a call takes, as a table and as a trace.

Enters: stages, as the code passes through them, and times that native code notes of its calls.
Leaves: a table, and a trace that Perfetto opens. It must not know what a stage means. A caller on a
hot path calls `active` once; while nothing is recorded, that is the only cost. Native code finds
the open record in `_open`.

    >>> with recording() as record:
    ...     with record.stage("bind", "add"):
    ...         pass
    >>> record.count("bind", "add")
    1
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from tzero import locks
from tzero.shown import in_cells

__all__ = ["Record", "Span", "active", "nanoseconds", "recording"]


class Span(NamedTuple):
    """One run of a stage, in nanoseconds of a monotonic clock.

    >>> Span("bind", "add", 5, 9, 1).nanoseconds
    4
    """

    stage: str
    kernel: str
    start: int
    end: int
    thread: int
    process: int = 0
    """The process it ran in; 0 is the recording one. All processes share the clock."""

    @property
    def nanoseconds(self) -> int:
        """How long it took."""
        return self.end - self.start


_END = attrgetter("end")


class Timestamps(Protocol):
    """Times that native code has noted of the calls it made."""

    @property
    def dropped(self) -> int:
        """How many calls found no room."""
        ...

    def take(self) -> list[tuple[str, str, int, int, int]]:
        """The spans since the last time, which are forgotten: the first five fields of each."""
        ...


class Record:
    """The spans of all threads while it was open. It prints as a table.

    >>> with recording() as record, record.stage("bind", "add"):
    ...     pass
    >>> print(record)  # doctest: +ELLIPSIS
    kernel  stage  times  total µs  median µs
    add     bind       1 ...
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []  # only appended to, which is atomic; this one too:
        self._native: list[Span] = []
        self.timestamps: Timestamps | None = None
        """Set by native code, when it makes the first call while this record is open."""

    @property
    def spans(self) -> list[Span]:
        """All spans so far, in the order in which they ended."""
        if self.timestamps is not None:
            self._native += [Span(*each) for each in self.timestamps.take()]
        return sorted([*self._spans, *self._native], key=_END)

    @property
    def dropped(self) -> int:
        """How many calls are missing, because native code had no room to note more. Reading
        `spans` makes room."""
        return 0 if self.timestamps is None else self.timestamps.dropped

    @contextmanager
    def stage(self, name: str, kernel: str) -> Iterator[None]:
        """Time a block, also if it raises."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._spans.append(Span(name, kernel, start, end, threading.get_ident()))

    def add(self, span: Span) -> None:
        """Add a span that was timed elsewhere, such as in a worker process."""
        self._spans.append(span)

    def count(self, stage: str, kernel: str) -> int:
        """How often a stage ran for a kernel."""
        return sum(s.stage == stage and s.kernel == kernel for s in self.spans)

    _repr_pretty_ = in_cells

    def __repr__(self) -> str:
        return f"<Record of {len(self.spans)} spans>"

    def __str__(self) -> str:
        rows = [("kernel", "stage", "times", "total µs", "median µs")]
        groups: dict[tuple[str, str], list[int]] = {}
        for span in self.spans:
            groups.setdefault((span.kernel, span.stage), []).append(span.nanoseconds)
        for (kernel, stage), times in groups.items():
            middle = sorted(times)[len(times) // 2]
            total = sum(times)
            rows.append(
                (kernel, stage, str(len(times)), f"{total / 1e3:.1f}", f"{middle / 1e3:.2f}")
            )
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = []
        for row in rows:
            cells = [row[k].ljust(widths[k]) for k in (0, 1)]
            cells += [row[k].rjust(widths[k]) for k in (2, 3, 4)]
            lines.append("  ".join(cells).rstrip())
        if self.dropped:
            lines.append(f"{self.dropped} more calls found no room; read spans more often")
        return "\n".join(lines)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the spans as a trace file, which ui.perfetto.dev and Chrome open."""
        spans = self.spans
        events = [
            {
                "name": span.stage,
                "cat": span.kernel,
                "ph": "X",
                "ts": span.start / 1e3,
                "dur": span.nanoseconds / 1e3,
                "pid": span.process or os.getpid(),
                "tid": span.thread,
                "args": {"kernel": span.kernel},
            }
            for span in spans
        ]
        others = {span.process for span in spans} - {0, os.getpid()}
        events += [
            {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "tzero worker"}}
            for pid in sorted(others)
        ]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
        Path(path).write_text(text, encoding="utf-8")


SAMPLE = 100_000
"""About how many nanoseconds a sample of `nanoseconds` takes. Read at each measurement."""


def nanoseconds(call: Callable[[], object]) -> float:
    """How many nanoseconds a call takes: the best of five samples, each of at least one call and
    about `SAMPLE` nanoseconds.

    >>> nanoseconds(lambda: None) > 0
    True
    """
    start = time.perf_counter_ns()
    call()
    once = time.perf_counter_ns() - start
    times = max(1, SAMPLE // max(1, once))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter_ns() - start) / times)
    return best


_change = locks.lock()  # protects writes to `_open`; reads take no lock
_open: tuple[Record | None, ...] = (None,)
"""None, and then the open records in the order they were opened. Threads may close them in any
order, so each is removed by identity."""


def active() -> Record | None:
    """The open record that was opened last, if any.

    >>> active() is None
    True
    """
    return _open[-1]


@contextmanager
def recording() -> Iterator[Record]:
    """Record the stages of all calls on all threads until the block ends. Blocks may nest, and may
    overlap in several threads; the one that was opened last records.

    >>> with recording() as record:
    ...     active() is record
    True
    """
    global _open
    record = Record()
    with _change:
        _open = (*_open, record)
    try:
        yield record
    finally:
        with _change:
            _open = tuple(each for each in _open if each is not record)
