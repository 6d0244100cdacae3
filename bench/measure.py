"""Timing contenders against each other: in one process, in turns, as medians with their spread.

Enters: functions of no arguments, and a clock. Leaves: seconds per call of each, and the ratio of
each to the baseline, taken round by round. It must not know kernels, devices or tables.

A busy machine slows everything down for a while. So the two sides of a ratio are timed right after
each other, the order changes from round to round, and the ratio is taken within a round before the
median is taken over rounds.

Contenders disturb each other: OpenMP's threads, which torch uses, keep spinning for milliseconds
after their last work. So each contender runs untimed for a while before its sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    *("Call", "Comparison", "Effort", "Loop", "Spread", "Tick"),
    *("calls_of", "compare", "spread"),
]

Call = Callable[[], object]


class Loop:
    """A contender with a loop of its own: `run(n)` makes n calls, and the loop is timed too."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self.run = run

    def __call__(self) -> None:
        self.run(1)


def calls_of(function: Callable[..., object], sets: Sequence[Sequence[object]]) -> Loop:
    """Calls as a program makes them: in a loop, arguments as local variables, the sets of arguments
    in turn."""
    world: dict[str, Any] = {"f": function}
    lines = []
    for k, given in enumerate(sets):
        names = [f"a{k}_{j}" for j in range(len(given))]
        world |= dict(zip(names, given, strict=True))
        lines.append(f"  f({', '.join(names)})")
    local = ", ".join(f"{name}={name}" for name in world)
    turns = f"max(1, times // {len(sets)})"
    source = [f"def run(times, {local}):", f" for _ in range({turns}):", *lines]
    exec("\n".join(source), world)
    return Loop(world["run"])


Clock = Callable[[], float]
Tick = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    q1: float
    q3: float
    samples: int

    def scaled(self, factor: float) -> Spread:
        """All values times the factor, to change the unit."""
        return Spread(self.median * factor, self.q1 * factor, self.q3 * factor, self.samples)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: the number of rounds, and the minimum seconds of a sample."""

    rounds: int
    sample_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds per call of each contender, and the ratio of each other one to the baseline. With a
    floor, its time is subtracted from both sides of a ratio."""

    seconds: Mapping[str, Spread]
    ratios: Mapping[str, Spread]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; for a single value, that value three times."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3, len(values))


def compare(
    contenders: Mapping[str, Call],
    *,
    baseline: str | None = None,
    floor: str | None = None,
    effort: Effort,
    calls: int | None = None,
    settle: Call = lambda: None,
    clock: Clock = time.perf_counter,
    tick: Tick = lambda share: None,
) -> Comparison:
    """Time the contenders in turns.

    Every contender must have run before (its first call compiles), so that the first round is like
    the rest. A sample has `calls` calls; without it, as many as fill `effort.sample_seconds`, after
    as many untimed ones. `settle` runs before each sample and waits for pending work. `tick` is
    told after each round how much is done, between 0 and 1.
    """
    for role, name in (("baseline", baseline), ("floor", floor)):
        if name is not None and name not in contenders:
            raise ValueError(f"{role} {name!r} is not among {', '.join(contenders)}.")
    counts = {
        name: calls or _calls_to_fill(call, effort.sample_seconds, clock)
        for name, call in contenders.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(effort.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if calls is None:
                _sample(contenders[name], counts[name], clock)  # until others' threads rest
            settle()
            samples[name].append(_sample(contenders[name], counts[name], clock))
        tick((turn + 1) / effort.rounds)
    below = samples[floor] if floor is not None else [0.0] * effort.rounds
    ratios = {
        name: spread(
            [
                (mine - least) / (theirs - least)
                for mine, theirs, least in zip(times, samples[baseline], below, strict=True)
            ]
        )
        for name, times in samples.items()
        if baseline is not None and name not in (baseline, floor)
    }
    return Comparison({name: spread(times) for name, times in samples.items()}, ratios)


def _sample(call: Call, calls: int, clock: Clock) -> float:
    if isinstance(call, Loop):
        start = clock()
        call.run(calls)
        return (clock() - start) / calls
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def _calls_to_fill(call: Call, seconds: float, clock: Clock) -> int:
    """How many calls last at least that long: doubled until they do."""
    calls = 1
    while _sample(call, calls, clock) * calls < seconds and calls < 1 << 20:
        calls *= 2
    return calls
