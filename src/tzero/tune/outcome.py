"""The outcome of one config, and which of several configs is the best.

Enters: seconds, or a problem. Leaves: a frozen `Outcome`, and the best config by the outcomes of
all. It must not know how outcomes are found or remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tzero.config import Config

__all__ = ["Outcome", "best_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of timing one config: seconds per call, or the problem that it has.

    >>> Outcome(median=2e-6, low=1.9e-6, high=2.2e-6, samples=30).usable
    True
    >>> Outcome(problem="it needs more shared memory than there is").usable
    False
    """

    median: float = math.inf
    low: float = 0.0
    high: float = math.inf
    samples: int = 0
    problem: str = ""
    passing: bool = False
    """Whether the problem is one of the machine at that time, not of the config. Such an outcome
    is not remembered."""
    disturbed: bool = False
    """Whether other programs disturbed the timing."""
    retries: int = 0
    """How many later processes may time it again, because of that; with 0 its time is final."""

    def __post_init__(self) -> None:
        numbers = (self.median, self.low, self.high)
        if not all(type(each) is float for each in numbers) or not (
            0 <= self.low <= self.median <= self.high
        ):
            raise ValueError(
                f"an outcome has floats 0 <= low <= median <= high; these are low={self.low!r}, "
                f"median={self.median!r}, high={self.high!r}"
            )
        if type(self.samples) is not int or self.samples < 0 or type(self.problem) is not str:
            raise ValueError(
                f"an outcome has a number of samples and a text for its problem; these are "
                f"samples={self.samples!r}, problem={self.problem!r}"
            )
        if bool(self.problem) == math.isfinite(self.median):
            raise ValueError(
                f"an outcome has either a median or a problem; this has median={self.median!r} "
                f"and problem={self.problem!r}"
            )
        if type(self.disturbed) is not bool or type(self.retries) is not int or self.retries < 0:
            raise ValueError(
                f"an outcome is disturbed or not, and has a number of retries; these are "
                f"disturbed={self.disturbed!r}, retries={self.retries!r}"
            )
        if type(self.passing) is not bool or (self.passing and not self.problem):
            raise ValueError(
                f"an outcome is passing only with a problem; this has passing={self.passing!r} "
                f"and problem={self.problem!r}"
            )

    @property
    def usable(self) -> bool:
        """Whether the config ran, and its results were right."""
        return not self.problem


UNSURE = 1.25
"""The factor by which a time may be wrong, where its interval is unknown."""

MARGIN = 1.02
"""The factor by which intervals must be apart: as much as a timing is exact."""


def best_of(outcomes: Mapping[Config, Outcome], first: Config | None = None) -> Config | None:
    """The config with the least median, of equal ones the earlier; None where none is usable. The
    default config, `first`, gives way only to one that is faster by more than the spread: one whose
    interval lies below its own.

    >>> outcomes = {Config(B=1): Outcome(5.0, 4.0, 6.0), Config(B=2): Outcome(4.5, 4.0, 5.0)}
    >>> best_of(outcomes), best_of(outcomes, first=Config(B=1))
    (Config(B=2), Config(B=1))
    """
    usable = {config: each for config, each in outcomes.items() if each.usable}
    default = None if first is None else usable.get(first)
    if default is not None:
        low = default.low or default.median / UNSURE
        faster = {config: each for config, each in usable.items() if MARGIN * _high(each) < low}
        if not faster:
            return first
        usable = faster
    return min(usable, key=lambda config: usable[config].median, default=None)


def _high(outcome: Outcome) -> float:
    return outcome.high if math.isfinite(outcome.high) else outcome.median * UNSURE
