"""Output pools under random use: threads that hold outputs, and any sequence of uses.

The random test holds, drops, views and changes outputs, and compares each that is held with what an
oracle expects after every step.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import warm
from tests.plans.pooled import KEPT, SIZE, Pooled, assert_as_new, doubled
from tests.plans.tiers import of_tier
from tzero.plans import outputs

pytestmark = pytest.mark.usefixtures("replaying")


def full(value: float) -> torch.Tensor:
    return torch.full((SIZE,), value)


# -- threads ---------------------------------------------------------------------------------------


@pytest.fixture
def switching() -> Iterator[None]:
    """Make threads switch much more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_threads_that_hold_outputs_have_each_their_own(tier: int) -> None:
    pooled, threads = Pooled(tier), 8
    start, end = threading.Barrier(threads + 1), threading.Event()

    def work(number: int) -> list[tuple[float, torch.Tensor]]:
        chance, held = random.Random(number), []
        start.wait()
        for k in range(150):
            value = float(1000 * number + k)
            out = pooled(value)
            assert torch.equal(out, full(2 * value))
            if chance.random() < 0.6:
                held.append((value, out if chance.random() < 0.5 else out[:4]))
            del out
            while len(held) > chance.randint(0, 3):
                value, out = held.pop(chance.randrange(len(held)))
                assert bool((out == 2 * value).all())
                del out
            assert all(bool((out == 2 * value).all()) for value, out in held)
        return held

    def look() -> None:
        start.wait()
        while not end.is_set():
            outputs.stats()
            assert pooled.tensors() <= KEPT + threads

    with ThreadPoolExecutor(threads + 1) as run:
        looking = run.submit(look)
        try:
            found = [each.result() for each in [run.submit(work, k) for k in range(threads)]]
        finally:
            end.set()
        looking.result()
    held = [each for of_one in found for each in of_one]
    assert all(bool((out == 2 * value).all()) for value, out in held)
    addresses = [out.data_ptr() for _, out in held]
    assert len(set(addresses)) == len(addresses)
    assert pooled.reused > 50


@pytest.mark.usefixtures("switching")
def test_pools_may_be_looked_at_and_cleared_while_kernels_are_recorded(tier: int) -> None:
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            outputs.stats()
            outputs.clear()

    with ThreadPoolExecutor(2) as run:
        looking = [run.submit(look) for _ in range(2)]
        try:
            for k in range(10):
                kernel = of_tier(tier, doubled, pool=True)
                for _ in range(3):
                    assert torch.equal(kernel(full(float(k))), full(2.0 * k))
            rings = [outputs.Ring(lambda: torch.empty(1)) for _ in range(2000)]
        finally:
            end.set()
        for each in looking:
            each.result()
    assert len(rings) == 2000


IN_DESTRUCTORS = """
import gc
import torch
from tzero.plans import outputs

rings = [outputs.Ring(lambda: torch.empty(1)) for _ in range(50)]
seen = []

class Asking:
    def __init__(self):
        self.itself = self

    def __del__(self):
        seen.append(outputs.stats())
        rings.append(outputs.Ring(lambda: torch.empty(1)))

gc.set_threshold(5, 1, 1)
for _ in range(100):
    for _ in range(3):
        Asking()
    outputs.stats()
    outputs.clear()
assert len(seen) > 100
"""


def test_destructors_may_read_pools_while_they_are_read() -> None:
    warm.run([sys.executable, "-c", IN_DESTRUCTORS], timeout=60).check_returncode()


# -- random sequences ------------------------------------------------------------------------------

VIEWS: dict[str, tuple[slice, Callable[[torch.Tensor], Any]]] = {
    "all": (slice(0, SIZE), lambda out: out),
    "part": (slice(2, 5), lambda out: out[2:5]),
    "part of a part": (slice(3, 5), lambda out: out[2:6][1:3]),
    "array": (slice(1, 7), lambda out: out.numpy()[1:7]),
    "detached": (slice(0, SIZE), lambda out: out.detach()),
    "from DLPack": (slice(0, SIZE), lambda out: torch.from_dlpack(out)),
    "storage": (slice(0, SIZE), lambda out: out.untyped_storage()),
}

CHANGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "requires_grad_": lambda out: out.requires_grad_(),
    "unsqueeze_": lambda out: out.unsqueeze_(0),
    "resize_": lambda out: out.resize_(4),
    "attribute": lambda out: setattr(out, "mark", 1),
    "data": lambda out: setattr(out, "data", torch.zeros(SIZE)),
}


def contents(thing: Any) -> list[float]:
    if isinstance(thing, torch.UntypedStorage):
        thing = torch.empty(0).set_(thing)
    return [float(each) for each in thing]


class Oracle:
    """What every held tensor should contain: a part of the numbers of one call."""

    def __init__(self, pooled: Pooled) -> None:
        self.pooled = pooled
        self.held: list[tuple[list[float], slice, Any]] = []
        self.calls = 0

    def call(self) -> tuple[list[float], torch.Tensor]:
        self.calls += 1
        out = self.pooled(float(self.calls))
        if self.calls % 2:  # it leaves an object for the storage, after which some are not reused
            assert_as_new(out, float(self.calls))
        return [2.0 * self.calls] * SIZE, out

    def hold(self, how: str) -> None:
        truth, out = self.call()
        part, view = VIEWS[how]
        self.held.append((truth, part, view(out)))

    def hold_two(self, how: str) -> None:
        truth, out = self.call()
        part, view = VIEWS[how]
        self.held.append((truth, part, view(out)))
        self.held.append((truth, slice(0, SIZE), out))

    def drop(self, which: int) -> None:
        if self.held:
            self.held.pop(which % len(self.held))

    def write(self, which: int) -> None:
        if not self.held:
            return
        truth, part, thing = self.held[which % len(self.held)]
        if isinstance(thing, torch.UntypedStorage):
            thing = torch.empty(0).set_(thing)
        thing += 0.5
        truth[part] = [each + 0.5 for each in truth[part]]

    def change(self, how: str) -> None:
        CHANGED[how](self.call()[1])

    def written_and_dropped(self) -> None:
        self.call()[1].mul_(3)

    def check(self) -> None:
        for truth, part, thing in self.held:
            assert contents(thing) == truth[part]


STEPS = st.one_of(
    st.tuples(st.sampled_from(["hold", "hold_two"]), st.sampled_from(sorted(VIEWS))),
    st.tuples(st.sampled_from(["drop", "drop", "write"]), st.integers(0, 30)),
    st.tuples(st.just("change"), st.sampled_from(sorted(CHANGED))),
    st.tuples(st.sampled_from(["written_and_dropped", "call"])),
)


@settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_what_is_held_shows_what_it_should_whatever_is_done(tier: int, steps: Any) -> None:
    pooled = Pooled(tier)
    oracle = Oracle(pooled)
    for name, *given_ in steps:
        getattr(oracle, name)(*given_)
        oracle.check()
    oracle.held.clear()
    for k in range(KEPT + 2):
        assert torch.equal(pooled(float(k)), full(2.0 * k))
    reused = pooled.reused
    for k in range(3):
        assert torch.equal(pooled(float(k)), full(2.0 * k))
    assert pooled.reused == reused + 3
