"""Runs a program and times each of its kernels with and without tzero, for `tzero bench`.

::

    program ── run, observe misses and launches ──► kernels, each with a copy of its arguments
                  after its end, each in a process of its own, where that can be forked
                                        └─ called without and with tzero, alternating ──► rows

Enters: a program. Leaves: a row for each kernel: what a call costs without and with tzero. It must
not know how calls are made. Arguments are copied, so that kernels that work in place do not change
those of the program. A copy may hold addresses of memory that the program has freed, or wait for
what another kernel writes: such a call may crash or never end, which then is said in its row.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import triton

from tzero import events
from tzero.adapters import triton_entries
from tzero.adapters.triton_timing import tuner_of
from tzero.calls.kernel import Kernel
from tzero.counts import Count
from tzero.errors import UnsupportedType
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.launches.tiers import tier
from tzero.tune.copying import copies

__all__ = ["Row", "Seen", "compare", "ended_while_timed", "watch"]

ROUNDS = 9
SAMPLE = 5e-3
PATIENCE = 60.0
"""Seconds that a kernel may take to be timed in a process of its own."""
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
    left: int | None = None
    """How often, in another way than ``kernel[grid](...)``; then `kernel` is its `Launches`."""


def watch(run: Call, into: list[Seen]) -> None:
    """Run a program, and append the kernels it called, each with its arguments.

    ::

        watch(lambda: program.run("train.py", ["--steps", "3"]), seen)
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
        stack.enter_context(events.observe(note, calls=False))
        stack.enter_context(triton_entries.subscripted(launch))
        run()
    into += [*seen.values(), *_others(list(seen.values()))]


def _others(seen: Sequence[Seen]) -> Iterator[Seen]:
    """Kernels that the program launched in another way than ``kernel[grid](...)``, so that their
    arguments are not known. There are none in a program with kernels of tzero's or Helion's, whose
    launches are part of the calls of these."""
    if tier() < 2 or any(isinstance(each.kernel, (Kernel, PythonJit)) for each in seen):
        return
    from tzero.launches.counted import launched

    counted = {id(_function_of(each.kernel)): each.launches.value() for each in seen}
    # The search of an autotuner launches in another way too.
    tuned = {id(_function_of(each.kernel)) for each in seen if tuner_of(each.kernel) is not None}
    for each in launched():
        known = id(each.kernel)
        left = each.launches - counted.get(known, 0)
        if left > 0 and (each.kernel is None or known not in tuned):
            yield Seen(each, None, left=left)


Told = Callable[[Sequence[Row]], object]


def compare(seen: Sequence[Seen], tell: Told) -> None:
    """Time each kernel without and with tzero, alternating. The rows so far are told whenever there
    is a new one, and before a call that may end this process. Afterwards Triton launches its own
    kernels.

    ::

        compare(seen, print)
    """
    rows = [_untimed(each) for each in seen]
    tell(rows)
    for at, each in enumerate(seen):
        if rows[at].how:  # it is not timed
            continue
        if isinstance(each.kernel, Kernel) or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            continue
        rows[at] = _apart(each, rows[at])
        tell(rows)
    for at, each in enumerate(seen):
        if not rows[at].how:
            rows[at] = replace(rows[at], how=_PENDING)
            tell(rows)
            rows[at] = _row(each, rows[at])
            tell(rows)
    _launch_natively(False)


_PENDING = "is called alone"


def ended_while_timed(rows: Sequence[Row], status: int) -> list[Row]:
    """The rows of a process that has ended with this status.

    >>> ended_while_timed([Row("add", 1, None, None, "")], 139)[0].how
    'not timed: the process ended before, with status 139'
    """
    words = {
        "": f"not timed: the process ended before, with status {status}",
        _PENDING: f"could not be timed alone: the process ended with status {status}",
    }
    return [replace(row, how=words.get(row.how, row.how)) for row in rows]


def _untimed(seen: Seen) -> Row:
    """The row of a kernel that is not timed yet, without words, or cannot be, with the reason."""
    kernel = seen.kernel
    if seen.left is not None:
        reasons = [why for why in kernel.left if why]
        how = (
            f"Triton launches: {', '.join(reasons)}" if kernel.native <= seen.left / 2 else "native"
        )
        words = f"{how}; launched without [grid], so not timed alone"
        return Row(kernel.name, seen.left, None, kernel.microseconds, words)
    if isinstance(kernel, Kernel):
        row = Row(kernel.name, kernel.stats().calls or None, None, None, "")
    else:
        row = Row(f"{_name_of(kernel)}[grid]", seen.launches.value() or None, None, None, "")
    failed = isinstance(seen.facts, Exception)
    return replace(row, how=f"not timed: {seen.facts}") if failed else row


def _apart(seen: Seen, row: Row) -> Row:
    """The row of a kernel that is timed in a forked process."""
    with tempfile.TemporaryFile() as found:
        with warnings.catch_warnings(action="ignore"):  # there may be threads
            pid = os.fork()
        if pid == 0:
            try:
                found.write(json.dumps(asdict(_row(seen, row))).encode())
                found.flush()
            finally:
                os._exit(0)
        ended = os.pidfd_open(pid)
        try:
            is_late = not select.select([ended], [], [], PATIENCE)[0]
            if is_late:
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            os.close(ended)
        found.seek(0)
        text = found.read()
    if text and not is_late:
        return Row(**json.loads(text))
    why = f"a call ends with status {128 - code if code < 0 else code}"
    if is_late:
        why = f"that takes more than {PATIENCE} s"
    return replace(row, how=f"could not be timed alone: {why}")


def _row(seen: Seen, row: Row) -> Row:
    """The row of a kernel that is timed here."""
    kernel, facts = seen.kernel, seen.facts
    _launch_natively(False)
    try:
        if isinstance(kernel, Kernel):
            found = _of_kernel(kernel, facts["args"])
        elif isinstance(kernel, PythonJit):
            found = _of_launch(kernel, **facts)
        else:
            found = _of_installed(kernel, **facts)
    except Exception as error:  # it may have failed in the program too, which caught it
        words = (str(error).splitlines() or [""])[0]
        return replace(row, how=f"a call fails: {type(error).__name__}: {words}")
    before, after, how = found
    return replace(row, before=before, after=after, how=how)


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
