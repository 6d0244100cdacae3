"""Classes and modules of torch that the program changes: names that they only inherited, modules
that are made while the host function runs, hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as modules

from tests.hostile.row import Patch, Row, added, attribute, rows
from tests.plans.hosts import scaled

ROWS = rows()
F = TypeVar("F", bound=Callable[..., Any])


def after(**changes: Callable[[Patch], Any]) -> Callable[[F], F]:
    """Rows of one host function, one for each change."""

    def add(host: F) -> F:
        for name, change in changes.items():
            # torch's functions are found by name in each call, so that the steps see a change.
            guarded = not name.startswith("functional")
            ROWS.append(Row(f"{host.__name__}_after_{name}", host, change, "", guarded))
        return host

    return add


LINEAR = nn.Linear(4, 4).requires_grad_(False)
NORM = nn.LayerNorm(4).requires_grad_(False)
BLOCK = nn.Sequential(nn.Identity(), nn.Linear(4, 4)).requires_grad_(False)
MODULES = nn.ModuleList([nn.Identity(), nn.Identity()])


def five_times(self: Any, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    return x * 5


def of_its_own(self: Any, name: str) -> Any:
    if name == "bias":
        return torch.ones(4)
    return object.__getattribute__(self, name)


def without_weights(self: Any, name: str) -> Any:
    return torch.ones(4) if name == "bias" else modules.Module.__getattr__(self, name)


# -- names that a class of torch inherits ----------------------------------------------------------


@after(
    linear_call=added(nn.Linear, "__call__", five_times),
    linear_call_impl=added(nn.Linear, "_call_impl", five_times),
    linear_getattribute=added(nn.Linear, "__getattribute__", of_its_own),
    linear_getattr=added(nn.Linear, "__getattr__", without_weights),
    linear_bias=added(nn.Linear, "bias", torch.ones(4)),
    module_bias=added(modules.Module, "bias", torch.ones(4)),
    module_getattribute=added(modules.Module, "__getattribute__", of_its_own),
)
def a_linear(x):
    return scaled(LINEAR(x), 2.0)


@after(
    layernorm_weight=added(nn.LayerNorm, "weight", torch.full((4,), 3.0)),
    layernorm_forward=attribute(nn.LayerNorm, "forward", five_times),
)
def a_norm(x):
    return scaled(NORM(x), 2.0)


@after(
    sequential_call=added(nn.Sequential, "__call__", five_times),
    sequential_iter=attribute(nn.Sequential, "__iter__", lambda self: iter([nn.ReLU()])),
    sequential_forward=attribute(nn.Sequential, "forward", five_times),
)
def a_sequence_of_modules(x):
    return scaled(BLOCK(x), 2.0)


class Thrice(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 3


@contextmanager
def other_bases(kind: type, *bases: type) -> Any:
    before, kind.__bases__ = kind.__bases__, bases
    try:
        yield
    finally:
        kind.__bases__ = before


class Between(modules.Module):
    def _wrapped_call_impl(self, x):
        return x * 7

    __call__ = _wrapped_call_impl


@after(
    bases=lambda patch: other_bases(nn.Linear, Between),
)
def a_class_with_other_bases(x):
    return scaled(LINEAR(x), 2.0)


@after(
    linear_class=attribute(LINEAR, "__class__", Thrice),
)
def a_module_of_another_class(x):
    return scaled(LINEAR(x), 2.0)


@after(
    modulelist_iter=attribute(nn.ModuleList, "__iter__", lambda self: iter([])),
)
def a_list_of_modules(x):
    count = 2.0
    for _ in MODULES:
        count += 1
    return scaled(x, count)


@after(
    modulelist_len=attribute(nn.ModuleList, "__len__", lambda self: 7),
)
def how_many_modules(x):
    return scaled(x, float(len(MODULES)))


# -- modules that are made in the call -------------------------------------------------------------


@after(functional_relu=attribute(nn.functional, "relu", lambda x, **named: x * 5))
def a_module_that_calls_a_function(x):
    return scaled(nn.ReLU()(x), 2.0)


@after(
    gelu_forward=attribute(nn.GELU, "forward", five_times),
    gelu_call=added(nn.GELU, "__call__", five_times),
)
def a_module_that_it_makes(x):
    return scaled(nn.GELU()(x), 2.0)


@after(
    softmax_forward=attribute(nn.Softmax, "forward", five_times),
)
def a_module_that_it_makes_under_a_name(x):
    softmax = nn.Softmax(-1)
    return scaled(softmax(x), 2.0)


def leaking(self: Any, *args: Any) -> None:
    modules.Module.__init__(self)
    self.negative_slope, self.inplace = 0.9, False


@after(
    leakyrelu_init=attribute(nn.LeakyReLU, "__init__", leaking),
)
def how_a_module_is_made(x):
    return scaled(nn.LeakyReLU()(x - 2), 2.0)


@contextmanager
def hooked(register: Any, hook: Any) -> Any:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


ON_FORWARD = modules.register_module_forward_hook
BEFORE_FORWARD = modules.register_module_forward_pre_hook


@after(
    on_forward=lambda patch: hooked(ON_FORWARD, lambda module, given, result: result * 2),
    before_forward=lambda patch: hooked(BEFORE_FORWARD, lambda module, given: (given[0] * 2,)),
)
def a_module_that_it_makes_with_hooks_on_all(x):
    return scaled(nn.GELU()(x), 2.0)


@after(
    on_forward=lambda patch: hooked(ON_FORWARD, lambda module, given, result: result * 2),
    register_forward_hook=lambda patch: hooked(
        LINEAR.register_forward_hook, lambda module, given, result: result * 2
    ),
    register_forward_pre_hook=lambda patch: hooked(
        LINEAR.register_forward_pre_hook, lambda module, given: given[0] * 2
    ),
)
def a_module_with_hooks(x):
    return scaled(LINEAR(x), 2.0)


@after(
    call_impl=attribute(LINEAR, "_call_impl", lambda x: x * 5),
    compiled=attribute(LINEAR, "_compiled_call_impl", lambda x: x * 5),
)
def a_module_with_methods_of_its_own(x):
    return scaled(LINEAR(x), 2.0)


# -- tensors that are there before the call --------------------------------------------------------

WEIGHT = torch.full((4,), 2.0)


def five(*args: Any) -> torch.Tensor:
    return torch.full((4,), 5.0)


@after(view=attribute(WEIGHT, "view", five), other=attribute(WEIGHT, "mul", five))
def a_tensor_under_another_name(x):
    weight = WEIGHT
    return scaled(weight.view(-1).add(weight.mul(x)), 2.0)
