"""A random search for launches that differ with `tzero.install`.

A failure names the seed: ``run_seed(seed, Counts())`` repeats it.
"""

from __future__ import annotations

import itertools
import random
import time

import pytest

from tests.hostile.search import Wrong
from tests.tiers import can_launch


@pytest.fixture(autouse=True)
def launching() -> None:
    can_launch(2)


def test_launches_are_the_same_in_programs_that_change_their_world() -> None:
    from tests.hostile.launching import Counts, run_seed

    counts = Counts()
    for seed in range(6):  # most of the time is for compiling, once
        run_seed(seed, counts)
    print(counts)
    assert counts.native > 100 and counts.failed > 20, counts


@pytest.mark.soak
def test_launches_are_the_same_for_half_an_hour() -> None:
    from tests.hostile.launching import Counts, run_seed

    first = random.SystemRandom().randrange(10**9)
    print("the first seed is", first)
    counts, until = Counts(), time.process_time() + 1800
    for seed in itertools.count(first):
        if time.process_time() > until:
            break
        run_seed(seed, counts)
    print(counts)


def test_parameters_that_are_not_compared_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.hostile.launching import Counts, run_seed
    from tzero.adapters import triton_launch

    monkeypatch.setattr(triton_launch, "binds_like", lambda caches, parameters: True)
    with pytest.raises(Wrong, match=r"differs with tzero\.install"):
        for seed in range(50, 80):  # it is found at 59
            run_seed(seed, Counts())
