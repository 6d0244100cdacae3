"""Custom and higher-order operators in recorded calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.library import custom_op, wrap_triton

import tzero
from tests.plans.hosts import scaled
from tests.plans.kernels import BLOCK, increase

log = logging.getLogger("tests.plans.operators")
step = 1.0


@custom_op("tzero_plans::raised", mutates_args=())
def raised(x: torch.Tensor) -> torch.Tensor:
    return plus(x)


@raised.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + step


def wrapped(x):
    out = scaled(x, 2.0)
    wrap_triton(increase)[(1,)](out, 1.0, out.numel(), BLOCK=BLOCK)
    return out


def wrapped_after_log(x):
    log.debug("wrapped")  # so that the call is followed
    return wrapped(x)


def with_operator(x):
    return raised(scaled(x, 2.0))


def with_operator_after_log(x):
    log.debug("raised")
    return raised(scaled(x, 2.0))


@pytest.mark.parametrize(
    "host", [wrapped, wrapped_after_log, with_operator, with_operator_after_log]
)
def test_wrapped_launches_and_custom_operators_are_replayed(host: Any) -> None:
    kernel = tzero.kernel(host)
    for k in range(4):
        x = torch.arange(4.0) + k
        assert torch.equal(kernel(x), host(x))
    assert kernel.explain(x).plan is not None, kernel.explain(x)
    assert not kernel.explain(x).refusal


@pytest.mark.parametrize("host", [with_operator, with_operator_after_log])
def test_a_custom_operator_reads_the_world_in_each_replay(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for now in (1.0, 1.0, 5.0, 5.0, 2.0):
        monkeypatch.setattr("tests.plans.test_operators.step", now)
        assert torch.equal(kernel(x), x * 2 + now)


def test_a_changed_kernel_of_a_wrapped_launch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = tzero.kernel(wrapped_after_log), torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(kernel(x), x * 2 + 1)

    def doubled(out: torch.Tensor, by: float, size: int, BLOCK: int) -> None:
        out += 2 * by

    class Doubled:
        def __getitem__(self, grid: Any) -> Any:
            return doubled

    monkeypatch.setattr("tests.plans.test_operators.wrap_triton", lambda kernel: Doubled())
    for _ in range(3):
        assert torch.equal(kernel(x), x * 2 + 2)


def chosen(x):
    out = scaled(x, 2.0)
    either = torch.ops.higher_order.cond
    return either(out.sum() > 0, lambda a: a + 1, lambda a: a - 1, (out,))


def test_a_higher_order_operator_runs_as_ever() -> None:
    kernel = tzero.kernel(chosen)
    for k in (1.0, -1.0, 1.0):
        x = torch.arange(4.0) * k
        assert torch.equal(kernel(x), chosen(x))
    assert "it runs cond, whose operators tzero does not see" in kernel.explain(x).refusal
