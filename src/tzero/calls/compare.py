"""What tzero saves a program: the program is run, and each of its kernels is timed both ways.

::

    script ── run, misses watched ──► kernels, each with arguments of its own
                                        └─ called without tzero, and with it, in turns ──► rows

Enters: a script and its arguments. Leaves: a row for each kernel: what a call costs without tzero
and with it. It must not know how calls are made. The arguments are copies, so that kernels which
work in place leave those of the program alone.
"""

from __future__ import annotations

import contextlib
import functools
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from tzero import events
from tzero.calls.kernel import Kernel
from tzero.errors import UnsupportedType
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.tune.copying import copies

__all__ = ["Row", "compare", "watch"]

ROUNDS = 9
SAMPLE = 5e-3
MOST_CALLS = 200
"""Calls in a sample, so that a device's queue is never full."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: microseconds a call, without tzero and with it, and how it is served.

    >>> Row("add", 100, 20.0, 2.0, "replayed natively").times
    10.0
    """

    kernel: str
    calls: int | None
    """How often the program called it, where that is known."""
    before: float | None
    """Both are None where a call fails, or is not made."""
    after: float | None
    how: str

    @property
    def times(self) -> float | None:
        """How many times cheaper a call is."""
        return None if self.before is None or self.after is None else self.before / self.after


def watch(script: str, arguments: Sequence[str]) -> list[tuple[Any, Any]]:
    """Run a script as a program, and say which kernels it called, each with how.

    ::

        watch("train.py", ["--steps", "3"])
    """
    seen: dict[int, tuple[Any, Any]] = {}

    def note(event: events.Event) -> None:
        kernel = event.facts.get("kernel")
        if event.kind not in ("miss", "refusal") or kernel is None:
            return
        if isinstance(kernel, Kernel) and kernel.candidate:  # a search's, not the program's
            return
        known = seen.get(id(kernel))
        if known is not None and not isinstance(known[1], UnsupportedType):
            return
        if isinstance(kernel, Kernel) or current.call is None:  # launches in kernels are theirs
            # Copied now: a program may change or free what it passes.
            facts = {name: each for name, each in event.facts.items() if name != "kernel"}
            try:
                seen[id(kernel)] = kernel, copies(facts)
            except UnsupportedType as error:  # the program may go on with it, and does
                seen[id(kernel)] = kernel, error

    with _as_program(script, arguments), events.observe(note):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
    return list(seen.values())


@contextlib.contextmanager
def _as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def compare(seen: Sequence[tuple[Any, Any]]) -> list[Row]:
    """Time each kernel both ways, in turns.

    ::

        compare(watch("train.py", []))
    """
    rows = []
    for kernel, facts in seen:
        name = kernel.name if isinstance(kernel, Kernel) else f"{kernel.__name__}[grid]"
        if isinstance(facts, UnsupportedType):
            rows.append(Row(name, None, None, None, f"not timed: {facts}"))
        elif isinstance(kernel, Kernel):
            calls = kernel.stats().calls or None  # those that were left to others are not counted
            take = functools.partial(_of_kernel, kernel, facts["args"])
            rows.append(_row(name, calls, take))
        elif isinstance(kernel, PythonJit):
            take = functools.partial(_of_launch, kernel, **facts)
            rows.append(_row(name, None, take))
    return rows


def _row(name: str, calls: int | None, take: Callable[[], tuple[float, float, str]]) -> Row:
    try:
        return Row(name, calls, *take())
    except Exception as error:  # as it may have in the program, which went on
        words = (str(error).splitlines() or [""])[0]
        return Row(name, calls, None, None, f"a call fails: {type(error).__name__}: {words}")


def _of_kernel(kernel: Kernel[Any], args: tuple[Any, ...]) -> tuple[float, float, str]:
    before, after = _times(kernel.plain(args), functools.partial(kernel, *args))
    found = kernel.explain(*args)
    how = found.refusal or str(found).splitlines()[0].partition(", ")[2].partition(" (")[0]
    return before, after, how


def _of_launch(kernel: PythonJit, grid: Any, args: Any, kwargs: Any) -> tuple[float, float, str]:
    plain = triton.jit(kernel.fn)
    before, after = _times(
        lambda: plain[grid](*args, **kwargs), lambda: kernel[grid](*args, **kwargs)
    )
    return before, after, "tzero.jit"


def _times(before: Call, after: Call) -> tuple[float, float]:
    """Microseconds a call: the medians of both, sampled in turns."""
    found: dict[Call, list[float]] = {before: [], after: []}
    counts = {}
    for call in found:
        for _ in range(3):  # compiled, recorded, replayed
            call()
        counts[call] = max(1, min(MOST_CALLS, int(SAMPLE / max(_sample(call, 3), 1e-9))))
    for _ in range(ROUNDS):
        for call, times in found.items():
            times.append(_sample(call, counts[call]))
    return statistics.median(found[before]) * 1e6, statistics.median(found[after]) * 1e6


def _sample(call: Call, calls: int) -> float:
    """Seconds that the caller spends on a call; a device finishes untimed."""
    _settle()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = time.perf_counter() - start
    _settle()
    return taken / calls


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
