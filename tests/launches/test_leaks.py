"""Launches leave nothing behind: memory, references and objects stay as they are."""

from __future__ import annotations

import pytest

from tests.launches.test_processes import run


def test_a_hundred_thousand_launches_leave_nothing_behind(fast_tier: int) -> None:
    run("leak", fast_tier, 100_000)


def test_hundreds_of_kernels_leave_nothing_behind(fast_tier: int) -> None:
    run("kernels_go", fast_tier, 200)


@pytest.mark.soak
def test_a_million_launches_leave_nothing_behind(fast_tier: int) -> None:
    run("leak", fast_tier, 1_000_000, timeout=1800)


@pytest.mark.soak
def test_thousands_of_kernels_leave_nothing_behind(fast_tier: int) -> None:
    run("kernels_go", fast_tier, 5_000, timeout=1800)
