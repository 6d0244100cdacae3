"""Fixtures: kernels of each tier that replays, compared with tier 0.

With ``TZERO_VERIFY=1`` the whole directory runs in verify mode: every call is recorded again and
compared with its plan. No call is replayed then, so tests about replays alone are skipped.
With ``--symbolic`` plans leave all sizes open from the first call on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.plans import tiers
from tests.tiers import fixture

tier = fixture(1, 2)
"""A tier whose calls are replayed."""


@pytest.fixture
def pair(tier: int) -> Callable[..., tiers.Pair]:
    """A function that makes a `Pair` of a host function and options of `tzero.kernel`."""
    return lambda host, **options: tiers.Pair(tier, host, **options)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Seed random numbers for each test."""
    torch.manual_seed(0)
    yield


@pytest.fixture
def replaying() -> None:
    """Skip tests that are only about replays in verify mode."""
    if tiers.verifying():
        pytest.skip("in verify mode the host function runs in every call")


@pytest.fixture
def exact(request: pytest.FixtureRequest) -> None:
    """Skip tests that are about plans for one size in a run with ``--symbolic``."""
    if request.config.getoption("symbolic"):
        pytest.skip("it is about plans for one size")


@pytest.fixture(scope="session", autouse=True)
def active_driver() -> None:
    """Triton creates its driver when it is first asked for; a plan recorded meanwhile is recorded
    again, which tests that count recordings would see if they came first."""
    import triton

    triton.runtime.driver.active.get_current_target()
