"""Tracers, transforms and tensors without memory: a launch that they cannot see raises an error
with the kernel's name and advice, and is never left out. Operators do work: test_operators.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tzero
from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import Made, launched
from tests.plans.tiers import of_tier


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore torch's warnings about torch.jit and about addresses of fake tensors."""
    with warnings.catch_warnings(action="ignore"):
        yield


def still_right(made: Made) -> None:
    """Demand that a refused call leaves no state behind."""
    x = torch.randn(4)
    assert torch.equal(made.fixed(x), x * 2)
    assert torch.equal(made.scaled(x, 3.0), x * 3)


class Model(torch.nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.kernel(x * self.weight) + 1
        return found


# -- tracers ---------------------------------------------------------------------------------------

UNSEEN = "fixed: .* does not see its launch of scale_kernel.*torch.library.custom_op"


def test_torch_jit_trace_is_refused_at_a_launch(made: Made) -> None:
    for traced in (made.fixed, lambda x: made.fixed(x) + 1, Model(made.fixed)):
        with pytest.raises(tzero.InvalidArgument, match=UNSEEN):
            torch.jit.trace(traced, (torch.ones(4),), check_trace=False)
    with pytest.raises(tzero.InvalidArgument, match=r"torch\.jit\.trace does not see its launch"):
        torch.jit.trace(lambda x: made.scaled(x, 2.0), (torch.ones(4),))
    still_right(made)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_is_refused_at_a_launch(mode: str, pre_dispatch: bool, made: Made) -> None:
    for traced in (made.fixed, lambda x: made.fixed(x) + 1):
        with pytest.raises(tzero.InvalidArgument, match=UNSEEN):
            make_fx(traced, tracing_mode=mode, pre_dispatch=pre_dispatch)(torch.ones(4))
    still_right(made)


def looking(x):
    out = hosts.fixed(x)
    return out if x.sum() > 0 else out + 1


def test_a_host_function_that_has_no_plan_is_refused_at_a_launch_too(tier: int) -> None:
    kernel = of_tier(tier, looking)
    kernel(torch.ones(4))
    with pytest.raises(tzero.InvalidArgument, match=r"looking: torch\.jit\.trace does not see"):
        torch.jit.trace(kernel, (torch.ones(4),))
    with pytest.raises(tzero.InvalidArgument, match="looking: make_fx does not see"):
        make_fx(kernel, _error_on_data_dependent_ops=False)(torch.ones(4))


def without_launch(x):
    return torch.sin(x) * 2


def test_a_host_function_without_a_launch_is_traced(tier: int) -> None:
    kernel, x, y = of_tier(tier, without_launch), torch.randn(4), torch.randn(4)
    for _ in range(2):
        assert torch.equal(torch.jit.trace(kernel, (x,))(y), without_launch(y))
        assert torch.equal(make_fx(kernel)(x)(y), without_launch(y))
        assert torch.equal(torch.func.grad(lambda x: kernel(x).sum())(y), torch.cos(y) * 2)
        kernel(x)


def test_torch_jit_script_is_refused_by_name(made: Made) -> None:
    with pytest.raises(tzero.InvalidArgument, match=r"scaled: torch\.jit\.script cannot represent"):
        torch.jit.script(made.scaled)
    still_right(made)


def test_symbolic_trace_is_refused_by_the_argument_unless_the_kernel_is_wrapped(made: Made) -> None:
    with pytest.raises(tzero.InvalidArgument, match="fixed: argument 'x' is or holds a Proxy"):
        torch.fx.symbolic_trace(lambda x: made.fixed(x) + 1)

    class Leaf(torch.fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, name: str) -> bool:
            return True

    model = torch.nn.Sequential(Model(made.fixed))
    traced = torch.fx.GraphModule(model, Leaf().trace(model))
    x = torch.randn(4)
    assert torch.equal(traced(x), x * 2 + 1)


# -- torch.export ----------------------------------------------------------------------------------


def test_a_strict_export_has_the_launch_in_it_and_runs(made: Made) -> None:
    program = torch.export.export(Model(made.fixed), (torch.ones(4),), strict=True)
    assert any("triton_kernel_wrapper" in str(node.target) for node in program.graph.nodes)
    x = torch.randn(4)
    assert torch.equal(program.module()(x), x * 2 + 1)
    still_right(made)


def test_an_export_that_is_not_strict_is_refused(made: Made) -> None:
    with pytest.raises(RuntimeError, match="custom op"):
        torch.export.export(Model(made.fixed), (torch.ones(4),), strict=False)
    still_right(made)


# -- transforms ------------------------------------------------------------------------------------

x35 = torch.arange(12.0).reshape(3, 4)
TRANSFORMS = {
    "vmap": lambda f: torch.vmap(f)(x35),
    "vmap of columns": lambda f: torch.vmap(f, in_dims=1)(x35.t()),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(x35[0]),
    "vjp": lambda f: torch.func.vjp(f, x35[0]),
    "jvp": lambda f: torch.func.jvp(f, (x35[0],), (x35[1],)),
    "jacrev": lambda f: torch.func.jacrev(f)(x35[0]),
    "jacfwd": lambda f: torch.func.jacfwd(f)(x35[0]),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(x35),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_refused_with_a_note_that_names_the_kernel(name: str, made: Made) -> None:
    for kernel in (made.fixed, lambda x: made.scaled(x, 2.0)):
        with pytest.raises(RuntimeError, match="Cannot access data pointer") as caught:
            TRANSFORMS[name](kernel)
        (note,) = caught.value.__notes__
        assert "was called in a transform of torch.func" in note
        assert "torch.library.custom_op" in note
    still_right(made)


def test_what_a_transform_does_not_touch_is_launched_under_it(made: Made) -> None:
    still = torch.randn(4)
    found = torch.vmap(lambda x: x + made.fixed(still))(x35)
    torch.testing.assert_close(found, x35 + still * 2)
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.func.grad(lambda x: (x * launched(made.launch, x, 2.0)).sum())(still)


def test_forward_mode_tangents_are_dropped_as_by_the_host_function(made: Made) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(4), torch.ones(4))
        for function in (made.fixed, made.fixed.function):
            found = torch.autograd.forward_ad.unpack_dual(function(dual))
            assert torch.equal(found.primal, torch.full((4,), 2.0))
            assert found.tangent is None


# -- tensors without memory ------------------------------------------------------------------------


def fake(x: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode().from_tensor(x)


def freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.parametrize("emptied", [fake, freed])
def test_a_launch_on_elements_without_memory_is_refused(emptied: Any, made: Made) -> None:
    calls = (made.fixed, lambda x: made.scaled(x, 2.0), lambda x: launched(made.launch, x, 2.0))
    for call in calls:
        for _ in range(2):
            with pytest.raises(ValueError, match=r"'x' is a .*Tensor of 4 elements that has no me"):
                call(emptied(torch.ones(4)))
            call(torch.ones(4))
    still_right(made)


def test_functionalize_is_refused_at_a_launch(made: Made) -> None:
    for call in (made.fixed, lambda x: launched(made.launch, x, 2.0)):
        with pytest.raises(ValueError, match="4 elements that has no memory"):
            torch.func.functionalize(call)(torch.ones(4))
    still_right(made)


def test_a_mode_of_fake_tensors_is_refused_at_a_launch(made: Made) -> None:
    with FakeTensorMode() as mode:
        for x in (torch.empty(4), mode.from_tensor(torch.ones(4))):
            with pytest.raises(ValueError, match="4 elements that has no memory"):
                made.fixed(x)
    x = torch.ones(4)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(ValueError, match="'out' is a FakeTensor of 4 elements that has no memory"),
    ):
        made.fixed(x)
    still_right(made)


def test_no_elements_need_no_memory(made: Made) -> None:
    for _ in range(3):
        assert made.scaled(torch.empty(0), 2.0).shape == (0,)
        assert launched(made.launch, torch.empty(0), 2.0).shape == (0,)


def test_meta_tensors_raise_as_without_tzero(made: Made) -> None:
    with pytest.raises(ValueError, match="'x' is on device meta"):
        made.fixed(torch.ones(4, device="meta"))
    with pytest.raises(ValueError, match="'x' is on device meta"):
        launched(made.launch, torch.ones(4, device="meta"), 2.0)
    still_right(made)
