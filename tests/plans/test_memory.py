"""Memory does not grow over many calls, also of kernels whose plans are replaced."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plans.hosts import scaled
from tests.plans.tiers import of_tier, verifying

ENOUGH = 8 << 20
"""Bytes by which a process may grow while allocators settle; a leak would be more."""


def kib() -> int:
    """The peak memory of the process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def grows(work: Callable[[], None], warm: Callable[[], None]) -> int:
    warm()
    gc.collect()
    before = kib()
    work()
    gc.collect()
    return (kib() - before) * 1024


def host(x: Any) -> Any:
    return scaled(x, 2.0)


@pytest.mark.soak
@pytest.mark.parametrize("pool", [False, True], ids=["fresh", "pooled"])
def test_a_million_calls_leave_no_memory_behind(pool: bool, tier: int) -> None:
    if verifying():
        pytest.skip("verify mode records every call")
    kernel, x = of_tier(tier, host, pool=pool), torch.ones(64)

    def calls(times: int) -> None:
        for _ in range(times):
            kernel(x)

    assert grows(lambda: calls(1_000_000), lambda: calls(10_000)) < ENOUGH


def test_plans_that_come_and_go_leave_no_memory_behind(tier: int) -> None:
    storage = torch.ones(4096)

    def rounds(times: int) -> None:
        for _ in range(times):
            kernel = of_tier(tier, host)
            for size in range(1, 20):
                kernel(storage[:size])
            kernel.reset()

    assert grows(lambda: rounds(20), lambda: rounds(5)) < ENOUGH
