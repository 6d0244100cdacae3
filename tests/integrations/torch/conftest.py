"""Fixtures: kernels of every tier on the CPU, and a clean torch for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import tiers
from tests.integrations.torch import hosts

tier = tiers.fixture(0, 1, 2)
"""Every tier; tier 0 runs the host function as written."""


@pytest.fixture
def made(tier: int) -> hosts.Made:
    """The kernels of `hosts` at the tier, each called twice, so that later calls are replayed."""
    return hosts.made(tier)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Seed random numbers and reset torch.compile for each test."""
    if torch.cuda.is_available():
        pytest.skip("these tests are of tensors on the CPU")
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
