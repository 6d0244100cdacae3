"""Tensors that are the same object or share memory: in arguments, results and globals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plans.hosts import added, gathered, increased, scaled
from tests.plans.kernels import BLOCK, add
from tests.plans.tiers import Pair

Arguments = Callable[[], tuple[torch.Tensor, torch.Tensor]]


def apart() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4), torch.randn(4)


def one() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4)
    return x, x


def two_of_one_memory() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4)
    return x, x.view(4)


def side_by_side() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8)
    return x[:4], x[4:]


def the_other_way_round() -> tuple[torch.Tensor, torch.Tensor]:
    return side_by_side()[::-1]


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6)
    return x[:4], x[2:]


def far_apart() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32)
    return x[:4], x[28:]


def of_one_memory_not_aligned() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(9)
    return x[1:5], x[5:]


ARGUMENTS: list[Arguments] = [
    *(apart, one, two_of_one_memory, side_by_side, the_other_way_round, overlapping, far_apart),
    of_one_memory_not_aligned,
]


def sums(x, y):
    return added(x, y)


def in_place(x, y):
    increased(x, 1.0)
    increased(y, 10.0)


def into_the_second(x, y):
    add[(1,)](x, x, y, x.numel(), BLOCK=BLOCK)
    return y


def by_identity(x, y):
    return scaled(x, 2.0 if x is y else 3.0)


def by_identity_in_a_list(x, y):
    return scaled(x, float(sum(each is x for each in [x, y])))


def views_of_both(x, y):
    a, b = torch.broadcast_tensors(x.view(2, 2), y.view(2, 2))
    increased(b[1], 5.0)
    return a, b, gathered(b)


def views_of_both_in_lists(x, y):
    a, b = torch.atleast_2d(x, y)
    increased(b, 5.0)
    return gathered(a), b


def joined(x, y):
    out = torch.cat([x, y])
    increased(out, 1.0)
    return out, x, y[1:]


def copied(x, y):
    increased(x, 1.0)
    y.copy_(x)
    increased(y, 1.0)
    return y


def swapped(x, y):
    increased(x, 1.0)
    return y, x, x.view(-1), y.view(-1)


HOSTS = [
    *(sums, in_place, into_the_second, by_identity, by_identity_in_a_list, views_of_both),
    *(views_of_both_in_lists, joined, copied, swapped),
]


@pytest.mark.parametrize("host", HOSTS)
def test_arguments_may_be_identical_or_share_memory_in_any_order_of_calls(
    host: Any, pair: Any
) -> None:
    for first in (*ARGUMENTS,):
        found: Pair = pair(host)
        found(*first())
        found(*first())
        for build in ARGUMENTS:
            found(*build())


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("build", ARGUMENTS)
def test_arguments_that_share_memory_are_replayed(build: Arguments, pair: Any) -> None:
    pair(sums).replays(build)
    pair(in_place).replays(build)


def a_list_of_them(xs):
    increased(xs[0], 1.0)
    return scaled(xs[-1], 2.0 if xs[0] is xs[1] else 3.0), xs[0] is xs[2]


def test_tensors_in_lists_may_be_identical(pair: Any) -> None:
    found: Pair = pair(a_list_of_them)
    for pattern in ("abc", "abc", "aba", "aab", "aaa", "abb", "abc", "aba"):
        held = {name: torch.randn(3) for name in "abc"}
        found([held[name] for name in pattern])


# -- globals ---------------------------------------------------------------------------------------

WEIGHT = torch.arange(4.0)


def with_a_global(x):
    increased(WEIGHT, 0.0)
    return added(x, WEIGHT), x is WEIGHT


def compared_with_a_global(x):
    return scaled(x, 2.0 if x is WEIGHT else 3.0)


@pytest.mark.parametrize("host", [with_a_global, compared_with_a_global])
def test_an_argument_may_be_the_tensor_in_a_global(host: Any, tier: int) -> None:
    from tests.plans.tiers import assert_same, of_tier

    kernel, plain = of_tier(tier, host), of_tier(0, host)
    for x in (torch.randn(4), torch.randn(4), WEIGHT, torch.randn(4), WEIGHT, WEIGHT):
        assert_same(kernel(x), plain(x))


def writes_through_a_view(x):
    out = torch.zeros(4)
    view = out[1:3]
    increased(view, 1.0)
    increased(x[2:], 10.0)
    increased(out, 5.0)
    return view, out, x[1:3], added(out, x)


def test_writes_are_seen_through_views_of_inputs_and_outputs(pair: Any) -> None:
    pair(writes_through_a_view).replays(lambda: (torch.randn(4),))


def set_to_anothers_memory(x):
    out = torch.zeros(4)
    before = out.view(-1)
    out.set_(x)
    increased(out, 1.0)
    increased(before, 2.0)
    return out, before


def test_a_tensor_may_be_set_to_anothers_memory(pair: Any) -> None:
    found: Pair = pair(set_to_anothers_memory)
    for _ in range(3):
        found(torch.randn(4))


def test_results_of_two_calls_share_nothing(tier: int) -> None:
    from tests.plans.tiers import of_tier

    kernel = of_tier(tier, sums)
    found = [kernel(*apart()) for _ in range(4)]
    assert len({each.data_ptr() for each in found}) == 4
