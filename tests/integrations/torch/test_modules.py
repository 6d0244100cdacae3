"""Kernels as attributes of modules: copied, saved, moved, compiled and optimized with them."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import triton.language as tl

import tzero
from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import Made


class Scaled(torch.nn.Module):
    """A module with a kernel as an attribute."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = torch.nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.kernel(x + self.weight)
        return found


def right(module: Any, times: int = 2) -> bool:
    return all(
        torch.equal(module(x), ((x + module.weight) * 2).detach())
        for x in (torch.randn(5) for _ in range(times))
    )


@pytest.fixture
def module() -> Scaled:
    return Scaled(hosts.doubled)


def test_a_copied_module_has_the_same_kernel_and_other_parameters(module: Scaled) -> None:
    for other in (copy.deepcopy(module), copy.copy(module)):
        assert other.kernel is module.kernel
        assert right(other)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight.add_(1)
    assert right(other) and right(module)


def test_a_module_is_saved_with_the_name_of_its_kernel(module: Scaled) -> None:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert found.kernel is hosts.doubled
    assert right(found)
    assert right(pickle.loads(pickle.dumps(module)))


def test_a_safe_load_takes_the_state_of_a_module_and_not_its_kernel(module: Scaled) -> None:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = Scaled(hosts.doubled)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert list(module.state_dict()) == ["weight"]
    assert torch.equal(other.weight, module.weight)
    assert right(other)
    torch.save(module, file := io.BytesIO())
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file, weights_only=True)


def test_a_kernel_without_a_name_says_why_its_module_is_not_saved() -> None:
    module = Scaled(tzero.kernel(lambda x: hosts.scaled(x, 2.0)))
    assert right(module)
    with pytest.raises(
        tzero.InvalidArgument, match="it cannot be pickled, because kernels are pickled by"
    ):
        torch.save(module, io.BytesIO())
    assert copy.deepcopy(module).kernel is module.kernel


@tzero.jit
def named_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


class Launching(torch.nn.Module):
    """A module with a `tzero.jit` kernel as an attribute."""

    def __init__(self, launch: Any) -> None:
        super().__init__()
        self.launch = launch
        self.weight = torch.nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return hosts.launched(self.launch, x + self.weight, 2.0)


@pytest.mark.parametrize("tier", [1, 2], indirect=True)  # Triton's own cannot be copied
def test_a_jit_kernel_is_copied_with_its_module(made: Made) -> None:
    module = Launching(made.launch)
    for other in (module, copy.copy(module), copy.deepcopy(module)):
        assert other.launch is made.launch
        assert right(other)


def test_a_jit_kernel_is_saved_by_its_name(made: Made) -> None:
    module = pickle.loads(pickle.dumps(Launching(named_kernel)))
    assert module.launch is named_kernel
    assert right(module)
    if made.tier:
        with pytest.raises(pickle.PicklingError, match=r"not the same object as .*scale_kernel"):
            pickle.dumps(Launching(made.launch))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.float32])
def test_a_module_that_was_moved_to_another_dtype_launches_for_that(
    dtype: torch.dtype, made: Made
) -> None:
    module = Scaled(lambda x: made.scaled(x, 2.0)).to(dtype)
    for _ in range(2):
        x = torch.randn(5, dtype=dtype)
        assert torch.equal(module(x), ((x + module.weight) * 2).detach())


def test_a_module_made_without_memory_runs_once_it_has_some(made: Made) -> None:
    with torch.device("meta"):
        module = Scaled(made.fixed)
    with pytest.raises(ValueError, match="is on device meta"):
        module(torch.ones(5, device="meta"))
    module.to_empty(device="cpu")
    module.load_state_dict({"weight": torch.arange(5.0)})
    x = torch.randn(4)
    module.weight = torch.nn.Parameter(torch.arange(4.0))
    assert torch.equal(module(x), (x + torch.arange(4.0)) * 2)


def test_stateless_calls_take_the_parameters_that_are_given(module: Scaled) -> None:
    for _ in range(3):
        weight, x = torch.randn(5), torch.randn(5)
        found = torch.func.functional_call(module, {"weight": weight}, (x,))
        assert torch.equal(found, (x + weight) * 2)
    assert right(module)


def test_a_model_learns_through_an_operator_of_a_kernel(made: Made) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = made.scaled(x, 2.0)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return made.scaled(gradient.contiguous(), 2.0)

    def train(double: Any) -> list[float]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for _ in range(12):
            x = torch.randn(8, 4)
            loss = ((double(model(x)) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    found, expected = train(Twice.apply), train(lambda x: x * 2)
    assert found == expected
    assert found[-1] < found[0]


def test_weights_under_a_parametrization_are_computed_by_a_kernel(made: Made) -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = made.scaled(x, 2.0)
            return found

    layer = torch.nn.Linear(3, 3, bias=False)
    weight = layer.weight.detach().clone()
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Double())
    for _ in range(3):
        assert torch.equal(layer.weight.detach(), weight * 2)
    with torch.nn.utils.parametrize.cached():
        assert torch.equal(layer.weight.detach(), weight * 2)
