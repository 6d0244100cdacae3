"""What the call costs that records a plan over sizes: nothing is done in vain."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import triton

import tzero
from tests.plans.sized_hosts import scale_kernel
from tests.plans.tiers import verifying
from tzero import settings
from tzero.launches import native as native_launch
from tzero.plans.planner import Planner
from tzero.plans.varied import Varied
from tzero.reading.path import Path

pytestmark = [
    pytest.mark.usefixtures("exact"),  # their first recordings are for one size
    pytest.mark.skipif(verifying(), reason="in verify mode the host function runs in every call"),
]


def scaled(x, by):
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, by, n, BLOCK=64)
    return out


def recorded_twice() -> Any:
    """A kernel that was called with a size; the next one makes it symbolic."""
    with settings.override(tier=2):
        kernel = tzero.kernel(scaled)
    kernel(torch.ones(70), 2.0)
    return kernel


def check(kernel: Any) -> None:
    """A size that no call had is replayed."""
    before = kernel.stats().native_replays
    x = torch.randn(90)
    assert torch.equal(kernel(x, 2.0), x * 2)
    assert kernel.stats().native_replays == before + 1


COUNTING = """
def counting(path, frame):
    seen[frame.f_globals.get("__name__", "")] += 1
    return entered(path, frame)
"""


def test_frames_of_the_recorder_and_of_libraries_are_not_shown_to_the_path(monkeypatch) -> None:
    seen: Counter[str] = Counter()
    # Of a library, or it would be taken for an interruption.
    world: dict[str, Any] = {"__name__": "tzero.tests", "seen": seen, "entered": Path._entered}
    exec(COUNTING, world)
    recorded_twice()(torch.ones(82), 2.0)  # the path sees the first frame of each module
    kernel = recorded_twice()
    monkeypatch.setattr(Path, "_entered", world["counting"])
    kernel(torch.ones(82), 2.0)
    assert seen[scaled.__module__] == 2
    for module in ("call_sizes", "frames", "sizes", "slots", "values"):
        assert not seen[f"tzero.plans.{module}"]
    assert seen["tzero.plans.torch_steps"] <= 1  # asked about modes when the call has returned
    assert not seen["triton.runtime.jit"]
    assert sum(seen.values()) < 10
    check(kernel)


def test_a_launch_is_described_once(monkeypatch) -> None:
    kernel = recorded_twice()
    count = 0
    described = native_launch.described

    def counting(*args: Any) -> Any:
        nonlocal count
        count += 1
        return described(*args)

    monkeypatch.setattr(native_launch, "described", counting)
    kernel(torch.ones(82), 2.0)
    assert count == 1
    check(kernel)


def test_the_python_replay_of_a_plan_is_written_when_it_is_needed(monkeypatch) -> None:
    made: list[Any] = []
    note = Varied.note
    monkeypatch.setattr(Varied, "note", lambda *args: made.append(note(*args)) or made[-1])
    kernel = recorded_twice()
    kernel(torch.ones(82), 2.0)
    check(kernel)
    assert len(made) == 2
    for planned in made:
        assert not {"holds", "_writer", "source", "call"} & vars(planned.wrapper).keys()
        assert planned.wrapper.holds()


def test_a_miss_that_nobody_hears_of_is_not_put_into_words(monkeypatch) -> None:
    from tzero.calls import tally

    monkeypatch.setattr(tally, "difference", lambda *args: pytest.fail("it was put into words"))
    kernel = recorded_twice()
    kernel(torch.ones(82), 2.0)
    kernel(torch.ones(82, dtype=torch.float64), 2.0)


def test_a_recording_leaves_no_cycle_that_keeps_arguments_alive() -> None:
    kernel = recorded_twice()
    x = torch.ones(82)
    died = weakref.ref(x)
    gc.disable()
    try:
        kernel(x, 2.0)
        del x
        assert died() is None
    finally:
        gc.enable()


def test_the_key_of_a_recorded_call_is_made_once(monkeypatch) -> None:
    kernel = recorded_twice()
    kernel(torch.ones(82), 2.0)  # from now on it is known which numbers count by value
    count = 0
    key = Planner._key

    def counting(*args: Any) -> Any:
        nonlocal count
        count += 1
        return key(*args)

    monkeypatch.setattr(Planner, "_key", counting)
    kernel(torch.ones(82, dtype=torch.float64), 2.0)
    assert count == 1
