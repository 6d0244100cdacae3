"""A random search for stale replays: programs over what ordinary code does, changes of their world
between calls, and each call compared with the plain function.

A failure names the seed: ``run_seed(seed, Counts())`` repeats it.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.hostile.search import KINDS, Counts, Wrong, run_seed, search
from tests.plans.tiers import available, verifying
from tzero.adapters import python_frames
from tzero.plans import wrapper
from tzero.reading.contents import Contents
from tzero.reading.known import Known

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)


@pytest.fixture(autouse=True)
def replaying() -> None:
    available(2)
    if verifying():
        pytest.skip("verify mode replays nothing")


def test_replays_are_right_in_programs_that_change_their_world() -> None:
    counts = Counts()
    for seed in range(220):  # about 40 s
        run_seed(seed, counts)
    print(counts)
    assert counts.calls > 20_000 and counts.replayed > 20 * counts.programs, counts


@pytest.mark.soak
def test_replays_are_right_for_an_hour() -> None:
    first = random.SystemRandom().randrange(10**9)
    print("the first seed is", first)
    print(search(itertools.count(first), 3600.0))


# -- the search can fail ---------------------------------------------------------------------------


def no_guard_holds_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wrapper, "_holds", lambda plan: lambda: True)


def no_contents_are_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Contents, "contents", lambda self, *args, **kwargs: None)


def no_class_is_watched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Known, "of_classes", lambda self, kind, name, after=None: vars(object).get(name))


@pytest.mark.parametrize(
    "mutate", [no_guard_holds_anything, no_contents_are_read, no_class_is_watched]
)
def test_a_guard_that_is_missing_is_found(mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    of_python = [kind for kind in KINDS if kind == (1, "path")]
    with pytest.raises(Wrong, match="gives another answer than the plain function"):
        for seed in range(300):
            run_seed(seed, Counts(), of_python)
