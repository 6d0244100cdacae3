"""Kernels of each tier that replays, beside tier 0.

With ``TZERO_VERIFY=1`` the whole directory runs in verify mode: every call is recorded again and
held to its plan, so that no test can see a call replayed; those about nothing else are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.tiers import fixture

pytest.register_assert_rewrite("tests.plans.tiers")

from tests.plans import tiers  # noqa: E402

tier = fixture(1, 2)
"""A tier whose calls are replayed."""


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
