"""`tzero bench`: what a program gains by tzero, as a whole and for each of its kernels.

::

    run 1  without tzero   its output is shown; it compiles, and is not counted
    run 2  with            watched; after its end each kernel is timed without and with tzero
                                                                                      ──► rows
    then   without, with, without, with, ...  nothing is watched                      ──► seconds

Enters: a script or the name of a module, and its arguments. Leaves: a `Measured`. It must not know
how it is printed. Each run is a process of its own (see `runs`).
"""

from __future__ import annotations

import atexit
import functools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tzero import settings
from tzero.adapters import triton_timing
from tzero.api.install import install
from tzero.api.runs import Ended, Input, Tell, Work, run
from tzero.calls import program
from tzero.calls.compare import Row, Seen, compare, ended_while_timed, watch

__all__ = ["Failed", "Measured", "Program", "measure"]

SECONDS = 30.0
"""About how long all runs that are counted may take."""
MOST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class Program:
    """A program as it is given on a command line.

    >>> Program("train.py", ["--steps", "3"]).is_module
    False
    """

    target: str
    arguments: list[str]
    is_module: bool = False

    def status(self) -> int:
        """Run it here."""
        return program.status_of(self.target, self.arguments, is_module=self.is_module)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program gains. The lists have the seconds of each run, in the order of the runs.

    >>> Measured([], [2.0, 3.0, 2.2], [1.0, 1.1, 1.3]).times
    2.0
    """

    rows: list[Row]
    without: list[float] = field(default_factory=list)
    with_tzero: list[float] = field(default_factory=list)
    tuned_without: list[float] = field(default_factory=list)
    """How much of each run Triton's autotuners spent on trials of configs."""
    tuned_with: list[float] = field(default_factory=list)

    @property
    def times(self) -> float | None:
        """How many times faster the whole program is, by the medians."""
        if not self.without or not self.with_tzero:
            return None
        return statistics.median(self.without) / statistics.median(self.with_tzero)

    @property
    def times_besides(self) -> float | None:
        """How many times faster it is besides the trials of autotuners, by the medians; None where
        there are none."""
        if not any((*self.tuned_without, *self.tuned_with)):
            return None
        one, other = (
            statistics.median([whole - part for whole, part in zip(*both, strict=True)])
            for both in (
                (self.without, self.tuned_without),
                (self.with_tzero, self.tuned_with),
            )
        )
        return one / other if one > 0 and other > 0 else None

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        seconds = statistics.median(self.without) if self.without else 0.0
        rows = [
            {**asdict(row), "times": row.times, "share": row.share(seconds)} for row in self.rows
        ]
        whole = {"without": self.without, "with": self.with_tzero, "times": self.times}
        tuned = {"without": self.tuned_without, "with": self.tuned_with}
        trials = {**tuned, "times_besides": self.times_besides}
        return {"kernels": rows, "program": whole, "autotuners": trials}


class Failed(Exception):
    """A run ended with another status than 0, or without a report."""

    def __init__(self, ended: Ended, number: int, has_tzero: bool, given: Input) -> None:
        how = "with tzero" if has_tzero else "without tzero"
        if ended.status:
            what = f"ended with status {ended.status}"
        else:
            what = "ended its own process, as os._exit does, so that it cannot be timed"
        after = " The runs before it ended well." if number > 1 else ""
        if number > 1 and given.is_terminal:
            after += " Only the first run can read from a terminal."
        super().__init__(f"the program {what}, in run {number}, {how}.{after}")
        self.status = ended.status or 1
        self.errors = ended.errors


def measure(
    what: Program, tell: Callable[[str], None], *, output: int, runs: int | None = None
) -> Measured:
    """Run a program several times. `tell` is told which run begins, in a line that the next one
    replaces, unless it ends with a newline because the program's output follows. `output` is the
    file descriptor for what the program writes to stdout in its first run. `runs` is how many
    without tzero are counted, and as many with it; by default as many as take half a minute, and at
    most five.

    ::

        measure(Program("train.py", []), print, output=1)
    """
    count = 0

    def ended(work: Work, has_tzero: bool, *, goes_on: bool = False) -> Any:
        """The report of a run, which may have gone on after the program's end."""
        nonlocal count
        count += 1
        found = run(work, given, output=output if count == 1 else None)
        if found.report is None or (found.status and not goes_on):
            raise Failed(found, count, has_tzero, given)
        return (found.report, found.status) if goes_on else found.report

    with Input() as given:
        tell("run 1, without tzero: it may compile, and is not counted\n")
        seconds, _ = ended(functools.partial(_timed, what, False), False)
        tell("run 2, with tzero: each kernel is timed at the end")
        found, status = ended(functools.partial(_watched, what), True, goes_on=True)
        measured = Measured(ended_while_timed([Row(**each) for each in found], status))
        pairs = runs or max(1, min(MOST_PAIRS, int(SECONDS / 2 / max(seconds, 1e-3))))
        for _ in range(pairs):
            for has_tzero, into, tuned in (
                (False, measured.without, measured.tuned_without),
                (True, measured.with_tzero, measured.tuned_with),
            ):
                how = "with" if has_tzero else "without"
                tell(f"run {count + 1} of {2 + 2 * pairs}, {how} tzero")
                took, tuning = ended(functools.partial(_timed, what, has_tzero), has_tzero)
                into.append(took)
                tuned.append(tuning)
    return measured


# -- in a child ------------------------------------------------------------------------------------


def _timed(what: Program, has_tzero: bool, tell: Tell) -> int:
    """Run the program; its status. What is told are seconds: from its first line to its end, and
    those of them that Triton's autotuners spent on trials."""
    trials: list[int] = []
    with settings.applied({} if has_tzero else {"TZERO_TIER": "0"}):
        settings.hand_down(install=has_tzero)
        if has_tzero:
            install()
        with triton_timing.trials_timed(lambda _, start, end: trials.append(end - start)):
            start = time.perf_counter()
            status = what.status()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            tell((time.perf_counter() - start, sum(trials) / 1e9))
        return status


def _watched(what: Program, tell: Tell) -> int:
    """Run the program with tzero; its status. What is told is a row for each kernel that it called.
    They are timed after the program's own functions for the end of the process: what happens then
    cannot change what the program does."""
    own, status = os.getpid(), 0
    seen: list[Seen] = []

    def run_it() -> None:
        nonlocal status
        status = what.status()

    def at_the_end() -> None:
        if os.getpid() == own and not status:
            compare(seen, lambda rows: tell([asdict(row) for row in rows]))

    install()
    settings.hand_down(install=True)
    atexit.register(at_the_end)
    watch(run_it, seen)
    return status
