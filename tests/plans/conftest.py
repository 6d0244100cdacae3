"""Kernels of each tier that replays, beside tier 0.

With ``TZERO_VERIFY=1`` the whole directory runs in verify mode: every call is recorded again and
held to its plan, so that no test can see a call replayed; those about nothing else are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Before the first import of Triton.
    os.environ.setdefault("TZERO_CPU", "1")

pytest.register_assert_rewrite("tests.plans.tiers")

from tests.plans import tiers  # noqa: E402


@pytest.fixture(params=[1, 2], ids=["python", "native"])
def tier(request: pytest.FixtureRequest) -> int:
    """A tier whose calls are replayed."""
    return tiers.available(request.param)


@pytest.fixture
def pair(tier: int) -> Callable[..., tiers.Pair]:
    """A host function, and options of `tzero.kernel`, to a kernel of the tier beside tier 0."""
    return lambda host, **options: tiers.Pair(tier, host, **options)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Each test draws the same numbers."""
    torch.manual_seed(0)
    yield


@pytest.fixture
def replaying() -> None:
    """For tests that are about replays and nothing else."""
    if tiers.verifying():
        pytest.skip("in verify mode the host function runs in every call")
