# mypy: allow-untyped-defs
"""Values of tensors that a host function reads: its plan is for these values alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.plans.hosts import increased, scaled
from tests.plans.test_native_hits import code_run
from tests.plans.tiers import Pair, available, of_tier, verifying


def by_item(x, factor):
    return scaled(x, factor.item())


def by_truth(x, factor):
    return scaled(x, 3.0 if factor > 1 else 2.0)


def by_equality(x, factor):
    if torch.equal(factor, torch.tensor(1.0)):
        return scaled(x, 2.0)
    return scaled(x, 2.0) * factor


def by_count(x, factor):
    count = (x > factor).sum().item()
    return scaled(x, float(count)), count


def by_several(x, factor):
    first = int(factor)
    return scaled(x, first + float(x.abs().max() > 100.0)), bool(first)


READING = [by_item, by_truth, by_equality, by_count, by_several]
VALUES = [1.0, 2.0, 1.0, -0.0, 0.0, float("nan"), float("inf"), 1.0]


def given(value: float) -> tuple[Any, ...]:
    return torch.arange(-2.0, 3.0), torch.tensor(value)


@pytest.mark.parametrize("host", READING)
def test_a_call_is_replayed_while_the_value_is_the_same(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    found.replays(lambda: given(1.0))


@pytest.mark.parametrize("host", READING)
def test_a_call_with_another_value_is_right(host: Any, pair: Any) -> None:
    found: Pair = pair(host)
    for value in VALUES:
        if value != value and host is by_several:
            continue  # int(nan) raises
        if value == float("inf") and host is by_several:
            continue
        found(*given(value))
        found(*given(value))


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan")])
@pytest.mark.usefixtures("replaying")
def test_values_are_compared_by_their_bits(value: float, tier: int) -> None:
    kernel = of_tier(tier, by_item)
    for each in (0.0, 0.0, value, value, value):
        x, factor = given(each)
        assert repr(kernel(x, factor)) == repr(by_item(x, factor))
    assert kernel.explain(*given(value)).plan is not None


@pytest.mark.usefixtures("replaying")
def test_a_value_that_always_differs_is_not_recorded_forever(pair: Any) -> None:
    found: Pair = pair(by_item)
    runs = [found(*given(float(k))) for k in range(40)]
    assert all(runs)
    told = [reason for reason in found.reasons() if "changes all the time" in reason]
    assert len(told) == 1
    assert found.kernel.explain(*given(1.0)).plan is None


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", READING)
def test_a_hit_that_reads_a_value_runs_no_python_code(host: Any) -> None:
    kernel = of_tier(available(2), host)
    for _ in range(3):
        kernel(*given(1.0))
    assert code_run(kernel, given(1.0)) == []


# -- values that are read too late -----------------------------------------------------------------


def after_a_launch(x, factor):
    increased(x, 1.0)
    return scaled(x, factor.item())


def after_a_change(x, factor):
    x.add_(1.0)
    return scaled(x, factor.item())


def after_drawing(x, factor):
    y = x + torch.rand(5)
    return scaled(y, factor.item())


def after_statistics(x, factor):
    y = torch.nn.functional.batch_norm(x.new_ones(2, 5), x, x.new_ones(5), training=True)
    return scaled(y, factor.item())


@pytest.mark.parametrize("host", [after_a_launch, after_a_change, after_drawing, after_statistics])
def test_a_value_that_is_read_after_something_was_done_is_not_replayed(
    host: Any, pair: Any
) -> None:
    found: Pair = pair(host)
    if verifying():
        found(*given(1.0))
    else:
        found.refuses(lambda: given(1.0), "reads the value of a tensor")


def test_verify_mode_accepts_another_value(tier: int) -> None:
    from tzero import settings

    with settings.override(verify=True):
        kernel = of_tier(tier, by_truth)
        for value in (1.0, 1.0, 2.0, 2.0, 1.0):
            x, factor = given(value)
            assert torch.equal(kernel(x, factor), by_truth(x, factor))
