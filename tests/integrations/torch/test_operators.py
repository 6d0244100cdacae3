"""Kernels as torch operators: differentiable, batched, exported and traced."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import custom_op, triton_op, wrap_triton

import tzero
from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import BLOCK, scale_kernel
from tests.plans.tiers import available, counted, verifying
from tzero import settings

TIERS = (0, 1, 2)


def twice_op(tier: int) -> Any:
    """An operator that calls a kernel of a tier, with all rules registered."""
    name = f"tzero_torch::twice_{tier}"

    @custom_op(name, mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = hosts.made(tier).scaled(x.contiguous(), 2.0)
        return found

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    twice.register_autograd(lambda ctx, gradient: twice(gradient))
    twice.register_vmap(lambda info, dims, x: (twice(x), dims[0]))
    return twice


def grow_op(tier: int) -> Any:
    """An operator that writes to its argument."""

    @custom_op(f"tzero_torch::grow_{tier}", mutates_args=("x",))
    def grow(x: torch.Tensor) -> None:
        hosts.made(tier).grown(x)

    return grow


def thrice_op(tier: int) -> Any:
    """A `triton_op`: the launch is wrapped, so that torch.compile sees it."""
    with settings.override(tier=tier):
        kernel = tzero.jit(scale_kernel)

    @triton_op(f"tzero_torch::thrice_{tier}", mutates_args={})
    def thrice(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        grid = ((x.numel() + BLOCK - 1) // BLOCK,)
        wrap_triton(kernel)[grid](x, out, 3.0, x.numel(), BLOCK=BLOCK)
        return out

    thrice.register_autograd(lambda ctx, gradient: thrice(gradient.contiguous()))
    return thrice


@pytest.fixture(scope="module")
def made_operators() -> dict[int, tuple[Any, Any, Any]]:
    return {k: (twice_op(k), grow_op(k), thrice_op(k)) for k in TIERS if available(k or 1)}


@pytest.fixture
def operators(tier: int, made_operators: Any) -> tuple[Any, Any, Any]:
    found: tuple[Any, Any, Any] = made_operators[tier]
    return found


def test_torchs_own_checks_of_an_operator_pass(operators: Any) -> None:
    twice, grow, thrice = operators
    for x in (torch.randn(5), torch.randn(3, 4), torch.randn(5, requires_grad=True)):
        torch.library.opcheck(twice, (x,))
    torch.library.opcheck(grow, (torch.randn(5),))
    for x in (torch.randn(5), torch.randn(5, requires_grad=True)):
        torch.library.opcheck(thrice, (x,))


def test_an_operator_computes_what_the_host_function_does_and_has_gradients(operators: Any) -> None:
    twice, grow, thrice = operators
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        (twice(x) * thrice(x)).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 12 * x.detach())
        y = x.detach().clone()
        grow(y)
        assert torch.equal(y, x.detach() * 2)


@pytest.mark.parametrize(
    ("backend", "tier"),
    [("aot_eager", 0), ("aot_eager", 1), ("aot_eager", 2), ("inductor", 2)],
    indirect=["tier"],
)
def test_an_operator_is_compiled_with_its_gradient(backend: str, operators: Any) -> None:
    twice, grow, thrice = operators

    def model(x: torch.Tensor) -> torch.Tensor:
        y = twice(x) + 1
        z = y * 1
        grow(z)
        found: torch.Tensor = thrice(y) * z.detach()
        return found.sum()

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for size in (5, 9):
        x = torch.randn(size, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        found, expected = compiled(x), model(again)
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
        torch.testing.assert_close(x.grad, again.grad)


class Twice(torch.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.op(x) + 1
        return found


@pytest.mark.parametrize("strict", [False, True])
def test_an_operator_is_exported_and_the_program_runs(strict: bool, operators: Any) -> None:
    program = torch.export.export(
        Twice(operators[0]),
        (torch.randn(6),),
        strict=strict,
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
    )
    for size in (6, 9):
        x = torch.randn(size)
        assert torch.equal(program.module()(x), x * 2 + 1)
    decomposed = program.run_decompositions()
    x = torch.randn(7)
    assert torch.equal(decomposed.module()(x), x * 2 + 1)


def test_an_operator_is_seen_by_every_tracer(operators: Any) -> None:
    twice = operators[0]
    x, y = torch.randn(5), torch.randn(5)
    for mode in ("real", "fake", "symbolic"):
        assert torch.equal(make_fx(twice, tracing_mode=mode)(x)(y), y * 2)
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        assert torch.equal(torch.jit.trace(Twice(twice), (x,))(y), y * 2 + 1)
    assert torch.equal(torch.fx.symbolic_trace(lambda x: twice(x) + 1)(y), y * 2 + 1)
    with FakeTensorMode() as mode:
        fake = twice(mode.from_tensor(x))
    assert fake.shape == x.shape and type(fake).__name__ == "FakeTensor"
    assert twice(x.to("meta")).is_meta


def test_an_operator_is_batched_by_its_rule(operators: Any) -> None:
    twice = operators[0]
    x = torch.randn(3, 5)
    assert torch.equal(torch.vmap(twice)(x), x * 2)
    assert torch.equal(torch.vmap(twice, in_dims=1, out_dims=1)(x), x * 2)


def differentiable(made: hosts.Made) -> Any:
    """Twice a tensor, as an `autograd.Function` with a rule for each torch.func transform."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = made.scaled(x.contiguous(), 2.0)
            return out

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return Twice.apply(gradient)

        @staticmethod
        def jvp(ctx: Any, tangent: torch.Tensor) -> Any:
            return Twice.apply(tangent)

        @staticmethod
        def vmap(info: Any, dims: Any, x: torch.Tensor) -> Any:
            return Twice.apply(x), dims[0]

    return Twice.apply


def test_a_function_of_autograd_with_rules_takes_every_transform(made: hosts.Made) -> None:
    twice = differentiable(made)
    x = torch.randn(3, 5)
    product = lambda x: (twice(x) * x).sum()  # noqa: E731
    for _ in range(2):
        torch.testing.assert_close(torch.func.grad(product)(x), 4 * x)
        torch.testing.assert_close(torch.vmap(torch.func.grad(product))(x), 4 * x)
        torch.testing.assert_close(torch.func.jacrev(twice)(x[0]), 2 * torch.eye(5))
        torch.testing.assert_close(torch.func.jacfwd(twice)(x[0]), 2 * torch.eye(5))
        torch.testing.assert_close(torch.func.jvp(twice, (x,), (x + 1,)), (2 * x, 2 * (x + 1)))
        torch.testing.assert_close(torch.func.hessian(product)(x[0]), 4 * torch.eye(5))


@pytest.mark.parametrize("needs", [False, True])
def test_calls_in_an_operator_are_replayed(needs: bool, tier: int, operators: Any) -> None:
    twice = operators[0]
    for _ in range(2):
        twice(torch.randn(11, requires_grad=needs))
    with counted(hosts.scaled) as runs:
        for _ in range(3):
            x = torch.randn(11, requires_grad=needs)
            assert torch.equal(twice(x), x * 2)
    assert runs[0] == (3 if tier == 0 or verifying() else 0)
