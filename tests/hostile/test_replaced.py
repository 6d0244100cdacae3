"""Functions of torch that the program has replaced by wrappers which call them: recording a call
must not run a wrapper twice, whether they were replaced before the first call or later."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.plans.hosts import scaled
from tests.plans.tiers import Pair


def by_a_method(x):
    return scaled(x.add(1), 2.0)


def by_a_view(x):
    return scaled(x.view(2, 2), 2.0)


def by_an_operator(x):
    return scaled(x + 1, 2.0)


def by_a_method_in_python(x):
    return scaled(x.split(2)[0], 2.0)


def by_a_property(x):
    return scaled(x.view(2, 2).mT, 2.0)


def by_a_function_in_python(x):
    return scaled(F.silu(x), 2.0)


def by_a_function_in_c(x):
    return scaled(torch.cosh(x), 2.0)


def by_a_module(x):
    return scaled(torch.nn.SiLU()(x), 2.0)


CASES = {
    "method": (by_a_method, torch.Tensor, "add"),
    "view": (by_a_view, torch.Tensor, "view"),
    "operator": (by_an_operator, torch.Tensor, "__add__"),
    "in python": (by_a_method_in_python, torch.Tensor, "split"),
    "property": (by_a_property, torch.Tensor, "mT"),
    "function": (by_a_function_in_python, F, "silu"),
    "module": (by_a_module, F, "silu"),
    "in c": (by_a_function_in_c, torch, "cosh"),
    "unnamed": (lambda x: scaled(F.gelu(x), 2.0), torch._C._nn, "gelu"),
    "partial": (by_a_function_in_python, F, "silu"),
}


def twice(result: Any) -> Any:
    return tuple(each * 2 for each in result) if isinstance(result, tuple) else result * 2


def wrapper(name: str, old: Any) -> Any:
    """What a program puts in the place of a function: it calls that, and doubles the result."""
    if name == "property":
        return property(lambda self: old.__get__(self) * 2)

    def new(*args: Any, **named: Any) -> Any:
        return twice(old(*args, **named))

    return functools.partial(new) if name == "partial" else new


def build() -> tuple[Any, ...]:
    return (torch.arange(4, dtype=torch.float32),)


def replace(patch: pytest.MonkeyPatch, case: str) -> None:
    _, owner, name = CASES[case]
    old = torch.Tensor.mT if case == "property" else getattr(owner, name)
    patch.setattr(owner, name, wrapper(case, old))


@pytest.mark.parametrize("case", CASES)
def test_a_function_that_was_replaced_before(
    case: str, tier: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, case)
    found = Pair(tier, CASES[case][0])
    for _ in range(3):
        found(*build())


@pytest.mark.parametrize("case", CASES)
def test_a_function_that_is_replaced_later(case: str, tier: int, reader: str) -> None:
    found = Pair(tier, CASES[case][0])
    for _ in range(3):
        found(*build())
    with pytest.MonkeyPatch.context() as patch:
        replace(patch, case)
        for _ in range(3):
            found(*build())
    for _ in range(2):
        found(*build())


def test_a_wrapper_is_recorded_as_what_it_does(tier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "method")
    Pair(tier, by_a_method).replays(build)


def test_a_function_that_supports_modes_is_called_once(tier: int) -> None:
    calls = []

    def public(x: Any) -> Any:
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(public, (x,), x)
        calls.append(x)
        return x * 3

    def host(x):
        return scaled(public(x), 2.0)

    found = Pair(tier, host)
    for k in range(3):
        found(*build())
        assert len(calls) == 2 * (k + 1)


def test_one_wrapper_for_two_methods_is_not_recorded(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = torch.Tensor.add, torch.Tensor.sub

    def new(x: Any, other: Any) -> Any:
        return old[1](old[0](x, other * 3), other)

    for name in ("add", "sub"):
        monkeypatch.setattr(torch.Tensor, name, new)
    found = Pair(tier, by_a_method)
    for _ in range(3):
        found(*build())
    assert "the program has replaced torch.Tensor." in str(found.kernel.explain(*build()))
