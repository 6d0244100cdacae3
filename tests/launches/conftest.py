"""Launches by Triton, in Python and natively, by the same tests.

Without a GPU the CPU backend runs the kernels, otherwise the GPU does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import tiers
from tests.tiers import Make

for _subject in ("arguments", "calls", "world", "hooks", "grids", "life"):
    # So that asserts in the rows show their values.
    pytest.register_assert_rewrite(f"tests.launches.rows_{_subject}")

tier = tiers.fixture(0, 1, 2, check=tiers.can_launch)
"""Launches by Triton, in Python, natively."""

fast_tier = tiers.fixture(1, 2, check=tiers.can_launch)
"""Launches by tzero."""


@pytest.fixture
def make(tier: int) -> Make:
    """Makes a kernel of the tier from a function and options of `triton.jit`."""
    return tiers.jit_maker(tier)


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run."""
    import triton

    return triton.runtime.driver.active.get_active_torch_device()


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Restores Triton's knobs, hooks and driver after each test."""
    from tests.launches.looking import restored

    with restored():
        yield
