"""Calls that once went wrong, each with its own check."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.plans.hosts import scaled
from tests.plans.kernels import put
from tests.plans.tiers import of_tier
from tzero import settings

inner: Any = None


def passed_on(out, n, deep):
    if deep:
        return inner(out, 5, False)
    put[(1,)](out, n)
    return out


def test_a_number_in_a_call_of_itself_is_not_forwarded(
    tier: int, reader: str, monkeypatch: Any
) -> None:
    kernel = of_tier(tier, passed_on)
    monkeypatch.setitem(globals(), "inner", kernel)
    for n in (5, 5, 7, 7, 9):
        assert kernel(torch.zeros(1, dtype=torch.int32), n, True).tolist() == [5]


@functools.lru_cache
def kept():
    return [2.0]


def returns_it(x):
    return scaled(x, 2.0), kept()


def test_a_list_that_a_cache_holds_is_returned_itself(tier: int, reader: str) -> None:
    kernel = of_tier(tier, returns_it)
    for _ in range(3):
        assert kernel(torch.ones(3))[1] is kept()


NUMBER = 2.0


def reads_number(x):
    return scaled(x, NUMBER)


def test_a_change_there_and_back_is_no_drift(tier: int, reader: str, monkeypatch: Any) -> None:
    kernel = of_tier(tier, reads_number)
    with settings.override(verify=True):
        for number in (2.0, 2.0, 3.0, 3.0, 2.0, 2.0, 3.0):
            monkeypatch.setitem(globals(), "NUMBER", number)
            assert kernel(torch.ones(3)).tolist() == [number] * 3
