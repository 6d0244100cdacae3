"""Nested kernels: autotuners, kernels that call others or themselves, and configs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.plans.hosts import added, increased, scaled
from tests.plans.tiers import Pair, counted, of_tier, verifying
from tzero import events


def plainly(x, y):
    return added(x, y) * 2


# -- autotuners ------------------------------------------------------------------------------------


def test_a_call_in_which_an_autotuner_measures_is_not_the_plan(tier: int) -> None:
    @triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
    @triton.jit(do_not_specialize=["n"])
    def tuned(x, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    def host(x):
        out = torch.empty_like(x)
        tuned[(1,)](x, out, x.numel())
        return out

    kernel = of_tier(tier, host)
    seen: list[events.Event] = []
    with events.observe(seen.append):
        for _ in range(2):
            x = torch.randn(3)
            assert torch.equal(kernel(x), x * 2)
        with counted(host) as runs:
            assert torch.equal(kernel(x), x * 2)
    assert verifying() or runs == [0]
    assert sum("an autotuner times tuned" in event.reason for event in seen) == 1


# -- kernels in kernels ----------------------------------------------------------------------------


def nest(tier: int, inner_tier: int) -> tuple[Any, Any]:
    """A kernel that calls another, which has a config."""
    inner = of_tier(inner_tier, configured, config=tzero.Config(by=2.0))

    def outer(x):
        return increased(inner(x), 1.0)

    return of_tier(tier, outer), inner


def configured(x, config):
    return scaled(x, config.by)


def twice(x, config):
    return x * config.by


@pytest.mark.parametrize("inner_tier", [0, 1])
def test_a_kernel_in_a_kernel_is_replayed_with_it(inner_tier: int, tier: int) -> None:
    outer, _ = nest(tier, inner_tier)
    outer(torch.ones(3))
    with counted(configured) as runs:
        assert outer(torch.ones(3)).tolist() == [3.0] * 3
    assert verifying() or runs == [0]


@pytest.mark.parametrize("inner_tier", [0, 1])
def test_the_config_of_an_inner_kernel_counts_from_the_next_call_on(
    inner_tier: int, tier: int
) -> None:
    outer, inner = nest(tier, inner_tier)
    x = torch.ones(3)
    assert [outer(x)[0].item() for _ in range(2)] == [3.0, 3.0]
    inner.bind(x).set_config(tzero.Config(by=5.0))
    assert [outer(x)[0].item() for _ in range(2)] == [6.0, 6.0]
    inner.reset()
    assert [outer(x)[0].item() for _ in range(2)] == [3.0, 3.0]


@pytest.mark.parametrize("inner_tier", [0, 1])
def test_the_config_of_an_inner_kernel_that_was_bound_anew_counts(
    inner_tier: int, tier: int
) -> None:
    outer, inner = nest(tier, inner_tier)
    x = torch.ones(3)
    assert [outer(x)[0].item() for _ in range(2)] == [3.0, 3.0]
    inner.reset()
    inner.bind(x).set_config(tzero.Config(by=7.0))
    assert [outer(x)[0].item() for _ in range(2)] == [8.0, 8.0]


def test_the_config_of_an_inner_kernel_that_launches_nothing_counts_too(tier: int) -> None:
    inner = of_tier(tier, twice, config=tzero.Config(by=2.0))

    def outer(x):
        return increased(inner(x), 1.0)

    kernel, x = of_tier(tier, outer), torch.ones(3)
    inner(x)
    assert [kernel(x)[0].item() for _ in range(2)] == [3.0, 3.0]
    inner.bind(x).set_config(tzero.Config(by=5.0))
    assert [kernel(x)[0].item() for _ in range(2)] == [6.0, 6.0]


def test_a_kernel_may_call_itself(tier: int) -> None:
    def host(x, depth):
        out = scaled(x, 2.0)
        return out if depth == 0 else kernel(out, depth - 1)

    kernel = of_tier(tier, host)
    for depth in (0, 2, 1, 2, 0, 3):
        assert kernel(torch.ones(2), depth).tolist() == [2.0 ** (depth + 1)] * 2


def test_what_reset_forgets_is_recorded_anew(pair: Any) -> None:
    found: Pair = pair(plainly)
    found.replays(lambda: (torch.randn(3), torch.randn(3)))
    found.kernel.reset()
    assert found(torch.randn(3), torch.randn(3))
    found.replays(lambda: (torch.randn(3), torch.randn(3)), recorded=0)
