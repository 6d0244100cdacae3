"""Kernels of every tier on the CPU, and torch as it was before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import tiers
from tests.integrations.torch import hosts

tier = tiers.fixture(0, 1, 2)
"""Every tier; 0 is the host function as it is written."""


@pytest.fixture
def made(tier: int) -> hosts.Made:
    """The kernels of `hosts` at the tier, each called twice: what is replayed is replayed."""
    return hosts.made(tier)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test draws the same numbers, and compiles anew."""
    if torch.cuda.is_available():
        pytest.skip("these tests are of tensors on the CPU")
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
