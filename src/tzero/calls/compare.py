"""`tzero bench`: runs a program and times each of its kernels with and without tzero.

::

    script ── run, observe misses ──► kernels, each with a copy of its arguments
                                        └─ called without and with tzero, alternating ──► rows

Enters: a script and its arguments. Leaves: a row for each kernel: what a call costs without and
with tzero. It must not know how calls are made. Arguments are copied, so that kernels that work in
place do not change those of the program.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from tzero import events
from tzero.calls import program
from tzero.calls.kernel import Kernel
from tzero.errors import UnsupportedType
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.tune.copying import copies

__all__ = ["Row", "compare", "watch"]

ROUNDS = 9
SAMPLE = 5e-3
MOST_CALLS = 200
"""The most calls in a sample, so that a device's queue is never full."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: microseconds a call without and with tzero, and how tzero makes the call.

    >>> Row("add", 100, 20.0, 2.0, "replayed natively").times
    10.0
    """

    kernel: str
    calls: int | None
    """How often the program called it, if known."""
    before: float | None
    """`before` and `after` are None if a call fails or cannot be made."""
    after: float | None
    how: str

    @property
    def times(self) -> float | None:
        """How many times cheaper a call is with tzero."""
        return None if self.before is None or self.after is None else self.before / self.after


def watch(script: str, arguments: Sequence[str]) -> list[tuple[Any, Any]]:
    """Run a script as a program; returns the kernels it called, each with its arguments.

    ::

        watch("train.py", ["--steps", "3"])
    """
    seen: dict[int, tuple[Any, Any]] = {}

    def note(event: events.Event) -> None:
        kernel = event.facts.get("kernel")
        if event.kind not in ("miss", "fallback") or kernel is None:
            return
        if isinstance(kernel, Kernel) and kernel.candidate:  # made by a search
            return
        known = seen.get(id(kernel))
        if known is not None and not isinstance(known[1], UnsupportedType):
            return
        if isinstance(kernel, Kernel) or current.call is None:  # not a launch inside a kernel
            # Copied now, because the program may change or free its arguments.
            facts = {name: each for name, each in event.facts.items() if name != "kernel"}
            try:
                seen[id(kernel)] = kernel, copies(facts)
            except UnsupportedType as error:  # must not disturb the program
                seen[id(kernel)] = kernel, error

    with events.observe(note):
        try:
            program.run(script, arguments)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
    return list(seen.values())


def compare(seen: Sequence[tuple[Any, Any]]) -> list[Row]:
    """Time each kernel without and with tzero, alternating.

    ::

        compare(watch("train.py", []))
    """
    rows = []
    for kernel, facts in seen:
        name = kernel.name if isinstance(kernel, Kernel) else f"{kernel.__name__}[grid]"
        if isinstance(facts, UnsupportedType):
            rows.append(Row(name, None, None, None, f"not timed: {facts}"))
        elif isinstance(kernel, Kernel):
            calls = kernel.stats().calls or None
            take = functools.partial(_of_kernel, kernel, facts["args"])
            rows.append(_row(name, calls, take))
        elif isinstance(kernel, PythonJit):
            take = functools.partial(_of_launch, kernel, **facts)
            rows.append(_row(name, None, take))
    return rows


def _row(name: str, calls: int | None, take: Callable[[], tuple[float, float, str]]) -> Row:
    try:
        return Row(name, calls, *take())
    except Exception as error:  # it may have failed in the program too, which caught it
        words = (str(error).splitlines() or [""])[0]
        return Row(name, calls, None, None, f"a call fails: {type(error).__name__}: {words}")


def _of_kernel(kernel: Kernel[..., Any], args: tuple[Any, ...]) -> tuple[float, float, str]:
    given, named = kernel.ordered.spread(args)
    called = functools.partial(kernel, *given, **named)
    before, after = _times(kernel.plain(*given, **named), called)
    found = kernel.explain(*given, **named)
    how = found.refusal or str(found).splitlines()[0].partition(", ")[2].partition(" (")[0]
    return before, after, how


def _of_launch(kernel: PythonJit, grid: Any, args: Any, kwargs: Any) -> tuple[float, float, str]:
    plain = triton.jit(kernel.fn)
    before, after = _times(
        lambda: plain[grid](*args, **kwargs), lambda: kernel[grid](*args, **kwargs)
    )
    return before, after, "tzero.jit"


def _times(before: Call, after: Call) -> tuple[float, float]:
    """Microseconds a call: the medians of both, sampled alternately."""
    found: dict[Call, list[float]] = {before: [], after: []}
    counts = {}
    for call in found:
        for _ in range(3):  # compile, record, replay
            call()
        counts[call] = max(1, min(MOST_CALLS, int(SAMPLE / max(_sample(call, 3), 1e-9))))
    for _ in range(ROUNDS):
        for call, times in found.items():
            times.append(_sample(call, counts[call]))
    return statistics.median(found[before]) * 1e6, statistics.median(found[after]) * 1e6


def _sample(call: Call, calls: int) -> float:
    """Seconds that the caller spends on a call; waiting for the device is not timed."""
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
