"""Timing contenders against each other: in one process, in turns, as medians with their spread.

Enters: functions of no arguments, and a clock. Leaves: seconds per call of each, and the ratio of
each to the baseline, taken round by round. It must not know kernels, devices or tables.

A busy machine slows down everything for a while. The two sides of a ratio are therefore timed
right after each other, the order changes from round to round, and the ratio is taken within a
round before the median is taken over rounds.

Contenders disturb one another: the threads of OpenMP, which torch uses, go on spinning for
milliseconds after their last work. So each contender runs for a while, untimed, before its sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Comparison", "Effort", "Loop", "Spread", "compare", "spread"]

Call = Callable[[], object]


class Loop:
    """A contender that repeats itself so many times, without coming back to Python in between."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self.run = run

    def __call__(self) -> None:
        self.run(1)


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    q1: float
    q3: float
    samples: int

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.q1 * factor, self.q3 * factor, self.samples)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds, and the least seconds of one sample."""

    rounds: int
    sample_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds per call by contender, and each one's ratio to the baseline (itself left out); with
    a floor, the ratio of what is above it."""

    seconds: Mapping[str, Spread]
    ratios: Mapping[str, Spread]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of one value, that value three times."""
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
) -> Comparison:
    """Time the contenders in turns; ``calls`` per sample where given, else as many as fill one.

    Every contender has run before (its first call compiles), so the first round is like the rest.
    Where `calls` is given a call cannot be repeated at will, and nothing runs untimed. Before each
    sample `settle` waits for whatever is still under way.
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
                _sample(contenders[name], counts[name], clock)  # the other's threads come to rest
            settle()
            samples[name].append(_sample(contenders[name], counts[name], clock))
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
    """How many calls last at least so long: doubled until they do."""
    calls = 1
    while _sample(call, calls, clock) * calls < seconds and calls < 1 << 20:
        calls *= 2
    return calls
