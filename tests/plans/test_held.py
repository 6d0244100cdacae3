# mypy: allow-untyped-defs
"""Regressions: each of these host functions once gave a wrong result in the second call."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl

from tests.plans.hosts import scaled
from tests.plans.tiers import of_tier


@triton.jit
def put_two(out, n, N: tl.constexpr):
    tl.store(out, n)
    tl.store(out + 1, N)


def given_twice(out, n):
    put_two[(1,)](out, n, N=n)
    return out


def given_twice_by_place(out, n):
    put_two[(1,)](out, n, n)
    return out


@pytest.mark.parametrize("host", [given_twice, given_twice_by_place])
def test_a_number_that_is_also_passed_as_a_constant_is_compared_by_value(
    host: Any, tier: int
) -> None:
    kernel = of_tier(tier, host)
    for n in (100, 104, 100, 104, 108):
        out = torch.zeros(2, dtype=torch.int32)
        assert kernel(out, n).tolist() == [n, n]


def drawn(x):
    generator = torch.Generator().manual_seed(7)
    return scaled(x, 2.0), torch.rand(4, generator=generator)


def test_a_generator_of_its_own_begins_anew_in_each_call(tier: int) -> None:
    kernel, x = of_tier(tier, drawn), torch.ones(3)
    for _ in range(3):
        assert torch.equal(kernel(x)[1], drawn(x)[1])


def flagged(x):
    return scaled(x, MY_FACTOR)  # type: ignore[name-defined]  # noqa: F821


def test_a_replaced_builtin_is_noticed(tier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "MY_FACTOR", 2.0, raising=False)
    kernel, x = of_tier(tier, flagged), torch.ones(3)
    for factor in (2.0, 2.0, 3.0, 2.0):
        monkeypatch.setattr(builtins, "MY_FACTOR", factor)
        assert kernel(x).tolist() == [factor] * 3


class Strict(NamedTuple):
    one: Any
    other: Any


def refuse_to_be_called(kind, *args, **kwargs):
    raise TypeError("made by its own functions only")


def in_a_tuple(x):
    return Strict._make((scaled(x, 2.0), x))


def test_a_named_tuple_is_made_whatever_its_class_does(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = of_tier(tier, in_a_tuple), torch.ones(3)
    kernel(x)
    monkeypatch.setattr(Strict, "__new__", refuse_to_be_called)
    for _ in range(3):
        found = kernel(x)
        assert type(found) is Strict and found.other is x and found.one.tolist() == [2.0] * 3


def test_the_version_of_what_is_filled_between_functions_is_torchs(tier: int) -> None:
    def host(x):
        out = torch.empty_like(x)
        kept = x * 2
        out.fill_(1.0)
        return scaled(out, 2.0), kept, out

    kernel, x = of_tier(tier, host), torch.ones(3)
    for _ in range(3):
        assert kernel(x)[2]._version == host(x)[2]._version == 1


TABLE: dict[str, Any] = {"by": 2.0}


def with_its_table(x):
    return scaled(x, TABLE["by"]), TABLE


def test_a_returned_global_dict_is_that_dict(tier: int) -> None:
    kernel, x = of_tier(tier, with_its_table), torch.ones(3)
    for _ in range(3):
        assert kernel(x)[1] is TABLE
