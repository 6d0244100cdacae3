"""Kernels under torch.compile: traced, or called between graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import tzero
from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import Made, launched, scaled
from tzero import settings

by_each_backend = pytest.mark.parametrize(
    ("backend", "tier"),
    [("eager", 0), ("eager", 1), ("eager", 2), ("aot_eager", 2), ("inductor", 1), ("inductor", 2)],
    indirect=["tier"],
)


class Layer(torch.nn.Module):
    """A model with a launch between torch functions; `kernel` is a host function, or a kernel of
    it."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.relu(self.kernel(self.linear(x), 2.0)) + x
        return found


@by_each_backend
def test_a_model_compiles_in_one_graph_and_computes_what_the_host_function_does(
    backend: str, made: Made
) -> None:
    layer = Layer(made.scaled)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, 4)
        layer.kernel = scaled
        with torch.no_grad():
            expected = layer(x)
        layer.kernel = made.scaled
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), expected)


@by_each_backend
def test_a_launch_of_a_jit_kernel_compiles_in_one_graph(backend: str, made: Made) -> None:
    launch = made.launch
    compiled = torch.compile(
        lambda x: launched(launch, x + 1, 3.0) - 1, backend=backend, fullgraph=True
    )
    for size in (4, 4, 70):
        x = torch.randn(size)
        assert torch.equal(compiled(x), (x + 1) * 3.0 - 1)


def test_a_kernel_itself_compiles_as_its_host_function_does(made: Made) -> None:
    compiled = torch.compile(made.summed, backend="aot_eager", fullgraph=True)
    x, y = torch.randn(70), torch.randn(70)
    assert torch.equal(compiled(x, y), x + y)
    assert torch.equal(compiled(x=x, y=y), x + y)
    assert torch.equal(made.summed(x, y), x + y)


def graphs_for(kernel: Any, sizes: list[int], **options: Any) -> int:
    """How many graphs are compiled for calls with tensors of these sizes; checks each result."""
    counter = CompileCounter()
    compiled = torch.compile(lambda x: kernel(x, 2.0) + 1, backend=counter, **options)
    for size in sizes:
        x = torch.randn(size)
        assert torch.equal(compiled(x), x * 2 + 1)
    return counter.frame_count


def test_as_many_graphs_are_compiled_as_for_the_host_function(made: Made) -> None:
    sizes = [5, 9, 70, 130, 5]
    for options in ({"dynamic": True}, {"dynamic": False}, {}):
        torch._dynamo.reset()
        expected = graphs_for(scaled, sizes, **options)
        torch._dynamo.reset()
        assert graphs_for(made.scaled, sizes, fullgraph=True, **options) == expected, options


def test_dynamic_shapes_are_one_graph(made: Made) -> None:
    assert graphs_for(made.scaled, [5, 9, 70, 130], dynamic=True, fullgraph=True) == 1


@by_each_backend
def test_what_is_written_in_place_is_seen_in_the_graph_and_by_the_caller(
    backend: str, made: Made
) -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        made.grown(x)
        y = x + 1
        made.grown(y)
        return y

    x = torch.randn(5)
    given = x.clone()
    found = torch.compile(both, backend=backend, fullgraph=True)(given)
    assert torch.equal(given, x * 2)
    assert torch.equal(found, (x * 2 + 1) * 2)


FACTOR = 2.0


def by_a_global(x):
    return scaled(x, FACTOR)


def test_a_changed_global_of_the_host_function_is_compiled_anew(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with settings.override(tier=tier):
        kernel = tzero.kernel(by_a_global)
    counter = CompileCounter()
    compiled = torch.compile(lambda x: kernel(x) + 1, backend=counter)
    x = torch.randn(5)
    assert torch.equal(compiled(x), x * 2 + 1)
    monkeypatch.setattr("tests.integrations.torch.test_compile.FACTOR", 3.0)
    assert torch.equal(compiled(x), x * 3 + 1)
    assert torch.equal(kernel(x), x * 3)
    assert counter.frame_count == 2


# -- kinds of kernels, traced ----------------------------------------------------------------------


def configured(x, config):
    return scaled(x, float(config.BY))


def with_defaults(x, by: tzero.ConstExpr = 2.0, more=1.0):
    return scaled(x, by) + more


def nesting(x):
    return hosts.doubled(x) + 1


@by_each_backend
def test_config_constants_defaults_and_kernels_in_kernels_are_traced(
    backend: str, tier: int
) -> None:
    with settings.override(tier=tier):
        by_config = tzero.kernel(config=tzero.Config(BY=3))(configured)
        by_default = tzero.kernel(static_shapes=False, key=lambda x, by, more: x.dim())(
            with_defaults
        )
        by_kernel = tzero.kernel(pool=True)(nesting)

    def all_of_them(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = by_default(x, more=0.5, by=tzero.ConstExpr(4.0))
        return by_config(x), by_default(x), one, by_kernel(x)

    x = torch.randn(5)
    found = torch.compile(all_of_them, backend=backend, fullgraph=True)(x)
    expected = (x * 3, x * 2 + 1, x * 4 + 0.5, x * 2 + 1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@dataclass(frozen=True)
class Scaling:
    """A class with a kernel as a method."""

    by: float

    @tzero.kernel
    def of(self, x):
        return scaled(x, 2.0) * self.by


def test_a_kernel_that_is_a_method_breaks_the_graph_and_is_right() -> None:
    scaling = Scaling(3.0)
    compiled = torch.compile(lambda x: scaling.of(x + 1) - 1, backend="eager")
    for _ in range(3):
        x = torch.randn(5)
        assert torch.equal(compiled(x), (x + 1) * 2 * 3.0 - 1)
    whole = torch.compile(lambda x: scaling.of(x), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="method"):
        whole(torch.ones(5))


# -- graph breaks ----------------------------------------------------------------------------------


def looking(x):
    out = scaled(x, 2.0)
    return scaled(out, 2.0) if out.sum() > 0 else out


@by_each_backend
def test_a_host_function_that_breaks_the_graph_runs_between_two_graphs(
    backend: str, tier: int
) -> None:
    with settings.override(tier=tier):
        kernel = tzero.kernel(looking)
    compiled = torch.compile(lambda x: kernel(x.abs() + 1) - 1, backend=backend)
    for _ in range(3):
        x = torch.randn(5)
        assert torch.equal(compiled(x), (x.abs() + 1) * 4 - 1)
        assert torch.equal(compiled(x), looking(x.abs() + 1) - 1)


def test_torch_compile_leaves_the_inside_of_tzero_alone(tier: int) -> None:
    counter = CompileCounter()
    for _ in range(12):  # more than Dynamo's recompile limit
        with settings.override(tier=tier):
            kernel = tzero.kernel(looking)
        compiled = torch.compile(lambda x, kernel=kernel: kernel(x), backend=counter)
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(5)), torch.full((5,), 4.0))
    assert counter.op_count == 0, "a part of a host function was compiled"


def through(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    found: torch.Tensor = kernel(x, 2.0)
    torch._dynamo.graph_break()
    return found


def test_calls_between_graphs_are_replayed_and_right(made: Made) -> None:
    disabled = torch.compiler.disable(made.scaled)
    compiled = torch.compile(
        lambda x: through(made.scaled, x + 1) + disabled(x, 3.0), backend="inductor"
    )
    before = made.scaled.stats()
    for _ in range(4):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x), (x + 1) * 2 + x * 3)
    after = made.scaled.stats()
    assert after.calls - before.calls >= 4  # those of the disabled one at least
    assert after.misses - before.misses <= 1


compiled_global = torch.compile(lambda x: x * 3 + 1, backend="inductor")


def calling_what_is_compiled(x):
    return scaled(compiled_global(x), 2.0)


def test_a_host_function_may_call_what_torch_compiled(tier: int) -> None:
    with settings.override(tier=tier):
        kernel = tzero.kernel(calling_what_is_compiled)
    for _ in range(3):
        x = torch.randn(5)
        torch.testing.assert_close(kernel(x), (x * 3 + 1) * 2)
    if tier:
        assert "is compiled by torch.compile" in kernel.explain(torch.randn(5)).refusal


@by_each_backend
def test_gradients_go_around_a_launch_as_without_torch_compile(backend: str, made: Made) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (made.scaled(x, 2.0) * 5 + x * 3).sum()
        return found

    for function in (loss, torch.compile(loss, backend=backend, fullgraph=True)):
        x = torch.randn(5, requires_grad=True)
        function(x).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((5,), 3.0))


def test_wrong_arguments_are_said_by_name_while_torch_compiles(made: Made) -> None:
    compiled = torch.compile(lambda x: made.fixed(x, x, x), backend="eager")
    with pytest.raises(tzero.InvalidArgument, match="fixed: too many positional arguments"):
        compiled(torch.ones(4))


def test_observers_and_measuring_change_nothing_of_what_is_compiled(made: Made) -> None:
    x = torch.randn(5)
    with tzero.measure.recording(), tzero.events.observe(lambda event: None):
        compiled = torch.compile(lambda x: made.scaled(x, 2.0), backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), x * 2)
