"""The fastest candidates, timed again in rounds: who is still in, and what the rounds say.

::

    outcomes ── finalists ──► round: each once ──► round, with fewer ──► ... ──► Estimate of each
                                 └ slow as a whole? Then its times are scaled down.

Enters: the outcome of each finalist in each round. Leaves: an `Estimate` for each, and whether the
rounds were disturbed. It must not know how a candidate is timed, nor which one is chosen.

A machine may be slow for longer than one candidate is timed, so candidates are compared round by
round. The slowdown of a round is what slows down at least half of its candidates, because other
programs slow down some more than others, and speed up none.

Where other programs disturb the rounds, times spread widely, but a disturbance hits the default
config and the candidate of the same round alike. So a candidate's time is its shortest, and its
interval is that of its ratios to the default config, round by round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from statistics import median, median_low
from typing import NamedTuple

from tzero.config import Config
from tzero.tune.outcome import MARGIN, Outcome
from tzero.tune.timing import CONFIDENCE, interval

__all__ = ["FINALISTS", "WITHIN", "Estimate", "Rounds", "finalists"]

FINALISTS = 8
"""The most candidates in a round, besides the default config."""

WITHIN = (2.0, 1.4, 1.2, 1.1)
"""The candidates of each round are those whose time is within this factor of the least. The first
factor is wide: a machine may be this much slower or faster for a second or so."""

DOUBT = 2.0
"""The first factor is this much wider for a candidate whose timing was disturbed."""

MOST = 12
"""The most rounds; all of them only where the machine is disturbed."""

SEVERAL = 3
"""The rounds after which the default config may drop out, if another is clearly faster. With fewer,
estimates include the first timing of each candidate."""

MANY = 8
"""The same where the rounds are disturbed: several of them may be slow for one candidate."""

AGREE = 1.15
"""Rounds are disturbed if the slowest is this much slower than the fastest, or a candidate's times
differ by this factor beyond that."""

PART = 0.25
"""Rounds are disturbed if more than this part of their timings was."""

PAIRED = 0.8
"""The confidence of intervals by pairs. A candidate must also have a shorter shortest time than the
default config, which is independent evidence."""

EQUAL = 1.05
"""Two candidates are equally fast if all their times are within this factor."""


def _enclosed(ordered: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the median of some sorted numbers; all of them where they are too few."""
    low, high = interval(ordered, confidence)
    return max(low, ordered[0]), min(high, ordered[-1])


class Estimate(NamedTuple):
    """The time of one candidate by all its rounds, in seconds."""

    median: float
    low: float
    high: float
    samples: int


def finalists(
    outcomes: Mapping[Config, Outcome], fresh: Set[Config], first: Config | None
) -> list[Config]:
    """The candidates of the first round, the fastest first: those that are close to the fastest,
    and the default config. Candidates that are not `fresh`, whose times are known, take part only
    as close rivals. Empty where there is nothing to compare.

    >>> one, two, three = (Config(B=n) for n in (1, 2, 3))
    >>> outcomes = {one: Outcome(9.0), two: Outcome(1.0), three: Outcome(1.5)}
    >>> finalists(outcomes, set(outcomes), first=None)
    [Config(B=2), Config(B=3)]
    """
    medians = {config: each.median for config, each in outcomes.items() if each.usable}
    least = min(medians.values(), default=0.0)

    def limit(config: Config) -> float:
        if config not in fresh:
            return least * WITHIN[-1]
        return least * WITHIN[0] * (DOUBT if outcomes[config].disturbed else 1.0)

    ordered = sorted(medians, key=medians.__getitem__)
    close = [config for config in ordered if medians[config] <= limit(config)][:FINALISTS]
    if fresh.isdisjoint(close):
        return []
    if first in medians and first not in close:
        close.append(first)
    return close if len(close) > 1 else []


class Rounds:
    """What the rounds have shown so far.

    >>> fast, slow = Config(B=1), Config(B=2)
    >>> rounds = Rounds([fast, slow], {fast: Outcome(1.0), slow: Outcome(2.0)}, first=None)
    >>> rounds.add({fast: Outcome(1.0), slow: Outcome(1.3)})
    >>> rounds.add({fast: Outcome(3.0), slow: Outcome(3.9)})  # the machine is slow
    >>> rounds.estimates()[fast].high, rounds.disturbed()
    (1.0, True)
    """

    def __init__(
        self,
        configs: Iterable[Config],
        before: Mapping[Config, Outcome],
        first: Config | None,
        known: Set[Config] = frozenset(),
    ) -> None:
        self.configs = list(configs)
        """Who takes part in the next round, the fastest first."""
        self.count = 0
        self._before = before
        self._first = first
        self._known = known  # those that only an earlier process has timed, in other conditions
        self._found: dict[Config, list[Outcome]] = {config: [] for config in self.configs}

    def drop(self, config: Config) -> None:
        """Take a candidate out that does not work any more."""
        self.configs.remove(config)
        del self._found[config]

    def add(self, found: Mapping[Config, Outcome]) -> None:
        """Add a round, and decide who takes part in the next one."""
        for config, outcome in found.items():
            self._found[config].append(outcome)
        self.count += 1
        times = self.estimates()
        least = min(times[config].median for config in self.configs)
        within = WITHIN[min(self.count, len(WITHIN) - 1)]
        close = [
            config
            for config in sorted(self.configs, key=lambda config: times[config].median)
            if self._least(config) <= within * least
            or (config == self._first and not self._is_beaten(times))
        ]
        self.configs = close

    def _is_beaten(self, times: Mapping[Config, Estimate]) -> bool:
        """Whether the default config is slower than another by more than the spread."""
        assert self._first is not None
        low = times[self._first].low
        enough = self.count >= (MANY if self.disturbed() else SEVERAL)
        return enough and any(MARGIN * each.high < low for each in times.values())

    def _least(self, config: Config) -> float:
        """Its shortest time. One slow round excludes nobody."""
        times = [
            each.median / s for each, s in zip(self._found[config], self._slow(), strict=False)
        ]
        if self.count < SEVERAL and config not in self._known:
            times.append(self._before[config].median)
        return min(times)

    def _slow(self) -> list[float]:
        """How much slower each round was than the fastest, by those who took part in all."""
        if not self.count:
            return []
        whole = [found for found in self._found.values() if len(found) == self.count]
        middle = [median(each.median for each in found) for found in whole]
        if not middle or not all(middle):  # nobody is left, or a call takes no time
            return [1.0] * self.count
        slow = [
            median_low([found[k].median / m for found, m in zip(whole, middle, strict=True)])
            for k in range(self.count)
        ]
        return [each / min(slow) if min(slow) else 1.0 for each in slow]

    def estimates(self) -> dict[Config, Estimate]:
        """The time of each candidate that took part in a round."""
        defaults = [] if self._first is None else self._found.get(self._first, [])
        if self._is_noisy() and all(each.median for each in defaults) and defaults:
            return self._noisy_estimates(defaults)
        return self._quiet_estimates()

    def _quiet_estimates(self) -> dict[Config, Estimate]:
        slow = self._slow()
        made = {}
        for config, found in self._found.items():
            times = sorted(each.median / s for each, s in zip(found, slow, strict=False))
            if not times:
                continue
            low, high = _enclosed(times)
            middle = median(times)
            if self.count < SEVERAL and config not in self._known:
                first = self._before[config].median
                low, high = min(low, first), max(high, first)
            made[config] = Estimate(middle, low, high, sum(each.samples for each in found))
        return made

    def _noisy_estimates(self, defaults: Sequence[Outcome]) -> dict[Config, Estimate]:
        """The shortest times, and intervals by pairs with the default config, which may drop out
        before the others."""
        unit = min(each.median for each in defaults)
        made = {}
        for config, found in self._found.items():
            if not found:
                continue
            least = min(each.median for each in found)
            pairs = zip(found, defaults, strict=False)
            ratios = sorted(mine.median / first.median for mine, first in pairs)
            low, high = (unit * each for each in _enclosed(ratios, PAIRED))
            samples = sum(each.samples for each in found)
            made[config] = Estimate(least, min(low, least), max(high, least), samples)
        return made

    def concluded(self, retries: int) -> dict[Config, Outcome]:
        """The outcomes after the rounds. Those of candidates that took part are the estimates, with
        so many retries where the rounds were disturbed. Who did not take part was slower, and is
        still slower where the machine was slower in all rounds."""
        made = dict(self._before)
        times, disturbed = self.estimates(), self.disturbed()
        if not times:
            return made
        least = min(self._before[config].median for config in times)
        lead = min(each.median for each in times.values())
        for config, each in self._before.items():
            if each.usable and each.median < lead:
                by = lead / least
                made[config] = replace(
                    each, median=each.median * by, low=each.low * by, high=each.high * by
                )
        for config, found in times.items():
            made[config] = Outcome(*found, disturbed=disturbed, retries=retries * disturbed)
        return made

    def disturbed(self) -> bool:
        """Whether other programs disturbed the rounds, so that others could show something else."""
        if not self.count:
            return any(self._before[config].disturbed for config in self.configs)
        if self._is_noisy() or max(self._slow()) > AGREE:
            return True
        times = self.estimates()
        return any(times[each].high > AGREE * times[each].low for each in self._compared(times))

    def _is_noisy(self) -> bool:
        """Whether many timings were disturbed."""
        noisy = [each.disturbed for found in self._found.values() for each in found]
        return sum(noisy) > PART * len(noisy)

    def decided(self) -> bool:
        """Whether the fastest is faster than each of the others in the race beyond doubt, or equal
        to it."""
        times = self.estimates()
        best, *others = sorted((times[config] for config in self.configs), key=lambda e: e.median)
        return all(
            MARGIN * best.high < each.low
            or max(best.high, each.high) <= EQUAL * min(best.low, each.low)
            for each in others
        )

    def _compared(self, times: Collection[Config]) -> list[Config]:
        """The candidates that matter to the choice: the fastest, and the default config."""
        return [c for c in {*self.configs[:1], self._first} if c is not None and c in times]
