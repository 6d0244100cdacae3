"""Kernels of every tier on the CPU, and torch as it was before each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Before the first import of Triton.
    os.environ.setdefault("TZERO_CPU", "1")

from tests.integrations.torch import hosts
from tests.plans import tiers


@pytest.fixture(params=[0, 1, 2], ids=["plain", "python", "native"])
def tier(request: pytest.FixtureRequest) -> int:
    """Every tier; 0 is the host function as it is written."""
    return tiers.available(request.param) if request.param else 0


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
