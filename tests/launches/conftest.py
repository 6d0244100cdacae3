"""One suite over both twins and over plain Triton: the tiers, and kernels of a tier.

On a machine without a GPU the CPU backend runs the kernels; on one with a GPU, the GPU does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Before the first import of Triton.
    os.environ.setdefault("TZERO_CPU", "1")

import triton

import tzero

for _subject in ("arguments", "calls", "world", "hooks", "grids", "life"):
    # Asserts in the rows show their values, as those in the tests do.
    pytest.register_assert_rewrite(f"tests.launches.rows_{_subject}")

Make = Callable[..., Any]

TIERS = {"plain": 0, "python": 1, "native": 2}


@pytest.fixture(params=TIERS.values(), ids=TIERS.keys())
def tier(request: pytest.FixtureRequest) -> int:
    """How launches are made: by Triton, in Python, natively."""
    return available(request.param)


@pytest.fixture(params=[1, 2], ids=["python", "native"])
def fast_tier(request: pytest.FixtureRequest) -> int:
    """A tier whose launches are tzero's."""
    return available(request.param)


def available(tier: int) -> int:
    """The tier, or a skip where its extension is not built."""
    with tzero.settings.override(tier=tier):
        try:
            tzero.jit(_nothing)
        except tzero.NativeMissing as error:
            pytest.skip(f"no native launches here: {error}")
    return tier


def _nothing() -> None:
    """A kernel that does nothing."""


def maker(tier: int) -> Make:
    """What makes kernels of a tier."""

    def make(function: Any, **options: Any) -> Any:
        with tzero.settings.override(tier=tier):
            return tzero.jit(function, **options)

    return make


@pytest.fixture
def make(tier: int) -> Make:
    """A function, and options of `triton.jit`, to a kernel of the tier."""
    return maker(tier)


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run."""
    return triton.runtime.driver.active.get_active_torch_device()


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Each test finds Triton's knobs, hooks and driver as they were."""
    from tests.launches.looking import restored

    with restored():
        yield
