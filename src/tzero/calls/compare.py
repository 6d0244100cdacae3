"""Runs a program and times each of its kernels with and without tzero, for `tzero bench`.

::

    program ── run, observe misses and launches ──► kernels, each with a copy of its arguments
                                        └─ called without and with tzero, alternating ──► rows

Enters: a program. Leaves: a row for each kernel: what a call costs without and with tzero. It must
not know how calls are made. Arguments are copied, so that kernels that work in place do not change
those of the program.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from tzero import events
from tzero.adapters import triton_entries
from tzero.calls.kernel import Kernel
from tzero.counts import Count
from tzero.errors import UnsupportedType
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.launches.tiers import tier
from tzero.tune.copying import copies

__all__ = ["Row", "Seen", "compare", "watch"]

ROUNDS = 9
SAMPLE = 5e-3
MOST_CALLS = 200
"""The most calls in a sample, so that a device's queue is never full."""

Call = Callable[[], object]
Switch = Callable[[bool], None]


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

    def share(self, seconds: float) -> float | None:
        """Which part of a run of so many seconds without tzero its calls take.

        >>> Row("add", 100, 20.0, 2.0, "replayed natively").share(0.01)
        0.2
        """
        if self.calls is None or self.before is None or not seconds:
            return None
        return self.calls * self.before / 1e6 / seconds


@dataclass(slots=True)
class Seen:
    """A kernel that the program called: one of tzero's, or one of Triton's with what is around
    it."""

    kernel: Any
    facts: Any
    """A copy of the arguments of a call; the error if they cannot be copied."""
    launches: Count = field(default_factory=Count)
    """How often one of Triton's was launched."""


def watch(run: Call) -> list[Seen]:
    """Run a program; returns the kernels it called, each with its arguments.

    ::

        watch(lambda: program.run("train.py", ["--steps", "3"]))
    """
    seen: dict[int, Seen] = {}

    def keep(kernel: Any, facts: Mapping[str, Any]) -> Seen:
        """Keep a copy of the first arguments that can be copied: the program may change or free
        its own."""
        known = seen.get(id(kernel))
        if known is not None and not isinstance(known.facts, Exception):
            return known
        try:
            copied = copies(facts)
        except (UnsupportedType, torch.OutOfMemoryError) as error:  # must not disturb the program
            copied = error
        if known is None:
            known = seen[id(kernel)] = Seen(kernel, copied)
        known.facts = copied
        return known

    def note(event: events.Event) -> None:
        kernel = event.facts.get("kernel")
        if event.kind not in ("miss", "fallback") or kernel is None:
            return
        if isinstance(kernel, Kernel) and kernel.candidate:  # made by a search
            return
        if isinstance(kernel, Kernel) or current.call is None:  # not a launch inside a kernel
            keep(kernel, {name: each for name, each in event.facts.items() if name != "kernel"})

    def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if current.call is None and not isinstance(kernel, PythonJit):
            keep(kernel, {"grid": grid, "args": args, "kwargs": dict(kwargs)}).launches.add()

    with ExitStack() as stack:
        stack.enter_context(events.observe(note))
        stack.enter_context(triton_entries.subscripted(launch))
        run()
    return list(seen.values())


def compare(seen: Sequence[Seen]) -> list[Row]:
    """Time each kernel without and with tzero, alternating. Afterwards Triton launches its own
    kernels.

    ::

        compare(watch(lambda: program.run("train.py", [])))
    """
    rows = []
    for each in seen:
        kernel, facts = each.kernel, each.facts
        _launch_natively(False)
        name = kernel.name if isinstance(kernel, Kernel) else f"{_name_of(kernel)}[grid]"
        calls = (
            kernel.stats().calls if isinstance(kernel, Kernel) else each.launches.value()
        ) or None
        if isinstance(facts, Exception):
            rows.append(Row(name, calls, None, None, f"not timed: {facts}"))
        elif isinstance(kernel, Kernel):
            take = functools.partial(_of_kernel, kernel, facts["args"])
            rows.append(_row(name, calls, take))
        elif isinstance(kernel, PythonJit):
            rows.append(_row(name, calls, functools.partial(_of_launch, kernel, **facts)))
        else:
            rows.append(_row(name, calls, functools.partial(_of_installed, kernel, **facts)))
    _launch_natively(False)
    return rows


def _launch_natively(on: bool) -> None:
    """Have native code launch Triton's own kernels, or Triton. Helion's integration stays."""
    if tier() < 2:
        return
    from tzero import _native
    from tzero.launches import beside

    if on:
        beside.everywhere(_native, lambda kernel: True)
    else:
        beside.nowhere(_native)


def _name_of(kernel: Any) -> str:
    return str(_function_of(kernel).__name__)


def _function_of(kernel: Any) -> Any:
    """The kernel inside autotuners and heuristics."""
    while not isinstance(kernel, triton.JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


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


def _of_installed(kernel: Any, grid: Any, args: Any, kwargs: Any) -> tuple[float, float, str]:
    def launch() -> None:
        kernel[grid](*args, **kwargs)

    _launch_natively(True)
    launch()
    earlier = _launches_of(kernel)
    before, after = _times(launch, functools.partial(launch), _launch_natively)
    found = _launches_of(kernel)
    if found is None or earlier is None:
        return before, after, "Triton launches: tzero has no native code, or is at a lower tier"
    if found.native - earlier.native > (found.launches - earlier.launches) / 2:
        return before, after, "native"
    reasons = [why for why in found.left if why and found.left[why] > earlier.left.get(why, 0)]
    return before, after, f"Triton launches: {', '.join(reasons) or 'something sees each launch'}"


def _launches_of(kernel: Any) -> Any:
    if tier() < 2:
        return None
    from tzero.launches import counted

    function = _function_of(kernel)
    return next((each for each in counted.launched() if each.kernel is function), None)


def _times(before: Call, after: Call, switch: Switch | None = None) -> tuple[float, float]:
    """Microseconds a call: the best samples of both, taken alternately, because what else the
    machine does only adds to them. `switch` is told whether `after` comes next."""
    found: dict[Call, list[float]] = {before: [], after: []}
    counts = {}

    def turn_to(call: Call) -> None:
        if switch is not None:
            switch(call is after)
            call()

    for call in found:
        turn_to(call)
        for _ in range(3):  # compile, record, replay
            call()
        counts[call] = max(1, min(MOST_CALLS, int(SAMPLE / max(_sample(call, 3), 1e-9))))
    for _ in range(ROUNDS):
        for call, times in found.items():
            turn_to(call)
            times.append(_sample(call, counts[call]))
    return min(found[before]) * 1e6, min(found[after]) * 1e6


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
