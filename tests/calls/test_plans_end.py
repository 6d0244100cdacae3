"""Plans that ended are not replayed, whatever happens at the same time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.plans.hosts import scaled
from tests.tiers import can_replay, of_tier
from tzero import settings
from tzero.events import observe

X = torch.zeros(4)


@triton.jit
def fill_kernel(out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at * 0 + by, mask=at < n)


def filled(x: torch.Tensor, config: tzero.Config) -> torch.Tensor:
    out = torch.empty_like(x)
    fill_kernel[(1,)](out, config["by"], 4, BLOCK=16)
    return out


def value_of(kernel: Any) -> int:
    return int(kernel(X)[0])


@pytest.fixture
def kernel() -> Any:
    if settings.current().verify:
        pytest.skip("in verify mode native code keeps no plans")
    return of_tier(can_replay(2), filled, config=tzero.Config(by=1))


def test_a_plan_that_ends_before_native_code_adds_it_is_not_added(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, lasts = kernel.bind(X), type(kernel)._lasts
    todo = [lambda: bound.set_config(tzero.Config(by=2))]

    def lasts_until_now(self: Any, planned: Any) -> bool:
        found: bool = lasts(self, planned)
        while found and todo:  # another thread runs just after the answer
            other = threading.Thread(target=todo.pop())
            other.start()
            other.join()
        return found

    monkeypatch.setattr(type(kernel), "_lasts", lasts_until_now)
    assert value_of(kernel) == 1
    assert [value_of(kernel) for _ in range(3)] == [2, 2, 2]
    bound.set_config(tzero.Config(by=3))
    assert [value_of(kernel) for _ in range(3)] == [3, 3, 3]


def test_reset_drops_every_native_plan(kernel: Any) -> None:
    kernel.bind(X).set_config(tzero.Config(by=2))
    assert [value_of(kernel) for _ in range(3)] == [2, 2, 2]
    assert kernel._count() == 1
    kernel.reset()
    assert kernel._count() == 0
    assert [value_of(kernel) for _ in range(3)] == [1, 1, 1]


def test_a_bound_kernel_that_was_dropped_keeps_its_plans_for_who_holds_it(kernel: Any) -> None:
    bound = kernel.bind(X)
    assert [int(bound(X)[0]) for _ in range(2)] == [1, 1]
    plans = bound.plans.plans()
    kernel.reset()
    assert int(bound(X)[0]) == 1
    assert bound.plans.plans() == plans and len(plans) == 1


def test_calls_that_bind_refuses_are_not_counted() -> None:
    kernel = tzero.kernel(scaled)
    for _ in range(3):
        with pytest.raises(tzero.InvalidArgument):
            kernel.bind({1, 2}, 2.0)
    assert kernel.stats().calls == 0


def test_no_code_of_the_user_runs_under_the_lock_of_a_miss() -> None:
    free: list[bool] = []

    class Shown:
        def __init__(self, number: int) -> None:
            self.number = number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Shown) and self.number == other.number

        def __hash__(self) -> int:
            return self.number

        def __repr__(self) -> str:
            asking = threading.Thread(target=kernel.stats, daemon=True)
            asking.start()
            asking.join(10)
            free.append(not asking.is_alive())
            return f"Shown({self.number})"

    numbers = iter(range(10))
    kernel = tzero.kernel(key=lambda x, by: Shown(next(numbers)))(scaled)
    with observe(lambda event: None):  # else nobody asks for the reason of a miss
        for _ in range(2):
            kernel(torch.ones(4), 2.0)
    assert free and all(free)
