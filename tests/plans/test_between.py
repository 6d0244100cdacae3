"""Torch functions between launches run in every call, with that call's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton.language as tl  # noqa: F401 (custom operators are written with it)

from tests.plans.hosts import added, gathered, increased, scaled
from tests.plans.tiers import Pair


def pairs() -> tuple[Any, ...]:
    return torch.randn(4, 4), torch.randn(4, 4)


BETWEEN: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "plus": lambda x, y: x + y,
    "plus a number": lambda x, y: 2 + x,
    "minus itself": lambda x, y: -x,
    "sum": lambda x, y: x.sum(),
    "sum over one": lambda x, y: x.sum(0, keepdim=True),
    "matmul": lambda x, y: x @ y,
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "functional": lambda x, y: F.gelu(F.layer_norm(x, (4,))),
    "attention": lambda x, y: F.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0],
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack((x, y), dim=1),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "comparison": lambda x, y: (x < y).float(),
    "to": lambda x, y: x.to(torch.float64),
    "clone": lambda x, y: x.t().clone(),
    "contiguous": lambda x, y: x.t().contiguous(),
    "reshape that copies": lambda x, y: x.t().reshape(-1),
    "indices": lambda x, y: torch.index_select(x, 0, torch.tensor([2, 0])),
    "gather": lambda x, y: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "masked_fill": lambda x, y: x.masked_fill(x > 0, 1.0),
    "clamp": lambda x, y: x.clamp(min=0.0),
    "a number in the middle": lambda x, y: torch.tensor([1.0, 2.0]) * 3,
    "parts that are joined": lambda x, y: torch.cat(x.split([1, 3])[::-1]),
    "operators by name": lambda x, y: torch.ops.aten.mul(x, y),
    "operators by overload": lambda x, y: torch.ops.aten.mul.Tensor(x, y),
    "conjugated": lambda x, y: torch.view_as_real(torch.complex(x, y).conj().resolve_conj()),
    "negated": lambda x, y: torch.complex(x, y).conj().imag.contiguous(),
    "of no memory": lambda x, y: x * torch.empty(3, 2, device="meta").size(0),
    "small floats": lambda x, y: x.to(torch.float8_e5m2).to(torch.float32),
    "truths": lambda x, y: (x > 0).view(torch.uint8).float(),
    "no elements": lambda x, y: x[:0].sum(0, keepdim=True),
    "expanded": lambda x, y: x[:1].expand(4, 4) + y[:, :1].expand(4, 4),
    "many dimensions": lambda x, y: x.view(1, 2, 1, 2, 1, 4)[:, :, 0, :, 0].sum((0, 1)),
    "several results": lambda x, y: torch.var_mean(x, dim=0)[1],
    "out=": lambda x, y: torch.add(x, y, out=torch.empty(4, 4)),
    "out= of an input": lambda x, y: torch.add(x, y, out=y),
    "pow": lambda x, y: 2.0**x,
    "fft": lambda x, y: torch.view_as_real(torch.fft.fft(x)).contiguous(),
}

IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda x, y: x.add_(1),
    "plus equals": lambda x, y: plus_equals(x, y),
    "zero_": lambda x, y: x.zero_(),
    "fill_": lambda x, y: x.fill_(2.5),
    "fill_ by a tensor": lambda x, y: x.fill_(y[0, 0]),
    "one element": lambda x, y: put(x, 0, 1.0),
    "a row": lambda x, y: put(x, 1, y[0]),
    "a part": lambda x, y: put(x, (slice(1, None), ..., 0), -0.0),
    "a mask": lambda x, y: put(x, x > 0, 7.0),
    "all": lambda x, y: put(x, ..., y),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ into a view": lambda x, y: x[1:].copy_(y[:3]),
    "of a view": lambda x, y: x.t()[0].mul_(3),
    "of an output": lambda x, y: torch.empty_like(x).copy_(x).sub_(y),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([0, 1, 2, 3]), y),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 0.5),
}


def plus_equals(x, y):
    x += y
    return x


def put(x, at, value):
    x[at] = value
    return x


RANDOM: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "rand": lambda x, y: torch.rand(4, 4),
    "randn_like": lambda x, y: torch.randn_like(x),
    "randint": lambda x, y: torch.randint(0, 9, (4, 4)).float(),
    "randperm": lambda x, y: torch.randperm(16).float().view(4, 4),
    "dropout": lambda x, y: F.dropout(x, 0.5),
    "bernoulli_": lambda x, y: x.bernoulli_(0.5),
    "normal_ of an output": lambda x, y: torch.empty_like(x).normal_(),
    "multinomial": lambda x, y: x.abs().multinomial(2).float(),
}


def between(op: Callable[..., Any]) -> Callable[..., Any]:
    def host(x, y):
        middle = op(scaled(x, 2.0), y)
        return middle, gathered(middle)

    return host


def in_place(op: Callable[..., Any]) -> Callable[..., Any]:
    def host(x, y):
        increased(x, 1.0)
        middle = op(x, y)
        increased(x, 1.0)
        return gathered(middle)

    return host


@pytest.mark.parametrize("name", BETWEEN)
def test_a_function_of_torchs_between_launches_runs_in_each_call(name: str, pair: Any) -> None:
    pair(between(BETWEEN[name])).replays(pairs)


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_done_in_place_is_done_once_in_each_call(name: str, pair: Any) -> None:
    pair(in_place(IN_PLACE[name])).replays(pairs)


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_drawn_as_the_host_function_draws_them(name: str, pair: Any) -> None:
    pair(between(RANDOM[name])).replays(pairs, times=4)


# -- operators written in Python -------------------------------------------------------------------


@torch.library.custom_op("tzero_plans::increase", mutates_args=("x",))
def increase_(x: torch.Tensor) -> None:
    increased(x, 1.0)


@torch.library.custom_op("tzero_plans::both", mutates_args=())
def both(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return scaled(x, 2.0), [scaled(x, 3.0), scaled(x, 4.0)]


@both.register_fake
def _(x):
    return torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x)]


def by_a_custom_operator(x):
    torch.ops.tzero_plans.increase(x)
    return scaled(x, 2.0)


def by_one_with_nested_results(x):
    one, (two, three) = torch.ops.tzero_plans.both(x)
    return added(one, three), two


@pytest.mark.parametrize("host", [by_a_custom_operator, by_one_with_nested_results])
def test_launches_of_a_custom_operator_are_made_once(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for _ in range(3):
        found(torch.randn(5))


# -- lifetimes -------------------------------------------------------------------------------------


def test_a_plan_keeps_no_tensor_of_a_call_alive(tier: int) -> None:
    import gc
    import weakref

    from tests.plans.tiers import of_tier

    kernel = of_tier(tier, between(BETWEEN["matmul"]))
    for _ in range(2):
        x, y = pairs()
        result = kernel(x, y)
        alive = [weakref.ref(each) for each in (x, y, *result)]
        del x, y, result
        gc.collect()
        assert [each() for each in alive] == [None] * 4
