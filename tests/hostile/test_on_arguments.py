"""Attributes that the program puts on a tensor which it passes as an argument: absent when the call
was recorded, there in a later one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.plans.hosts import scaled
from tests.plans.tiers import Pair, verifying


def with_a_default(x):
    return scaled(x, getattr(x, "scale", 2.0))


def if_it_is_there(x):
    return scaled(x, 3.0 if hasattr(x, "scale") else 2.0)


def with_an_except(x):
    try:
        return scaled(x, x.scale)
    except AttributeError:
        return scaled(x, 2.0)


def in_a_list(xs):
    return scaled(xs[0], getattr(xs[0], "scale", 2.0))


def in_a_helper(x):
    def scale(of):
        return getattr(of, "scale", 2.0)

    return scaled(x, scale(x))


HOSTS = (with_a_default, if_it_is_there, with_an_except, in_a_helper)


def tensor(**put: Any) -> torch.Tensor:
    made = torch.arange(4, dtype=torch.float32)
    vars(made).update(put)
    return made


def by_its_name(function: Any) -> str:
    return str(function.__name__)


@pytest.mark.parametrize("host", HOSTS, ids=by_its_name)
def test_an_attribute_that_a_later_argument_has(host: Any, tier: int, reader: str) -> None:
    found = Pair(tier, host)
    found.replays(lambda: (tensor(),))
    for put in ({"scale": 5.0}, {}, {"scale": 7.0}, {"other": 1}, {"scale": 5.0}):
        found(tensor(**put))
    found.replays(lambda: (tensor(),), recorded=0)


@pytest.mark.parametrize("host", HOSTS, ids=by_its_name)
def test_an_attribute_that_the_first_argument_has(host: Any, tier: int, reader: str) -> None:
    found = Pair(tier, host)
    for put in ({"scale": 5.0}, {"scale": 7.0}, {}, {"scale": 5.0}):
        found(tensor(**put))
    found.replays(lambda: (tensor(),))


def test_an_attribute_of_a_tensor_in_a_list(tier: int, reader: str) -> None:
    found = Pair(tier, in_a_list)
    found.replays(lambda: ([tensor()],))
    found([tensor(scale=5.0)])
    found.replays(lambda: ([tensor()],), recorded=0)


def by_a_method(x):
    return scaled(x, float(x.dim()))


def test_an_attribute_in_the_place_of_a_method(tier: int, reader: str) -> None:
    found = Pair(tier, by_a_method)
    found.replays(lambda: (tensor(),))
    found(tensor(dim=three))
    found.replays(lambda: (tensor(),), recorded=0)


def three() -> float:
    return 3.0


def by_an_operator(x):
    return scaled(x * 2, 2.0)


def test_what_is_looked_up_in_the_class_alone_needs_no_guard(tier: int, reader: str) -> None:
    found = Pair(tier, by_an_operator)
    found.replays(lambda: (tensor(),))
    found.replays(lambda: (tensor(__mul__=three),), recorded=0 if not verifying() else 3)


def test_the_reason_is_told(tier: int) -> None:
    kernel = Pair(tier, with_a_default).kernel
    for _ in range(3):
        kernel(tensor())
    assert "x.scale" in kernel.explain(tensor(scale=5.0)).refusal
    assert not kernel.explain(tensor()).refusal
