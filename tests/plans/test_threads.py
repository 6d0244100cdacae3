"""Threads that call the same kernels, with mixed shapes and numbers, while others record."""

from __future__ import annotations

import copy
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.plans.hosts import added, gathered, increased, scaled
from tests.plans.kernels import put
from tests.plans.tiers import of_tier
from tzero.plans.plan import Refusal

THREADS = 8

NUMBER = 2.0


def branching(x, count, by):
    out = torch.zeros_like(x)
    for _ in range(count):
        increased(out, by)
    return added(out, x), gathered(x.t()), count


def passing(out, value):
    put[(1,)](out, value)
    return out


def listing(xs, by):
    return [scaled(x, by) for x in xs]


def by_a_global(x):
    return scaled(x, NUMBER)


@pytest.fixture
def switching() -> Iterator[None]:
    """Make threads switch much more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def expected(x: torch.Tensor, count: int, by: float) -> torch.Tensor:
    out = torch.zeros_like(x)
    for _ in range(count):
        out += by
    return out + x


def one_call(kernels: dict[str, Any], chance: random.Random) -> None:
    """A call with random arguments, compared with torch."""
    size = (chance.randint(1, 3), chance.randint(1, 3))
    x = torch.full(size, float(chance.randint(-9, 9)))
    x += torch.arange(x.numel()).view(size)
    kind = chance.randrange(3)
    if kind == 0:
        count, by = chance.randint(0, 3), float(chance.randint(0, 3))
        total, turned, told = kernels["branching"](x, count, by)
        assert torch.equal(total, expected(x, count, by)), (total, x, count, by)
        assert torch.equal(turned, x.t())
        assert told == count
    elif kind == 1:
        value = chance.choice([1, 2, 16, 17, 2**31, 2**40, -5, True])
        assert kernels["passing"](torch.zeros(1, dtype=torch.int64), value).item() == value
    else:
        xs, by = [x] * chance.randint(1, 3), float(chance.randint(1, 3))
        for found in kernels["listing"](xs, by):
            assert torch.equal(found, x * by)


def run_threads(work: Callable[[random.Random], None], times: int) -> None:
    """Run `work` many times in each of several threads."""
    start = threading.Barrier(THREADS)

    def loop(k: int) -> None:
        chance = random.Random(k)
        start.wait()
        for _ in range(times):
            work(chance)

    with ThreadPoolExecutor(THREADS) as pool:
        for each in [pool.submit(loop, k) for k in range(THREADS)]:
            each.result()


def mixed(tier: int, reset: float) -> Callable[[random.Random], None]:
    """What a thread repeats; sometimes it resets a kernel."""
    kernels = {host.__name__: of_tier(tier, host) for host in (branching, passing, listing)}

    def work(chance: random.Random) -> None:
        if chance.random() < reset:
            chance.choice(list(kernels.values())).reset()
        one_call(kernels, chance)

    return work


@pytest.mark.usefixtures("switching")
def test_calls_from_many_threads_are_each_their_own(tier: int) -> None:
    run_threads(mixed(tier, reset=0.02), 60)


@pytest.mark.soak
@pytest.mark.usefixtures("switching")
def test_a_minute_of_calls_from_many_threads(tier: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        run_threads(mixed(tier, reset=0.002), 300)


# Verify mode cannot tell a global that changes during a call from hidden state.
@pytest.mark.usefixtures("switching", "replaying")
def test_a_global_that_changes_meanwhile_is_one_of_its_values(tier: int, monkeypatch: Any) -> None:
    kernel = of_tier(tier, by_a_global)
    values = (2.0, 3.0)
    monkeypatch.setitem(globals(), "NUMBER", 2.0)

    def work(chance: random.Random) -> None:
        if chance.random() < 0.1:
            globals()["NUMBER"] = chance.choice(values)
        assert set(kernel(torch.ones(3)).tolist()) < {2.0, 3.0}

    run_threads(work, 60)
    for value in values:
        globals()["NUMBER"] = value
        assert kernel(torch.ones(3)).tolist() == [value] * 3


@pytest.mark.usefixtures("switching")
def test_first_calls_at_once_are_right(tier: int) -> None:
    for _ in range(20):
        kernel = of_tier(tier, branching)
        start = threading.Barrier(THREADS)

        def call(k: int, kernel: Any = kernel, start: Any = start) -> None:
            start.wait()
            for count in (k % 3, (k + 1) % 3, k % 3):
                x = torch.ones(2, 1 + k % 2)
                total, _, told = kernel(x, count, float(k))
                assert torch.equal(total, expected(x, count, float(k)))
                assert told == count

        with ThreadPoolExecutor(THREADS) as pool:
            for each in [pool.submit(call, k) for k in range(THREADS)]:
                each.result()


@pytest.mark.usefixtures("switching")
def test_plans_come_while_others_are_looked_through(tier: int) -> None:
    kernel, args = of_tier(tier, branching), (torch.ones(2, 2), 1, 1.0)
    kernel(*args)
    bound = kernel.bind(*args)
    [planned] = bound.plans.plans()
    elsewhere, refusal = copy.copy(planned), Refusal("it is one of many")
    done = threading.Event()

    def grow() -> None:
        while not done.is_set():
            for k in range(100):
                bound.plans.keep_refusal(("more", k), refusal)
            for k in range(100):
                bound.plans.drop_refusal(("more", k))

    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(grow)
        try:
            for _ in range(2000):
                assert bound.plans.has(planned) and not bound.plans.has(elsewhere)
                assert "branching" in bound.to_code()
        finally:
            done.set()
        growing.result()


class Paused:
    """A call in its own thread that stops at a given place until it is released. If it
    never gets there, it runs to its end."""

    def __init__(self, call: Callable[[], Any], at: Callable[[Any, str, Any], bool]) -> None:
        self._there, self._go_on, self._at = threading.Event(), threading.Event(), at
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(self._run, call)
        self._there.wait(60)

    def _run(self, call: Callable[[], Any]) -> Any:
        sys.setprofile(self._look)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self._there.set()

    def _look(self, frame: Any, event: str, argument: Any) -> None:
        if not self._there.is_set() and self._at(frame, event, argument):
            self._there.set()
            self._go_on.wait(60)

    def result(self) -> Any:
        """Let it run to its end."""
        self._go_on.set()
        found = self._result.result()
        self._pool.shutdown()
        return found


def in_host(frame: Any, event: str, argument: Any) -> bool:
    return event == "call" and frame.f_code is branching.__code__


def before_a_lookup(frame: Any, event: str, argument: Any) -> bool:
    name = frame.f_code.co_name
    return event == "c_call" and name == "run" and getattr(argument, "__name__", "") == "get"


def test_a_plan_for_one_number_is_not_found_by_who_has_another(tier: int) -> None:
    """One thread records before it is known that the number is used by value; another is about to
    look for a plan, not knowing it either; a third finds out."""
    kernel = of_tier(tier, branching)
    x = torch.ones(2, 2)
    recording = Paused(lambda: kernel(x, 1, 1.0), in_host)
    looking = Paused(lambda: kernel(x, 1, 5.0), before_a_lookup)
    assert torch.equal(kernel(x, 1, 9.0)[0], expected(x, 1, 9.0))
    assert torch.equal(recording.result()[0], expected(x, 1, 1.0))
    assert torch.equal(looking.result()[0], expected(x, 1, 5.0))


def test_a_recording_sees_nothing_of_other_threads(tier: int) -> None:
    """A launch and an operator in another thread during a recording are not part of it."""
    kernel, x = of_tier(tier, branching), torch.ones(2, 2)
    recording = Paused(lambda: kernel(x, 1, 1.0), in_host)
    increased(torch.zeros(3), 1.0)
    torch.ones(3).add_(1)
    recording.result()
    plan = kernel.bind(x, 1, 1.0).plans.plans()[0].plan
    alone = of_tier(tier, branching)
    alone(x, 1, 1.0)
    assert str(plan) == str(alone.bind(x, 1, 1.0).plans.plans()[0].plan)
