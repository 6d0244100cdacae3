"""Cached functions on the path: a later call finds the result in the cache, which alone is guarded.

What such a function reads and does when it fills the cache is no part of the plan, because the next
plain call does not run it either.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import tzero
from tests.plans.hosts import scaled
from tzero.adapters import python_frames

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)

FACTOR, NAME, FAILS = 2.0, "a", True


@functools.cache
def factor() -> float:
    return FACTOR


@functools.lru_cache(maxsize=4)
def factor_of(key: Any) -> float:
    return FACTOR


@functools.cache
def computed() -> float:
    return float((torch.ones(3) * FACTOR).max())


@functools.cache
def failing() -> float:
    if FAILS:
        raise ValueError("no such factor")
    return 3.0


class Key:
    def __hash__(self) -> int:
        return hash(NAME)

    def __eq__(self, other: object) -> bool:
        return self is other


KEY = Key()


@pytest.fixture(autouse=True)
def forgotten() -> None:
    scaled(torch.arange(4.0), 2.0)  # no plan is kept while Triton compiles
    for each in (factor, factor_of, computed, failing):
        each.cache_clear()


def checked(kernel: Any, host: Any, x: torch.Tensor, calls: int = 3) -> None:
    for _ in range(calls):
        assert torch.equal(kernel(x), host(x))


def test_what_a_cached_function_reads_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(x):
        return scaled(x, factor())

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    checked(kernel, host, x, 1)
    plan = kernel.explain(x).plan
    assert "FACTOR" not in str(plan) and "has cached" in str(plan)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert not kernel.explain(x).refusal
    checked(kernel, host, x)
    factor.cache_clear()
    assert kernel.explain(x).refusal
    assert torch.equal(kernel(x), x * 5)


def test_what_a_cached_function_computes_is_not_repeated() -> None:
    def host(x):
        return scaled(x, computed())

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(kernel(x), x * FACTOR)
    steps = kernel.explain(x).plan.steps
    assert [type(step).__name__ for step in steps] == ["Allocate", "Launch"]


def test_the_hash_of_a_cached_functions_argument_is_guarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def host(x):
        return scaled(x, factor_of(KEY))

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    checked(kernel, host, x)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    checked(kernel, host, x)
    monkeypatch.setitem(globals(), "NAME", "b")
    assert torch.equal(kernel(x), x * 5)
    checked(kernel, host, x)


def through_a_helper() -> float:
    return failing() + 1.0


@pytest.mark.parametrize("helper", [failing, through_a_helper], ids=["directly", "in a helper"])
def test_a_cached_function_that_raises_is_run_again(
    helper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host(x):
        try:
            by = helper()
        except ValueError:
            by = 2.0
        return scaled(x, by)

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    checked(kernel, host, x)
    assert "failing, whose results are cached, raises" in kernel.explain(x).refusal
    monkeypatch.setitem(globals(), "FAILS", False)
    checked(kernel, host, x)
