"""Arguments of host functions and launches: which are compared by value and which are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tzero
from tests.plans.hosts import added, gathered, increased, scaled
from tests.plans.kernels import BLOCK, fast_scale, give, put, put_if_any, scale
from tests.plans.tiers import Pair, of_tier, verifying

TOO_WIDE = [2**63, 2**64, -(2**70)]
INTEGERS = [0, 1, 2, 16, 17, -1, -16, 2**31 - 1, 2**31, 2**40, -(2**31) - 1, 2**63 - 1]
FLOATS = [0.0, -0.0, 1.0, 1.5, math.nan, math.inf, -math.inf, 1e-45, 1e300]


def integer_place() -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int64)


def passed_on(out, value):
    put[(1,)](out, value)
    return out


def passed_on_by_name(out, value):
    put[(1,)](value=value, out=out)
    return out


def passed_on_twice(out, value):
    put[(1,)](out, value)
    put[(1,)](out[1:], value)
    return out


def looked_at(out, value):
    put[(1,)](out, value + 0)
    return out


def passed_on_and_looked_at(out, value):
    put[(1,)](out, value)
    return out, value


def passed_on_by_a_grid(out, value):
    put[lambda meta: (1,)](out, value)
    return out


def asked_by_a_grid(out, value):
    put[lambda meta: (1 if meta["value"] else 2,)](out, value)
    return out, value


def passed_on_from_a_branch(out, value, also):
    put[(1,)](out, value)
    if also:
        put[(1,)](out[1:], value)
    return out


HOSTS = [passed_on, passed_on_by_name, passed_on_twice, looked_at, passed_on_and_looked_at]


@pytest.mark.parametrize("host", [*HOSTS, passed_on_by_a_grid, asked_by_a_grid])
def test_integers_of_every_class_reach_the_launch(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for value in (*INTEGERS, True, False, *INTEGERS, True):
        found(integer_place(), value)


@pytest.mark.parametrize("host", [passed_on, passed_on_twice, passed_on_by_a_grid])
@pytest.mark.parametrize("first", [0, 1, 16, 17, 2**31, True])
def test_the_class_of_the_first_integer_is_not_that_of_the_next(
    first: int, host: Any, pair: Any
) -> None:
    found: Pair = pair(host)
    for value in (first, 2, first, 2, 2, 16, 1, 1, 2**40, True, True, 3, 1, 17, 17, 2**31, 3):
        found(integer_place(), value)


@pytest.mark.parametrize("host", [passed_on, looked_at])
def test_an_integer_that_is_too_wide_is_refused_as_triton_refuses_it(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for value in (3, *TOO_WIDE, 4, *TOO_WIDE, 3):
        found(integer_place(), value)


@pytest.mark.parametrize("host", HOSTS)
def test_floats_reach_the_launch_bit_by_bit(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for value in (*FLOATS, *FLOATS):
        found(torch.zeros(2), value)


@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.booleans(), min_size=3, max_size=6))
def test_any_integers_one_after_the_other(pair: Any, values: list[int]) -> None:
    found: Pair = pair(passed_on)
    for value in values:
        found(integer_place(), value)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", [passed_on, passed_on_by_name, passed_on_twice])
def test_a_number_that_is_only_passed_on_has_a_plan_for_each_class(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for one, others in ((3, (4, 5, -7)), (1, (1,)), (16, (32, 0, -16)), (2**40 + 1, (2**40 + 3,))):
        assert found(integer_place(), one)
        assert not any(found(integer_place(), value) for value in others)


@pytest.mark.usefixtures("exact")
@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", [looked_at, passed_on_and_looked_at, asked_by_a_grid])
def test_a_number_that_is_looked_at_has_a_plan_for_each_value(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    assert found(integer_place(), 3)
    assert found(integer_place(), 4)
    assert not found(integer_place(), 3)
    assert not found(integer_place(), 4)


def test_a_number_that_one_branch_passes_on_is_right_in_the_other(pair: Any) -> None:
    found: Pair = pair(passed_on_from_a_branch)
    for value, also in [(3, False), (4, True), (5, False), (6, True), (3, True), (4, False)]:
        found(integer_place(), value, also)


def passed_to_whatever_is_there(out, value):
    for each in (put, TABLE):
        each[(1,)](out, value)
    return out


def look(out: torch.Tensor, value: int) -> None:
    increased(out, 10 if value > 5 else 20)


TABLE = {(1,): look}


def test_only_launches_forward_a_number(pair: Any) -> None:
    found: Pair = pair(passed_to_whatever_is_there)
    for value in (3, 4, 6, 7, 3):
        found(integer_place(), value)


def reassigned(out, value):
    put[(1,)](out, value)
    value = 5
    put[(1,)](out[1:], value)
    return out


def spread(out, values):
    put[(1,)](*[out, *values])
    return out


def one_of_two(out, one, other):
    put[(1,)](out, one if one > other else other)
    return out


def test_numbers_that_are_assigned_unpacked_or_chosen_are_compared_by_value(pair: Any) -> None:
    found, starred, chosen = pair(reassigned), pair(spread), pair(one_of_two)
    for value in (3, 4, 3, 9):
        found(integer_place(), value)
        starred(integer_place(), [value])
        chosen(integer_place(), value, 5)


# -- other launch arguments ------------------------------------------------------------------------


def of_every_kind(x, out):
    view = x[1:]
    scale[(1,)](view, out, 2.0, view.numel(), BLOCK=BLOCK, num_warps=2)
    put_if_any[(1,)](out, None)
    give[(1,)](out[1:], VALUE=7)
    scale[1, 1, 1](out, out, -1.0, n=out.numel(), BLOCK=BLOCK)
    scale[lambda meta: (meta["n"] // meta["n"],)](out, out, 3, out.numel(), BLOCK)
    fast_scale[(1,)](out, out, 0.5, out.numel(), BLOCK=BLOCK)
    return out


def test_launches_with_views_none_constants_options_and_grids_of_every_kind(pair: Any) -> None:
    pair(of_every_kind).replays(lambda: (torch.randn(6), torch.randn(6)))


def on_nothing(x):
    out = torch.empty_like(x)
    scale[(triton_cdiv(x.numel(), BLOCK),)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    return out


def triton_cdiv(n: int, block: int) -> int:
    return (n + block - 1) // block


@pytest.mark.parametrize("size", [0, 1, 5, 64, 65, 200])
def test_grids_of_no_one_and_several_programs(size: int, pair: Any) -> None:
    pair(on_nothing).replays(lambda: (torch.randn(size),))


# -- arguments of the host function ----------------------------------------------------------------


def of_lists(xs, table):
    out = [scaled(x, table["by"]) for x in xs]
    increased(table["y"], float(len(xs)))
    return out, {"y": table["y"], "deep": [added(*table["deep"])]}


def test_lists_tuples_and_dicts_of_tensors_and_numbers(pair: Any) -> None:
    found: Pair = pair(of_lists)
    for count, by in [(1, 2.0), (1, 2.0), (2, 2.0), (2, 3.0), (1, 2.0), (2, 3.0), (0, 2.0)]:
        deep = (torch.randn(3), torch.randn(3))
        found([torch.randn(4)] * count, {"by": by, "y": torch.randn(2), "deep": deep})


@pytest.mark.usefixtures("replaying")
def test_lists_of_tensors_are_replayed(pair: Any) -> None:
    deep = (torch.randn(3), torch.randn(3))
    table = {"by": 2.0, "y": torch.randn(2), "deep": deep}
    pair(of_lists).replays(lambda: ([torch.randn(4), torch.randn(4)], table))


def with_defaults(x, by=2.0, shift=None, name="plain"):
    out = scaled(x, by)
    return out if shift is None else (increased(out, shift), name)


def test_arguments_by_name_and_by_default(pair: Any) -> None:
    found: Pair = pair(with_defaults)
    for _ in range(2):
        found(torch.randn(3))
        found(torch.randn(3), 3.0)
        found(x=torch.randn(3), shift=1.0)
        found(torch.randn(3), name="other", by=2.0, shift=4.0)


def configured(x, config, by=1.0):
    return scaled(x, config.factor * by)


def test_the_config_of_a_bound_kernel_counts_from_the_next_call_on(pair: Any) -> None:
    found: Pair = pair(configured, config=tzero.Config(factor=2.0))
    found.replays(lambda: (torch.randn(3),))
    for kernel in (found.kernel, found.plain):
        kernel.bind(torch.randn(3)).set_config(tzero.Config(factor=5.0))
    found.replays(lambda: (torch.randn(3),))
    for kernel in (found.kernel, found.plain):
        kernel.reset()
    found.replays(lambda: (torch.randn(3),))


def made_for(x, by: tzero.ConstExpr):
    return scaled(x, by)


def asking(x, by):
    return scaled(x, tzero.specialize(by))


def asking_of_a_size(x, by):
    return scaled(x, float(tzero.specialize(x.size(0)))), by


@pytest.mark.parametrize("host", [made_for, asking, asking_of_a_size])
def test_constants_are_compared_by_value(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for by in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0, -0.0, 0.0, 3.0):
        found(torch.randn(3), by)
        found(torch.randn(2), by)
    if not verifying():
        assert not found(torch.randn(3), 3.0)


def test_sizes_that_share_a_bound_kernel_have_plans_of_their_own(pair: Any) -> None:
    found: Pair = pair(lambda x: gathered(x), static_shapes=False)
    for size in ((4, 3), (2, 3), (3, 4), (4, 3), (3, 4)):
        found(torch.randn(size))
        found(torch.randn(size).t())


def test_the_result_of_key_is_part_of_the_key_only(pair: Any) -> None:
    found: Pair = pair(with_defaults, key=lambda x, by, shift, name: x.size(0) % 2)
    for size in (3, 4, 3, 4):
        found(torch.randn(size), 2.0, 1.0)


@pytest.mark.parametrize("static_shapes", [None, True])
def test_a_number_that_is_never_the_same_is_right_each_time(
    static_shapes: bool | None, pair: Any, tier: int
) -> None:
    found: Pair = pair(looked_at, static_shapes=static_shapes)
    for value in (*range(150), *range(140, 150)):
        found(integer_place(), value)
    reasons = [reason for reason in found.reasons() if "change so often" in reason]
    is_open = static_shapes is None and tier == 2 and not verifying()  # one plan serves all
    assert len(reasons) == (0 if is_open else 1)


def test_numbers_that_are_replayed_often_enough_are_all_recorded(pair: Any) -> None:
    found: Pair = pair(looked_at, static_shapes=True)
    for value in range(100):
        for _ in range(4):
            found(integer_place(), value)
    if not verifying():  # which records each call again
        assert not [reason for reason in found.reasons() if "change so often" in reason]


def attributes_of_its_own(x):
    return scaled(x, x.by)


def attributes_that_may_be_there(x):
    return scaled(x, getattr(x, "by", 2.0))


@pytest.mark.parametrize("host", [attributes_of_its_own, attributes_that_may_be_there])
def test_attributes_put_on_a_tensor_are_respected(host: Any, tier: int) -> None:
    kernel = of_tier(tier, host)
    for by in (2.0, 2.0, 3.0, 3.0, 2.0):
        x = torch.ones(3)
        x.by = by  # type: ignore[attr-defined]
        assert kernel(x).tolist() == [by] * 3


# -- names -----------------------------------------------------------------------------------------


def odd_names(launch_1, empty_strided, leaf_3, constant_5, call_2, global_0, _):
    out = torch.empty_like(launch_1)
    scale[(1,)](launch_1, out, leaf_3[0] + constant_5, out.numel(), BLOCK=BLOCK)
    both = torch.var_mean(out)
    return out + empty_strided, both[1] + _, torch.full((2,), math.inf), call_2, global_0 + WEIGHT


WEIGHT = torch.ones(2)


def test_parameters_may_have_any_name(pair: Any) -> None:
    pair(odd_names).replays(
        lambda: (torch.randn(3), torch.randn(3), [2.0, torch.ones(1)], 1.5, "a", torch.ones(2), 1.0)
    )


def empty_strided(x):
    return scaled(x, 2.0)


def test_host_functions_may_have_any_name(pair: Any) -> None:
    pair(empty_strided).replays(lambda: (torch.randn(3),))
