"""Kernels and autograd: in `autograd.Function`s, beside it, and in checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tests.integrations.torch.hosts import Made, launched
from tests.plans.tiers import assert_same


def product_of(made: Made, once: bool = False) -> Any:
    """An `autograd.Function` that launches in both directions; the other factor is saved."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, by)
            out: torch.Tensor = made.scaled(x, 2.0)
            return out * by

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, by = ctx.saved_tensors
            twice = made.scaled(gradient.contiguous(), 2.0)
            return made.summed(twice * by, torch.zeros_like(by)), made.scaled(x, 2.0) * gradient

    if once:
        Product.backward = staticmethod(once_differentiable(Product.backward))  # type: ignore[method-assign]
    return Product.apply


def by_torch(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x * 2 * by


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def test_both_directions_of_a_function_of_autograd_are_right(made: Made) -> None:
    product = product_of(made)
    for _ in range(3):
        x, by = leaf(5), leaf(5)
        found = torch.autograd.grad(product(x, by).sum(), (x, by))
        expected = torch.autograd.grad(by_torch(x, by).sum(), (x, by))
        torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(product, (leaf(3), leaf(3)))


def test_a_second_derivative_through_a_launch_is_refused_where_it_is_said_once(made: Made) -> None:
    x, by = leaf(5), leaf(5)
    (first,) = torch.autograd.grad(
        (product_of(made, once=True)(x, by) ** 2).sum(), (x,), create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_saved_tensors_that_changed_are_noticed(made: Made) -> None:
    x, by = leaf(5), leaf(5)
    out = product_of(made)(x, by)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_on_saved_tensors_give_what_the_backward_kernel_gets(made: Made) -> None:
    x, by = leaf(5), leaf(5)
    packed: list[torch.Size] = []

    def pack(saved: torch.Tensor) -> Any:
        packed.append(saved.shape)
        return saved.numpy(force=True).copy()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        out = product_of(made)(x, by)
    out.sum().backward()
    assert packed
    assert x.grad is not None and by.grad is not None
    torch.testing.assert_close(x.grad, 2 * by.detach())
    torch.testing.assert_close(by.grad, 2 * x.detach())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_runs_the_kernels_again_with_the_same_result(
    reentrant: bool, made: Made
) -> None:
    product = product_of(made)

    def block(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        noise = torch.nn.functional.dropout(product(x, by), 0.5)
        found: torch.Tensor = product(noise.contiguous(), by)
        return found

    for _ in range(3):
        x, by = leaf(6), leaf(6)
        again = [each.detach().clone().requires_grad_() for each in (x, by)]
        state = torch.get_rng_state()
        kept = checkpoint(block, x, by, use_reentrant=reentrant)
        assert kept is not None
        kept.sum().backward()
        torch.set_rng_state(state)
        block(*again).sum().backward()
        torch.testing.assert_close([x.grad, by.grad], [each.grad for each in again])


def test_a_compiled_checkpoint_of_a_launch_is_right(made: Made) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.sin(x) * made.scaled(x.detach(), 2.0)
        return found

    compiled = torch.compile(
        lambda x: checkpoint(block, x, use_reentrant=False), backend="aot_eager", fullgraph=True
    )
    x = leaf(5)
    found = compiled(x)
    assert found is not None
    found.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.cos(x.detach()) * 2 * x.detach())


# -- beside autograd -------------------------------------------------------------------------------


def test_a_launch_is_no_step_of_autograd_whatever_requires_gradients(made: Made) -> None:
    for needs in (True, False, True, True):
        x = torch.randn(5, requires_grad=needs)
        for out in (made.scaled(x, 2.0), launched(made.launch, x, 2.0)):
            assert torch.equal(out, x.detach() * 2)
            assert not out.requires_grad and out.grad_fn is None


def test_torchs_functions_around_a_launch_keep_their_gradients(made: Made) -> None:
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        out = made.square(x)  # no gradient flows through a launch
        assert not out.requires_grad
        (x.sum() + out.sum()).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.ones(3, 3))


def test_what_is_written_by_a_launch_is_not_counted_by_autograd_at_any_tier(made: Made) -> None:
    x = torch.randn(5)
    versions = []
    for _ in range(3):
        before = x._version
        made.grown(x)
        versions.append(x._version - before)
    assert versions == [0, 0, 0]  # as for Triton's launches: use torch.library for in-place writes


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes_make_the_tensors_that_the_host_function_makes(
    around: Any, made: Made
) -> None:
    x = torch.randn(3, 3, requires_grad=True)
    for inside in (True, False, True, True, False):
        with around() if inside else torch.enable_grad():
            assert_same(made.square(x), made.square.function(x))
    with around():
        mine = made.scaled(torch.ones(4), 2.0)
    assert mine.is_inference() == (around is torch.inference_mode)
    assert torch.equal(made.scaled(mine, 2.0), torch.full((4,), 4.0))


def test_anomaly_mode_names_the_function_whose_backward_is_wrong(made: Made) -> None:
    product = product_of(made)
    with torch.autograd.detect_anomaly(check_nan=True):
        x, by = leaf(5), leaf(5)
        product(x, by).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 2 * by.detach())
        by = torch.full((5,), torch.nan, dtype=torch.float64)
        with pytest.raises(RuntimeError, match=r"ProductBackward.*returned nan"):
            product(leaf(5), by).sum().backward()


def test_hooks_of_tensors_and_modules_may_call_kernels(made: Made) -> None:
    layer = torch.nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: out + made.scaled(out.detach(), 2.0))
    layer.weight.register_hook(lambda gradient: made.scaled(gradient.contiguous(), 2.0))
    seen: list[torch.Tensor] = []
    layer.weight.register_post_accumulate_grad_hook(
        lambda weight: seen.append(made.scaled(weight.grad.contiguous(), 0.5))
    )
    for _ in range(3):
        layer.zero_grad()
        x = torch.randn(2, 3)
        out = layer(x)
        torch.testing.assert_close(out, 3 * (x @ layer.weight.t() + layer.bias))
        out.sum().backward()
        expected = x.sum(0).expand(3, 3)
        torch.testing.assert_close(layer.weight.grad, 2 * expected)
        torch.testing.assert_close(seen[-1], expected)


def test_backward_on_autograds_own_threads_calls_kernels(made: Made) -> None:
    product = product_of(made)
    outs = []
    for _ in range(8):
        x, by = leaf(5), leaf(5)
        outs.append((x, by, product(x, by).sum()))
    torch.autograd.backward([loss for _, _, loss in outs])
    for x, by, _ in outs:
        torch.testing.assert_close(x.grad, 2 * by.detach())
