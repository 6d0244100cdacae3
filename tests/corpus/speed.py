"""How fast a case is with tzero: plain time over time with tzero, in one process, in turns.

Enters: a case that was judged. Leaves: the median ratio of the rounds. It must not know tables.

The clock is the processor time of this process, so that a busy machine counts less; all work is on
one thread. Each contender has arguments of its own, drawn once. Functions that work in place reach
denormal numbers after some calls, which are slow to compute with, so those count as zero.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import tzero
from bench.measure import Effort, compare
from tests.corpus.case import Case
from tests.corpus.judge import quiet

__all__ = ["speed"]

EFFORT = Effort(rounds=15, sample_seconds=0.003)
SETS = 4
"""How many sets of arguments the calls take in turns."""


def speed(case: Case, effort: Effort = EFFORT) -> float:
    """How many times faster calls with the first shape are with tzero."""
    with quiet(), denormals_as_zero():
        plain = _caller(case, case.function)
        mine = _caller(case, tzero.kernel(case.function))
        for call in (plain, mine):
            for _ in range(3 * SETS):
                call()
        contenders = {"plain": plain, "tzero": mine}
        measured = compare(contenders, baseline="tzero", effort=effort, clock=time.process_time)
    return measured.ratios["plain"].median


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Count denormal numbers as zero, where the processor can."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _caller(case: Case, function: Callable[..., Any]) -> Callable[[], object]:
    sets = itertools.cycle([case.given(0, seed) for seed in range(SETS)])

    def call() -> object:
        args, kwargs = next(sets)
        return function(*args, **kwargs)

    return call
