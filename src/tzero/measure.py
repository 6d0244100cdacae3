"""Where the time of calls goes, stage by stage; free when nobody asks.

Enters: stages, as the code passes through them. Leaves: a table, and a trace that Perfetto opens.
It must not know what a stage means. A caller on a hot path asks `active` once; while nothing is
recorded that is all it pays.

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
from pathlib import Path
from typing import NamedTuple

__all__ = ["Record", "Span", "active", "nanoseconds", "recording"]


class Span(NamedTuple):
    """One passage through a stage, in nanoseconds of a monotonic clock.

    >>> Span("bind", "add", 5, 9, 1).nanoseconds
    4
    """

    stage: str
    kernel: str
    start: int
    end: int
    thread: int
    process: int = 0
    """The process it ran in; 0 is the one that records. The clock is one for all of them."""

    @property
    def nanoseconds(self) -> int:
        """How long it took."""
        return self.end - self.start


class Record:
    """Everything that happened while it was open, on every thread.

    ::

        with tzero.measure.recording() as record:
            add(x, y)
        print(record)
        record.write_trace("trace.json")   # open it at ui.perfetto.dev
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []  # appending is atomic; nothing else changes it

    @contextmanager
    def stage(self, name: str, kernel: str) -> Iterator[None]:
        """Time a block; it counts also when it raises."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self.spans.append(Span(name, kernel, start, end, threading.get_ident()))

    def add(self, span: Span) -> None:
        """Take a span that was timed elsewhere, such as in a worker process."""
        self.spans.append(span)

    def count(self, stage: str, kernel: str) -> int:
        """How often a kernel passed through a stage."""
        return sum(s.stage == stage and s.kernel == kernel for s in list(self.spans))

    def __str__(self) -> str:
        rows = [("kernel", "stage", "times", "total µs", "median µs")]
        groups: dict[tuple[str, str], list[int]] = {}
        for span in list(self.spans):
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
            words = [row[k].ljust(widths[k]) for k in (0, 1)]
            words += [row[k].rjust(widths[k]) for k in (2, 3, 4)]
            lines.append("  ".join(words).rstrip())
        return "\n".join(lines)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the spans as a trace in the form that Perfetto and Chrome open."""
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
            for span in list(self.spans)
        ]
        others = {span.process for span in list(self.spans)} - {0, os.getpid()}
        events += [
            {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "tzero worker"}}
            for pid in sorted(others)
        ]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
        Path(path).write_text(text, encoding="utf-8")


def nanoseconds(call: Callable[[], object]) -> float:
    """What a call takes, at best of five samples of a tenth of a millisecond or one call.

    >>> nanoseconds(lambda: None) > 0
    True
    """
    start = time.perf_counter_ns()
    call()
    once = time.perf_counter_ns() - start
    times = max(1, 100_000 // max(1, once))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter_ns() - start) / times)
    return best


_change = threading.Lock()  # protects replacing `_open`; reading it takes none
_open: tuple[Record | None, ...] = (None,)
"""Every record that is open, in the order they were opened, behind a None for when there is none.
Threads may close theirs in another order, so each is removed by identity."""


def active() -> Record | None:
    """The record that was opened last and is still open, if one is.

    >>> active() is None
    True
    """
    return _open[-1]


@contextmanager
def recording() -> Iterator[Record]:
    """Record the stages of every call on every thread, until the block ends. Blocks nest and, on
    several threads, overlap; the one that was opened last records.

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
