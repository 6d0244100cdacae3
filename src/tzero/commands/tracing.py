"""A `Run` as a trace, which ui.perfetto.dev and Chrome's about:tracing open.

    the program   one track for each thread: launches, calls and their stages, binaries
                  one for searches
    each worker   the compiles that ran in it

Enters: a `Run`. Leaves: the JSON of a trace. It must not know how the run was seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tzero.commands.record import Run

__all__ = ["trace", "write"]

PROGRAM = 1
"""The process id of the program in a trace; workers have their own."""

SEARCHES = 1_000_000
"""The thread id of the track with the searches."""


def write(run: Run, path: str | os.PathLike[str]) -> int:
    """Write a trace; returns how many events it has.

    ::

        write(Run.read("run.json"), "trace.json")
    """
    made = trace(run)
    Path(path).write_text(json.dumps(made), encoding="utf-8")
    return len(made["traceEvents"])


def trace(run: Run) -> dict[str, Any]:
    """The trace of a run, in the JSON format of trace events.

    >>> run = Run(("app.py",), 0, 1.5, "2026-11-18", {}, "the CPU")
    >>> [each["args"]["name"] for each in trace(run)["traceEvents"]]
    ['app.py']
    """
    about = {"command": " ".join(run.program), "machine": run.machine, **run.versions}
    return {"traceEvents": list(_events(run)), "displayTimeUnit": "ns", "otherData": about}


def _events(run: Run) -> Iterator[dict[str, Any]]:
    numbers: dict[int, int] = {}  # threads of the program, in the order in which they are met

    def thread(ident: int) -> int:
        return numbers.setdefault(ident, len(numbers) + 1)

    for span in sorted(run.spans, key=lambda each: (each.start, -each.end)):
        place = (span.process, span.thread) if span.process else (PROGRAM, thread(span.thread))
        name = span.kernel if span.stage in ("call", "launch") else f"{span.stage} {span.kernel}"
        args = {"stage": span.stage, "kernel": span.kernel}
        yield _span(name, span.stage, span.start, span.end, place, args)
    workers: set[int] = set()
    for each in run.compiles:
        if each.process and "worker" in each.where:
            workers.add(each.process)
            place = each.process, 1
        else:
            place = PROGRAM, thread(each.thread)
        args = {"kernel": each.kernel, "where": each.where}
        yield _span(f"binary of {each.kernel}", "compile", each.start, each.end, place, args)
    for search in run.searches:
        start, place = search.at - search.seconds, (PROGRAM, SEARCHES)
        timed = {one.config: one.seconds or one.problem for one in search.candidates}
        about = {"chosen": search.chosen, "why": search.why, "timed": timed}
        yield _span(f"config of {search.kernel}", "tune", start, search.at, place, about)
    for told in run.events:
        if told.kind in ("fallback", "miss", "cache"):
            name = f"{told.kind}: {told.kernel}"
            where: dict[str, Any] = {"pid": PROGRAM, "tid": 1, "s": "p", "ts": told.at * 1e6}
            args = {"reason": told.reason}
            yield {"name": name, "cat": told.kind, "ph": "i", **where, "args": args}
    yield from _names(run, numbers, workers)


def _span(
    name: str, kind: str, start: float, end: float, place: tuple[int, int], args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round((end - start) * 1e6, 3)}
    where = {"pid": place[0], "tid": place[1]}
    return {"name": name, "cat": kind, "ph": "X", **times, **where, "args": args}


def _names(run: Run, threads: dict[int, int], workers: set[int]) -> Iterator[dict[str, Any]]:
    """What processes and threads are called."""

    def named(kind: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
        return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}

    yield named("process_name", " ".join(run.program), PROGRAM)
    for number in threads.values():
        yield named("thread_name", f"thread {number}", PROGRAM, number)
    if run.searches:
        yield named("thread_name", "searches", PROGRAM, SEARCHES)
    for pid in sorted(workers):
        yield named("process_name", "compile worker", pid)
