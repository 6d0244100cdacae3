"""The tiers that tests run on: which there are, whether each works here, kernels of a tier.

Enters: the number of a tier. Leaves: a `tier` fixture for a conftest or a test module, and kernels
made at that tier. A tier that cannot work here is a skip with the reason.

    tier = tiers.fixture(1, 2)                      # tests with `tier` run as [python] and [native]
    tier = tiers.fixture(0, 1, 2, override=True)    # and `settings.current().tier` is that tier

On a machine without a GPU the CPU backend runs the kernels: this module chooses it, so it is
imported before Triton.
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

import tzero
from tzero import settings

NAMES = {0: "plain", 1: "python", 2: "native"}
"""Tier 0 is Triton's or the host function's own, 1 is Python, 2 is native code."""

Make = Callable[..., Any]


def can_launch(tier: int) -> int:
    """The tier; skips if its launches (`tzero.jit`) do not work here."""
    with settings.override(tier=tier):
        try:
            tzero.jit(_nothing)
        except tzero.NativeMissing as error:
            pytest.skip(f"no native launches here: {error}")
    return tier


def can_replay(tier: int) -> int:
    """The tier; skips if its replays (`tzero.kernel`) do not work here."""
    with settings.override(tier=tier):
        try:
            tzero.kernel(_nothing)
        except tzero.NativeMissing as error:
            pytest.skip(f"no native replay here: {error}")
    if tier == 2:
        from tzero.calls import native

        if native.available():
            pytest.skip(f"no native replay here: {native.available()}")
    return tier


def _nothing() -> None:
    """A kernel, or a host function, that does nothing."""


def needs_cuda() -> None:
    """Skip unless Triton's active driver is CUDA's."""
    import triton

    if triton.runtime.driver.active.get_current_target().backend != "cuda":
        pytest.skip("the active Triton driver is not CUDA's; unset TZERO_CPU")


def fixture(
    *tiers: int,
    check: Callable[[int], int] = can_replay,
    override: bool = False,
    cuda: bool = False,
) -> Any:
    """A fixture over these tiers; `check` skips those that do not work here. With `override`, the
    test runs with that tier in the settings; with `cuda`, only where CUDA runs the kernels."""

    @pytest.fixture(params=tiers, ids=[NAMES[each] for each in tiers])
    def tier(request: pytest.FixtureRequest) -> Iterator[int]:
        if cuda:
            needs_cuda()
        found = check(request.param)
        if not override:
            yield found
            return
        with settings.override(tier=found):
            yield found

    return tier


def jit_maker(tier: int) -> Make:
    """A function that makes `tzero.jit` kernels of a tier."""

    def make(function: Any, **options: Any) -> Any:
        with settings.override(tier=tier):
            return tzero.jit(function, **options)

    return make


def of_tier(tier: int, host: Callable[..., Any], **options: Any) -> Any:
    """A host function as a `tzero.kernel` of a tier."""
    with settings.override(tier=tier):
        return tzero.kernel(**options)(host)
