# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Steps made of steps: kernels that are methods, called by other kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tzero
from tests.plans.alike import Alike, kernel
from tests.plans.tiers import verifying
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def plainly(function: Any) -> Any:
    return function


def rows() -> Tensor:
    return torch.randn(2, 8)


def model(decorate: Any, inner: Any = None) -> Any:
    """A model whose `forward` is decorated, and that of its block."""
    inner = decorate if inner is None else inner

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.by = 2.0

        @inner
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.by

        @inner
        def doubled(self, x: Tensor, times: float = 2.0) -> Tensor:
            return self.linear(x) * times

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.other = Block(), Block()

        @decorate
        def forward(self, x: Tensor) -> Tensor:
            return self.block(x) + self.other.doubled(x) + self.other.forward(x)

    return Model().eval().requires_grad_(False)


def both(make: Any, *args: Any) -> Alike:
    plain = make(plainly, *([plainly] * len(args)))
    step = make(kernel, *args)
    step.load_state_dict(plain.state_dict())
    return Alike(plain, rows, step)


def weight_replaced(model: Any) -> None:
    old = model.block.linear.weight
    model.block.linear.weight = nn.Parameter(old * 1.5, requires_grad=False)


def attribute_changed(model: Any) -> None:
    model.block.by = 3.0


def block_replaced(model: Any) -> None:
    model.block, model.other = model.other, model.block


def forward_of_object(model: Any) -> None:
    model.block.forward = lambda x: x * 5


def forward_of_class(model: Any) -> None:
    kind = type(model.block)
    kind.forward = lambda self, x: self.linear(x) - 1


def hook_added(model: Any) -> None:
    model.block.register_forward_hook(lambda module, given, result: result + 1)


CHANGES = [weight_replaced, attribute_changed, block_replaced]
CHANGES += [forward_of_object, forward_of_class, hook_added]


@pytest.mark.parametrize("inner", [kernel, tzero.kernel], ids=["graph", "plain"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_step_that_calls_steps_of_its_modules_is_replayed(change: Any, inner: Any) -> None:
    found = both(model, inner)
    found.replays()
    found.changed(change, replayed=change is not hook_added)


def test_the_steps_inside_are_replayed_alone_too() -> None:
    found = both(model)
    found.replays()
    inner = found.model.block.forward
    for _ in range(4):
        assert torch.equal(inner(x := rows()), found.plain.block(x))
    assert verifying() or inner.stats().native_replays == 3
    found.replays()


def derived(decorate: Any) -> Any:
    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        @decorate
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    class Derived(Base):
        @decorate
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    return Derived().requires_grad_(False)


def test_a_step_that_calls_the_step_of_its_base_class_is_replayed() -> None:
    found = both(derived)
    found.replays()

    def change(model: Any) -> None:
        type(model).__mro__[1].forward = lambda self, x: self.linear(x) * 7

    found.changed(change)


def test_a_function_that_calls_a_model_whose_forward_is_a_step_is_replayed() -> None:
    found = both(model)
    step = kernel(lambda x: found.model(x) * 2)
    for _ in range(5):
        assert torch.equal(step(x := rows()), found.plain(x) * 2)
    assert verifying() or step.stats().native_replays >= 3
    weight_replaced(found.plain), weight_replaced(found.model)
    for _ in range(3):
        assert torch.equal(step(x := rows()), found.plain(x) * 2)


def test_a_function_that_holds_the_step_of_a_model_is_replayed() -> None:
    found = both(model)
    forward = found.model.forward
    step = kernel(lambda x: forward(x) * 2)
    for _ in range(5):
        assert torch.equal(step(x := rows()), found.plain(x) * 2)
    assert verifying() or step.stats().native_replays >= 3
    attribute_changed(found.plain), attribute_changed(found.model)
    for _ in range(3):
        assert torch.equal(step(x := rows()), found.plain(x) * 2)


def test_a_step_under_a_decorator_of_torch_is_replayed_in_another() -> None:
    def make(decorate: Any) -> Any:
        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 8)

            @torch.no_grad()
            @decorate
            def forward(self, x: Tensor) -> Tensor:
                return self.linear(x)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            @decorate
            def forward(self, x: Tensor) -> Tensor:
                return self.inner(x) + 1

        return Outer().requires_grad_(False)

    found = both(make)
    found.replays()

    def change(model: Any) -> None:
        model.inner.linear.weight = nn.Parameter(model.inner.linear.weight * 2, False)

    found.changed(change)
