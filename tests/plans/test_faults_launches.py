"""Launches and allocations that fail in a replay raise tier 0's error, and leak nothing."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.plans.faults import outcome, tensors
from tests.plans.hosts import scaled, stamped
from tests.plans.tiers import counted, of_tier
from tzero.plans import outputs

pytestmark = pytest.mark.usefixtures("replaying", "frozen")


@pytest.fixture
def frozen() -> None:
    """Freeze the garbage collector, so that `tensors` counts only what a test creates."""
    gc.collect()
    gc.freeze()


# -- launches --------------------------------------------------------------------------------------


@triton.jit(debug=True, do_not_specialize=["value"])
def checked(out, value):
    tl.device_assert(value > 0, "value must be positive")
    tl.store(out, value)


@triton.jit(debug=True, do_not_specialize=["value"])
def checked_or_not(out, value):
    tl.device_assert(value > 0, "not before something is stored")
    tl.store(out + 1, value)


def three_launches(x, a, b, c):
    one = torch.zeros(2, dtype=torch.int64)
    checked[(1,)](one, a)
    two = torch.empty_like(one)
    checked[(1,)](two, b)
    checked_or_not[(1,)](two, b)
    three = torch.ones_like(one)
    checked[(2,)](three, c)
    return one, two, three, x.view(-1)


def assert_right(result: Any, a: int, b: int, c: int) -> None:
    assert [each.tolist() for each in result[:3]] == [[a, 0], [b, b], [c, 1]]


@pytest.fixture
def on_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("an assertion on a GPU ends its context")


@pytest.mark.usefixtures("exact")
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("which", range(3))
def test_a_launch_that_fails_leaves_nothing_behind(which: int, pooled: bool, tier: int) -> None:
    before = set(outputs._all())
    kernel = of_tier(tier, three_launches, pool=pooled)
    plain = of_tier(0, three_launches)
    x, good, bad = torch.ones(3), (5, 6, 7), [5, 6, 7]
    bad[which] = -3
    for _ in range(3):
        assert_right(kernel(x, *good), *good)
    rings = [ring for ring in outputs._all() if ring not in before]
    expected = outcome(lambda: plain(x, *bad))
    assert expected[0] is tzero.KernelAssertion

    def fail() -> None:
        assert outcome(lambda: kernel(x, *bad))[:3] == expected[:3]

    with counted(three_launches) as runs:
        fail()
        count, uses, there = sys.getrefcount(x), x._use_count(), tensors()
        for _ in range(20):
            fail()
        made = [ring.made for ring in rings]
        assert (sys.getrefcount(x), x._use_count(), tensors()) == (count, uses, there)
        result = kernel(x, *good)
    assert runs[0] == 0, "it is not replayed"
    assert_right(result, *good)
    assert tier == 1 or [ring.made for ring in rings] == made


# -- memory ----------------------------------------------------------------------------------------

MUCH = 1 << 28
"""A gigabyte of elements, which nothing touches."""


def much(x):
    return scaled(x, 2.0), stamped(torch.empty(MUCH)[:1])


@pytest.mark.parametrize("pooled", [False, True])
def test_running_out_of_memory_is_an_error(pooled: bool, tier: int) -> None:
    resource = pytest.importorskip("resource")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer ends a process that is out of memory")
    before = set(outputs._all())
    kernel, x = of_tier(tier, much, pool=pooled), torch.ones(4)
    for _ in range(3):
        assert kernel(x)[1].item() == 1.0
    rings = [ring for ring in outputs._all() if ring not in before]
    held = [kernel(x)]
    made, count = sum(ring.made for ring in rings), sys.getrefcount(x)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * MUCH, limits[1]))
    try:
        failures = [outcome(lambda: kernel(x)) for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert [each[0] for each in failures] == [RuntimeError] * 3
    assert all("can't allocate memory" in each[2] for each in failures)
    assert sys.getrefcount(x) == count
    # Each call reuses the output of the step before.
    assert sum(ring.made for ring in rings) == made + (1 if pooled else 0)
    with counted(much) as runs:
        assert kernel(x)[1].item() == 1.0
    assert runs[0] == 0 and held
    for ring in rings:
        ring.clear()
