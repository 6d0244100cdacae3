"""Verify mode compares plans over sizes by their formulas: it reports what differs, and nothing
that is only numbered otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tzero
from tests.plans.sized_hosts import scale_kernel
from tests.plans.test_verify import Hidden, hidden
from tests.plans.tiers import assert_same
from tzero import settings


@pytest.fixture(autouse=True)
def verify() -> Iterator[None]:
    with settings.override(verify=True):
        yield


def scaled(x, out, n):
    scale_kernel[(1,)](x, out, 2.0, n, BLOCK=64)
    return out


def hidden_in_an_argument(x):
    return scaled(x, torch.zeros_like(x), x.size(1) * 6 if hidden() else x.size(0) * 6)


def hidden_in_geometry(x):
    m, n = x.shape
    return scaled(x, torch.zeros(n, m) if hidden() else torch.zeros(m, n), m * n)


def hidden_in_the_result(x):
    return scaled(x, torch.zeros_like(x), x.numel()), x.size(1 if hidden() else 0)


def hidden_in_a_condition(x):
    n = x.numel()
    if hidden():
        assert n > 3
    return scaled(x, torch.zeros_like(x), n)


def hidden_in_an_equation(x):
    m = x.size(0)
    if hidden():
        assert m == 6
    return scaled(x, torch.zeros_like(x), x.numel())


def hidden_in_a_refusal(x):
    out = scaled(x, torch.zeros_like(x), x.numel())
    return out, x.tolist() if hidden() else None


ROWS: list[tuple[Any, str, str]] = [
    (hidden_in_an_argument, "step 2", "(x.size(1) * 6)"),
    (hidden_in_geometry, "the geometry of its tensors", "float32[x.size(1), x.size(0)]"),
    (hidden_in_the_result, "its result", "x.size(1)"),
    (hidden_in_a_condition, "the set of conditions on sizes", "(x.size(0) * x.size(1)) > 3"),
    (hidden_in_an_equation, "the set of sizes it leaves open", "x.size(1), x.stride(0)"),
    (hidden_in_a_refusal, "it", "not replayed: it reads Tensor.tolist"),
]


@pytest.mark.parametrize(("host", "fact", "now"), ROWS)
def test_another_formula_is_a_drift_though_its_value_is_the_same(
    host: Any, fact: str, now: str
) -> None:
    kernel = tzero.kernel(static_shapes=False)(host)
    with Hidden() as hide:
        for _ in range(2):
            kernel(torch.randn(6, 6))
        hide(1)
        with pytest.raises(tzero.PlanDrift) as drift:
            kernel(torch.randn(6, 6))
        assert (drift.value.kernel, drift.value.fact) == (host.__name__, fact)
        assert now in drift.value.now
        assert drift.value.now != drift.value.before
        hide(0)
        kernel(torch.randn(6, 6))


@pytest.mark.parametrize("host", [hidden_in_a_condition, hidden_in_an_equation])
def test_a_first_call_may_ask_more_of_sizes(host: Any) -> None:
    kernel = tzero.kernel(static_shapes=False)(host)
    with Hidden() as hide:
        hide(1)
        kernel(torch.randn(6, 6))
        hide(0)
        kernel(torch.randn(6, 6))
    plan = kernel.explain(torch.randn(6, 6)).plan
    assert plan is not None and plan.sizing is not None


def pinned_at_last(x):
    """Its strides are formulas when `y` is made, and constants once two sizes are pinned."""
    y = torch.empty(x.size(0), x.size(1), x.size(2))
    for _ in range(x.size(1)):
        for _ in range(x.size(2)):
            pass
    return scaled(x.contiguous(), y, x.numel())


def test_a_size_that_is_pinned_at_last_is_no_drift() -> None:
    kernel = tzero.kernel(static_shapes=False)(pinned_at_last)
    for n in (3, 3, 5, 5, 3, 5):
        x = torch.randn(n, 2, 4)
        assert_same(kernel(x), x * 2)
    plan = kernel.explain(torch.randn(5, 2, 4)).plan
    assert plan is not None and plan.sizing is not None
    assert [plan.sizing.text(k, plan.leaves) for k in range(len(plan.sizing.free))] == ["x.size(0)"]
