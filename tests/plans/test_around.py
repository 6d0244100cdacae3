"""Calls in context: gradients, torch.compile, kinds of tensors, other kernels, errors."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tzero
from tests.plans.hosts import added, gathered, increased, scaled
from tests.plans.kernels import BLOCK, scale
from tests.plans.tiers import Pair, assert_same, of_tier, outcome
from tzero import events

# -- gradients -------------------------------------------------------------------------------------


def with_gradients(x, y):
    product = x * y
    return product, added(product, y), (product + scaled(x, 2.0)).sum(), x.view(-1)


def leaves(x_needs: bool, y_needs: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, requires_grad=x_needs), torch.randn(3, requires_grad=y_needs)


@pytest.mark.parametrize("x_needs", [False, True])
@pytest.mark.parametrize("y_needs", [False, True])
def test_gradients_flow_as_they_do_in_the_host_function(
    x_needs: bool, y_needs: bool, tier: int
) -> None:
    kernel, plain = of_tier(tier, with_gradients), of_tier(0, with_gradients)
    for _ in range(3):
        ours, theirs = leaves(x_needs, y_needs), None
        theirs = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in ours)
        found, expected = kernel(*ours), plain(*theirs)
        assert_same(found, expected)
        if x_needs or y_needs:
            found[2].backward()
            expected[2].backward()
        assert_same([each.grad for each in ours], [each.grad for each in theirs])


def test_one_kernel_is_called_with_and_without_gradients(pair: Any) -> None:
    found: Pair = pair(with_gradients)
    for needs in [(False, False), (True, False), (False, False), (True, True), (True, False)]:
        found(*leaves(*needs))


@pytest.mark.usefixtures("replaying")
def test_calls_that_need_gradients_are_replayed(pair: Any) -> None:
    pair(with_gradients).replays(lambda: leaves(True, True))


def of_a_parameter(x):
    return (
        scaled(x, 2.0 if isinstance(x, torch.nn.Parameter) else 3.0),
        x.view(-1),
        type(x).__name__,
    )


@pytest.mark.parametrize("needs", [False, True])
def test_a_parameter_is_not_a_tensor(needs: bool, pair: Any) -> None:
    found: Pair = pair(of_a_parameter)
    for parameter in (False, False, True, True, False, True):
        x = torch.randn(3, requires_grad=needs)
        found(torch.nn.Parameter(x.detach(), requires_grad=needs) if parameter else x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return scaled(x, 2.0)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return scaled(gradient.contiguous(), 2.0)


def by_a_function_of_autograd(x):
    return Doubled.apply(x)


def by_another_name(x):
    function = Doubled
    return function.apply(x) + 1


@pytest.mark.parametrize("host", [by_a_function_of_autograd, by_another_name])
def test_a_function_of_autograd_in_a_host_function_has_its_gradient(host: Any, tier: int) -> None:
    kernel = of_tier(tier, host)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        out = kernel(x)
        out.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((3,), 2.0))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return plain_scaled(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return plain_scaled(gradient.contiguous())


@tzero.kernel
def plain_scaled(x):
    return scaled(x, 3.0)


def test_a_kernel_in_a_function_of_autograd_is_replayed_in_both_directions() -> None:
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        out = Tripled.apply(x)
        out.sum().backward()
        assert torch.equal(out, 3.0 * x)
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((3,), 3.0))


def modes_left(x):
    torch.set_grad_enabled(False)
    return scaled(x, 2.0)


def test_a_mode_that_a_host_function_leaves_behind_is_left_in_each_call(tier: int) -> None:
    kernel = of_tier(tier, modes_left)
    try:
        for _ in range(3):
            torch.set_grad_enabled(True)
            kernel(torch.randn(3))
            assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


# -- torch.compile ---------------------------------------------------------------------------------


def plainly(x, y):
    return added(x, y) * 2


def test_a_kernel_in_a_compiled_function(tier: int) -> None:
    kernel = of_tier(tier, plainly)
    compiled = torch.compile(lambda x, y: kernel(x + 1, y) - 1, backend="eager")
    for _ in range(3):
        x, y = torch.randn(4), torch.randn(4)
        assert torch.equal(compiled(x, y), plainly(x + 1, y) - 1)
        assert torch.equal(kernel(x, y), plainly(x, y))


# -- other kinds of tensors ------------------------------------------------------------------------


def of_any(x):
    return torch.view_as_real(x.resolve_conj()) * 2, scaled(torch.ones(3), 2.0)


def test_conjugated_tensors_are_told_from_others(pair: Any) -> None:
    found: Pair = pair(of_any)
    for conjugated in (False, False, True, True, False):
        x = torch.randn(3, dtype=torch.complex64)
        found(x.conj() if conjugated else x)


def of_negated(x):
    return scaled(x.resolve_neg().contiguous(), 2.0), x.is_neg()


def test_negated_tensors_are_told_from_others(pair: Any) -> None:
    found: Pair = pair(of_negated)
    for negated in (False, False, True, True, False):
        x = torch.randn(3)
        found(torch._neg_view(x) if negated else x)


class Mine(torch.Tensor):
    """A subclass whose operations return the subclass."""


def doubled_if_mine(x):
    by = 2.0 if isinstance(x, Mine) else 3.0
    return scaled(torch.ones(3), by), x + 1


def test_subclasses_run_the_host_function(tier: int) -> None:
    kernel = of_tier(tier, doubled_if_mine)
    for _ in range(3):
        assert kernel(torch.ones(3).as_subclass(Mine))[0].tolist() == [2.0] * 3
        assert kernel(torch.ones(3))[0].tolist() == [3.0] * 3


def test_fake_tensors_run_the_host_function(tier: int) -> None:
    kernel = of_tier(tier, lambda x: torch.empty_like(x) + 1)
    kernel(torch.randn(3))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.randn(3))
        assert type(kernel(fake)) is type(fake)
    kernel(torch.randn(3))


def test_tensors_without_memory_raise_as_without_tzero(pair: Any) -> None:
    found: Pair = pair(plainly)
    found.replays(lambda: (torch.randn(3), torch.randn(3)))
    for kernel in (found.kernel, found.plain, plainly):
        with pytest.raises(ValueError, match="argument 'x' is on device meta"):
            kernel(torch.ones(3, device="meta"), torch.ones(3, device="meta"))


def of_inference(x):
    return scaled(x, 2.0 if x.is_inference() else 3.0), x + 1


def test_tensors_of_inference_mode_are_told_from_others(tier: int) -> None:
    kernel, plain = of_tier(tier, of_inference), of_tier(0, of_inference)
    for inference in (False, False, True, True, False):
        with torch.inference_mode(inference):
            x = torch.randn(3)
        assert_same(kernel(x), plain(x))


def mapped(x):
    return scaled(x.contiguous(), 2.0) if x.dim() == 1 else x * 2


def test_calls_under_vmap_are_not_replayed(tier: int) -> None:
    kernel = of_tier(tier, lambda x: x * 2)
    launched = of_tier(tier, mapped)
    launched(torch.randn(3))
    for _ in range(2):
        x = torch.randn(2, 3)
        assert torch.equal(torch.vmap(kernel)(x), x * 2)
        found = outcome(lambda x=x: torch.vmap(launched)(x))
        assert_same(found, outcome(lambda x=x: torch.vmap(mapped)(x)))
        assert torch.equal(torch.func.grad(lambda x: kernel(x).sum())(x), torch.full((2, 3), 2.0))


# -- errors ----------------------------------------------------------------------------------------


def failing(x, at):
    if at == 0:
        raise ValueError("at the start")
    out = scaled(x, 2.0)
    if at == 1:
        x.view(7, 7)
    increased(out, 1.0)
    if at == 2:
        scale[(1,)](x, out)
    if at == 3:
        scale[lambda meta: [][1]](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    if at == 4:
        scale[("a",)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    if at == 5:
        raise KeyError(at)
    return out


def test_an_error_at_any_step_is_the_host_functions(pair: Any) -> None:
    found: Pair = pair(failing)
    for at in (6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6):
        found(torch.randn(3), at)


def test_a_call_is_replayed_after_others_failed(pair: Any) -> None:
    found: Pair = pair(failing)
    for at in range(6):
        found(torch.randn(3), at)
    found.replays(lambda: (torch.randn(3), 9))


# -- events and reports ----------------------------------------------------------------------------


@pytest.mark.usefixtures("replaying")
def test_a_replayed_call_says_hit_and_its_launches(tier: int) -> None:
    kernel = of_tier(tier, plainly)
    x = torch.randn(3)
    for _ in range(2):
        kernel(x, x)
    with events.observe(lambda event: None):
        kernel(x, x)  # with an observer launches are made in Python, and may compile
    seen: list[events.Event] = []
    with events.observe(seen.append):
        kernel(x, x)
    assert [(event.kind, event.kernel) for event in seen] == [("hit", "plainly"), ("launch", "add")]


@pytest.mark.usefixtures("replaying")
def test_to_code_shows_what_runs(tier: int) -> None:
    kernel = of_tier(tier, plainly)
    x = torch.randn(3)
    kernel(x, x + 1)
    code = kernel.bind(x, x).to_code()
    assert "def plainly(x, y):" in code
    assert "# add[(1, 1, 1)]" in code
    compile(code, "the plan", "exec")


def two_dimensional(x):
    return gathered(x)


def test_geometry_decides_which_plan(pair: Any) -> None:
    found: Pair = pair(two_dimensional)
    whole = torch.randn(6, 6)
    views = [whole[:2, :3], whole[:3, :2], whole.t()[:2, :3], whole[::2, ::3], whole[:1], whole[0]]
    for view in (*views, *views):
        found(view)


# -- imports ---------------------------------------------------------------------------------------

BY = {0: 2.0}
LOG = logging.getLogger(__name__)


class ScaledByItem(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        scale[(1,)](x, out, BY[0], x.numel(), BLOCK=BLOCK)
        return out


def scaled_by_an_item(x):
    LOG.debug("for which the call is followed")
    out = torch.empty_like(x)
    scale[(1,)](x, out, BY[0], x.numel(), BLOCK=BLOCK)
    return out


@pytest.mark.parametrize("host", [scaled_by_an_item, ScaledByItem.apply])
def test_a_call_that_a_module_makes_while_it_is_imported_is_guarded(
    host: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    kernel = of_tier(2, host)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "for_the_import", kernel, raising=False)
    name = f"calls_{host.__qualname__.rpartition('.')[2]}"
    lines = ["import sys, torch", "for n in (50, 40, 30):"]
    lines += [" assert (sys.for_the_import(torch.ones(n)) == 2.0).all()"]
    (tmp_path / f"{name}.py").write_text("\n".join(lines))
    importlib.import_module(name)
    monkeypatch.setitem(BY, 0, 3.0)
    for n in (50, 40, 30, 20):
        assert (kernel(torch.ones(n)) == 3.0).all()
