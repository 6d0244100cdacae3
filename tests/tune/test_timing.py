"""Candidates are timed until they are settled, hopeless or out of time; tests set the clock."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, repeat
from math import comb
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tzero.errors import UnsupportedType
from tzero.tune import timing
from tzero.tune.compare import same
from tzero.tune.copying import Copies, copies
from tzero.tune.timing import CpuClock, CudaClock, Timing, interval, measure

# -- a clock that is set to how long calls take ---------------------------------------------------


@dataclass
class SetClock:
    """A clock and a call: each call takes the next of the durations, each flush takes `flush`."""

    durations: Iterator[float]
    flush: float = 0.0
    shortest: float = 0.0
    waiting: Iterator[float] = field(default_factory=lambda: repeat(0.0))
    waits: list[float] = field(default_factory=list)
    time: float = 100.0
    asked: list[tuple[int, int]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def call(self) -> None:
        self.order.append("call")
        self.time += next(self.durations)

    def now(self) -> float:
        return self.time

    def samples(
        self, call: Callable[[], object], calls: int, count: int, before: Any
    ) -> list[float]:
        self.asked.append((calls, count))
        found = []
        self.waits = [next(self.waiting) for _ in range(count)]
        for _ in range(count):
            if before is not None:
                before()
            self.time += self.flush
            self.order.append("flush")
            start = self.time
            for _ in range(calls):
                call()
            found.append(self.time - start)
        return found


def measured(clock: SetClock, **options: Any) -> Timing:
    return measure(clock.call, device="cpu", clock=clock, **{"budget": 1e9, **options})


def test_a_steady_candidate_is_settled_after_the_least_samples() -> None:
    clock = SetClock(repeat(0.5))
    found = measured(clock)
    assert (found.ended, found.median, found.low, found.high) == ("settled", 0.5, 0.5, 0.5)
    assert timing.FEWEST <= found.samples <= timing.FEWEST + timing.BATCH


def test_the_first_call_is_not_in_the_timing() -> None:
    found = measured(SetClock(iter([1000.0, *repeat(1.0, 100)])))
    assert found.high == 1.0


def test_the_median_is_not_moved_by_a_long_tail() -> None:
    found = measured(SetClock(cycle([1.0] * 9 + [500.0])))
    assert found.median == 1.0


def test_a_noisy_candidate_ends_with_the_most_samples() -> None:
    source = random.Random(1)
    found = measured(SetClock(iter(lambda: source.uniform(1, 3), None)))
    assert (found.ended, found.samples) == ("samples", timing.MOST)
    assert found.low < 2 < found.high


def disturbed(pattern: str, **options: Any) -> SetClock:
    """A clock whose samples take 1 s where the pattern has a dot, and 3 s, of which threads wait
    for half a second, where it has a cross. The first of them warms up."""
    durations = cycle(1.0 if each == "." else 3.0 for each in pattern)
    waiting = cycle(0.0 if each == "." else 0.5 for each in pattern)
    return SetClock(durations, waiting=waiting, **options)


def test_disturbed_samples_do_not_count() -> None:
    found = measured(disturbed("x.xx"))
    assert (found.median, found.low, found.high) == (1.0, 1.0, 1.0)
    assert (found.ended, found.disturbed) == ("settled", False)


def test_a_short_wait_does_not_disturb() -> None:
    found = measured(SetClock(repeat(1.0), waiting=repeat(timing.WAITED)))
    assert (found.samples, found.disturbed) == (measured(SetClock(repeat(1.0))).samples, False)


def test_a_disturbed_timing_takes_longer_but_not_forever() -> None:
    quiet, noisy = SetClock(cycle([1.0, 1.5])), disturbed("x")
    measured(quiet, budget=30.0)
    found = measured(noisy, budget=30.0)
    assert quiet.time - 100.0 <= 30.0 + 1.5
    assert 2 * 30.0 < noisy.time - 100.0 <= timing.LONGER * 30.0 + 3.0
    assert (found.median, found.ended, found.disturbed) == (3.0, "budget", True)
    once = disturbed("x" * 20 + "." * 500)
    assert not measured(once, budget=30.0).disturbed
    assert once.time - 100.0 < timing.LONGER * 30.0


def test_without_undisturbed_samples_the_least_disturbed_count() -> None:
    clock = SetClock(cycle([4.0, 2.0, 8.0, 6.0]), waiting=cycle([0.8, 0.2, 6.0, 3.0]))
    found = measured(clock, budget=40.0)
    assert (found.median, found.samples, found.disturbed) == (2.0, timing.QUIET, True)


def test_disturbed_samples_give_no_candidate_up() -> None:
    found = measured(disturbed("xx.x"), best=1.1)
    assert (found.ended, found.median) == ("settled", 1.0)


def test_a_timing_with_a_wide_interval_is_disturbed() -> None:
    source = random.Random(1)
    found = measured(SetClock(iter(lambda: source.uniform(1, 3), None)), budget=40.0)
    assert found.disturbed
    assert str(found).endswith(" samples, budget, disturbed)")
    assert not measured(SetClock(cycle([1.0, 1.1]))).disturbed


def test_a_sample_is_as_long_as_the_clock_needs() -> None:
    clock = SetClock(repeat(1e-6), shortest=1e-3)
    found = measured(clock)
    assert found.calls * 1e-6 >= 1e-3
    assert found.calls < 10_000
    assert found.median == pytest.approx(1e-6)
    assert {calls for calls, _ in clock.asked[-2:]} == {found.calls}


def test_calibration_is_repeated_after_a_first_sample_that_was_too_long() -> None:
    found = measured(SetClock(iter([1.0, 1.0, *repeat(1e-6, 1_000_000)]), shortest=1e-3))
    assert found.calls * 1e-6 >= 0.5e-3
    assert found.high == pytest.approx(1e-6)


def test_calls_that_take_no_time_come_to_an_end() -> None:
    found = measured(SetClock(repeat(0.0), shortest=1e-3))
    assert (found.calls, found.median) == (timing.CALLS, 0.0)


def test_a_far_slower_candidate_is_given_up_after_three_samples() -> None:
    found = measured(SetClock(repeat(10.0)), best=1.0)
    assert found.hopeless
    assert found.samples == timing.GLANCE


def test_a_slower_candidate_is_given_up_once_its_interval_is_above_the_best() -> None:
    found = measured(SetClock(cycle([1.2, 1.3, 1.25])), best=1.0)
    assert found.hopeless
    assert found.samples == timing.SURE
    assert found.low > 1.0


def test_a_candidate_as_fast_as_the_best_is_not_given_up() -> None:
    assert measured(SetClock(repeat(1.0)), best=1.0).ended == "settled"


def test_a_slow_start_does_not_give_up_what_is_fast() -> None:
    found = measured(SetClock(iter([9.0, 9.0, *repeat(1.0, 500)])), best=2.0)
    assert not found.hopeless
    assert found.median == 1.0


def test_the_budget_includes_the_cost_of_flushing() -> None:
    clock = SetClock(cycle([1.0, 2.0, 3.0]), flush=5.0)
    start = clock.time
    found = measured(clock, budget=100.0)
    assert found.ended == "budget"
    assert clock.time - start < 100.0 + 8.0


def test_a_call_longer_than_the_budget_is_called_once() -> None:
    clock = SetClock(repeat(50.0))
    found = measured(clock, budget=10.0)
    assert (found.median, found.low, found.high) == (50.0, 0.0, math.inf)
    assert (found.samples, found.ended, clock.order.count("call")) == (1, "budget", 1)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_rejected(budget: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        measured(SetClock(repeat(1.0)), budget=budget)


def test_before_runs_ahead_of_each_sample_and_is_not_timed() -> None:
    clock = SetClock(repeat(1.0))

    def restore() -> None:
        clock.order.append("restore")
        clock.time += 7.0

    found = measured(clock, before=restore)
    assert found.high == 1.0
    assert clock.order == ["restore", "flush", "call"] * (len(clock.order) // 3)


def test_exceptions_of_a_call_are_not_caught() -> None:
    def fail() -> None:
        raise RuntimeError("out of resources")

    with pytest.raises(RuntimeError, match="out of resources"):
        measure(fail, device="cpu", budget=1.0, clock=SetClock(repeat(1.0)))


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60), st.floats(1.0, 1e4))
def test_any_durations_give_an_ordered_timing_within_the_budget(
    durations: list[float], budget: float
) -> None:
    clock = SetClock(cycle(durations), flush=0.5, shortest=1e-3)
    start = clock.time
    found = measured(clock, budget=budget, best=durations[0])
    assert found.low <= found.median <= found.high
    assert min(durations) * 0.99 - 1e-9 <= found.median <= max(durations) * 1.01 + 1e-9
    # A batch may be slower than the one before it.
    over = timing.BATCH * (found.calls * max(durations) + 0.5)
    assert clock.time - start <= budget + 10 * over


# -- intervals ------------------------------------------------------------------------------------


def test_intervals_agree_with_published_tables() -> None:
    ranks = {n: interval([float(k) for k in range(1, n + 1)]) for n in (5, 6, 9, 10, 20, 100)}
    assert ranks == {
        5: (0.0, math.inf),
        6: (1.0, 6.0),
        9: (2.0, 8.0),
        10: (2.0, 9.0),
        20: (6.0, 15.0),
        100: (40.0, 61.0),
    }


@given(st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_an_interval_covers_as_often_as_it_says_and_is_the_narrowest(
    count: int, confidence: float
) -> None:
    low, _ = interval([float(k) for k in range(1, count + 1)], confidence)
    rank = int(low)  # each sample equals its rank; 0 means none

    def missed(k: int) -> float:
        return 2 * sum(comb(count, i) for i in range(k)) / 2**count

    assert missed(rank) <= 1 - confidence + 1e-12
    assert missed(rank + 1) > 1 - confidence - 1e-12


def test_a_timing_prints_with_fitting_units() -> None:
    found = Timing.of([2.5e-6] * 10, calls=1, ended="settled")
    assert str(found) == "2.5 µs (2.5 µs to 2.5 µs; 10 samples, settled)"
    few = Timing.of([0.25], calls=1, ended="budget")
    assert str(few) == "250 ms (0 s to any time; 1 samples, budget)"


# -- clocks ---------------------------------------------------------------------------------------


def test_the_wall_clock_times_calls_alone() -> None:
    now = [0.0]
    clock = CpuClock(cache=64, counter=lambda: now[0])

    def step(seconds: float) -> None:
        now[0] += seconds

    assert clock.samples(lambda: step(2.0), 3, 2, lambda: step(50.0)) == [6.0, 6.0]
    assert clock.now() == 112.0


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the system does not count waits"
)
def test_the_wall_clock_knows_when_other_programs_take_its_core() -> None:
    def work() -> None:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass

    clock = CpuClock(cache=64)
    code = "while True: pass"
    busy = [
        subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        while not any(waited > timing.WAITED * 0.02 for waited in clock.waits):
            assert all(each.poll() is None for each in busy)
            clock.samples(work, calls=1, count=5, before=None)
            assert len(clock.waits) == 5
    finally:
        for each in busy:
            each.kill()
            each.wait()


class Listening(TorchDispatchMode):
    """Counts the operators that run."""

    ran = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran += 1
        return func(*args, **(kwargs or {}))


def test_no_torch_operator_runs_before_a_sample() -> None:
    clock, held = CpuClock(cache=1 << 20), Copies([torch.ones(1 << 16)])
    [x] = held.taken()
    x.zero_()
    with Listening() as listening:
        clock.samples(lambda: None, calls=1, count=3, before=held.restore)
    assert listening.ran == 0
    assert torch.equal(x, torch.ones(1 << 16))


def test_the_default_device_of_torch_is_ignored() -> None:
    with torch.device("meta"):
        clock = CpuClock(cache=1 << 12)
        found = same([1.5, torch.ones(2, device="cpu")], [2.5, torch.ones(2, device="cpu")])
        other = same(torch.ones(2, device="cpu"), torch.zeros(2, device="cpu"))
        made = copies(torch.ones(3, device="cpu", requires_grad=True) * 2)
    assert clock._buffer.device.type == made.device.type == "cpu"
    assert "1.5" in found.words and "at (0,)" in other.words


def test_a_call_that_became_slow_gets_fewer_calls_per_sample() -> None:
    clock = SetClock(repeat(1.0), shortest=1e-3)
    measured(clock, calls=1000, budget=5.0)
    assert clock.time - 100.0 < 12.0


def test_a_known_number_of_calls_per_sample_is_tried_first() -> None:
    clock = SetClock(repeat(1e-6), shortest=1e-3)
    calls = measured(clock).calls
    again = SetClock(repeat(1e-6), shortest=1e-3)
    assert measured(again, calls=calls).calls == calls
    assert {each for each, _ in again.asked[1:]} == {calls}  # the first one is not timed
    assert len(again.asked) < len(clock.asked)


def test_the_flush_is_as_large_as_the_largest_cache(tmp_path: Path) -> None:
    for k, size in enumerate(["48K", "2048K", "8M"]):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size + "\n")
    assert timing.cpu_cache(str(tmp_path)) == 8 << 20
    (tmp_path / "index2" / "size").write_text("266240K")
    assert timing.cpu_cache(str(tmp_path)) == 16 << 20
    assert timing.cpu_cache(str(tmp_path / "nowhere")) == 16 << 20


@pytest.mark.parametrize("text", ["", "K", "many", "4X", "0"])
def test_a_cache_of_unknown_size_counts_as_large(tmp_path: Path, text: str) -> None:
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "size").write_text(text)
    assert timing.cpu_cache(str(tmp_path)) == 16 << 20


def test_a_device_without_a_clock_is_an_error() -> None:
    with pytest.raises(UnsupportedType, match="CPUs and CUDA devices"):
        timing.clock_of("meta")


@pytest.mark.gpu
def test_device_events_time_what_runs_on_the_device() -> None:
    a = torch.randn(2048, 2048, device="cuda")
    clock = CudaClock(torch.device("cuda"))
    one = measure(lambda: a @ a, device="cuda", budget=2.0, clock=clock)
    four = measure(lambda: a @ a @ a @ a @ a, device="cuda", budget=2.0, clock=clock)
    assert 2 < four.median / one.median < 8
