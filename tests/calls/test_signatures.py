"""Host functions may have every kind of parameter that Python has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers

tier = tiers.fixture(0, 1, 2, override=True)


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def scaled(x, by):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, by, x.numel(), BLOCK=16)
    return out


def keyword_only(x, *, by=2.0):
    return scaled(x, by)


def positional_only(x, by=2.0, /):
    return scaled(x, by)


def positional_only_and_more(x, /, **more):
    return scaled(x, more.get("x", 2.0))


def rest(x, *by):
    return [scaled(x, each) for each in by or (2.0,)]


def more(x, **by):
    return {name: scaled(x, each) for name, each in by.items()} or scaled(x, 2.0)


def everything(x, by=1.0, /, other=None, *rest, last, default=3.0, **more):
    scales = [by, *rest, last, default, *more.values()]
    return [scaled(x if other is None else other, each) for each in scales]


X, Y = torch.arange(5.0), torch.arange(4.0)
CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (keyword_only, (X,), {}),
    (keyword_only, (X,), {"by": 3.0}),
    (keyword_only, (), {"by": 3.0, "x": X}),
    (positional_only, (X,), {}),
    (positional_only, (X, 4.0), {}),
    (positional_only_and_more, (X,), {}),
    (positional_only_and_more, (X,), {"x": 5.0}),
    (rest, (X,), {}),
    (rest, (X, 1.0), {}),
    (rest, (X, 1.0, 2.0, 3.0), {}),
    (rest, (), {"x": X}),
    (more, (X,), {}),
    (more, (X,), {"a": 1.0}),
    (more, (X,), {"b": 1.0, "a": 2.0}),
    (more, (X,), {"by": 4.0}),
    (everything, (X,), {"last": 5.0}),
    (everything, (X, 2.0, Y), {"last": 5.0}),
    (everything, (X, 2.0, None, 7.0, 8.0), {"last": 5.0, "by": 9.0, "more": 1.0}),
    (everything, (X,), {"other": Y, "last": 5.0, "default": 4.0}),
]
MISFITS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (keyword_only, (X, 2.0), {}),
    (keyword_only, (X,), {"bye": 2.0}),
    (positional_only, (X,), {"by": 2.0}),
    (positional_only, (), {"x": X}),
    (rest, (X,), {"by": 1.0}),
    (rest, (), {}),
    (more, (X, 1.0), {}),
    (more, (X,), {"x": X}),
    (everything, (X,), {}),
    (everything, (X, 1.0, X), {"other": X, "last": 1.0}),
]


def named(call: Any) -> str:
    function, args, kwargs = call
    shown = [*("x" if isinstance(a, torch.Tensor) else str(a) for a in args), *kwargs]
    return f"{function.__name__}-{'-'.join(shown)}"


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and same([*found.values()], [*expected.values()])
    return len(found) == len(expected) and all(map(same, found, expected))


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_call_gives_what_the_function_gives(call: Any, tier: int) -> None:
    function, args, kwargs = call
    kernel = tzero.kernel(function)
    for _ in range(4):
        assert same(kernel(*args, **kwargs), function(*args, **kwargs))
    assert kernel.stats().calls == 4


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_call_is_replayed(call: Any) -> None:
    function, args, kwargs = call
    kernel = tzero.kernel(function)
    for _ in range(3):
        kernel(*args, **kwargs)
    found = kernel.explain(*args, **kwargs)
    assert found.plan is not None, found


@pytest.mark.parametrize("call", MISFITS, ids=named)
def test_what_the_function_rejects_is_rejected(call: Any, tier: int) -> None:
    function, args, kwargs = call
    kernel = tzero.kernel(function)
    with pytest.raises(TypeError):
        function(*args, **kwargs)
    with pytest.raises(TypeError, match=function.__name__):
        kernel(*args, **kwargs)


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_call_can_be_bound_and_explained(call: Any) -> None:
    function, args, kwargs = call
    kernel = tzero.kernel(function)
    bound = kernel.bind(*args, **kwargs)
    assert same(bound(*args, **kwargs), function(*args, **kwargs))
    assert same(kernel.plain(*args, **kwargs)(), function(*args, **kwargs))
    assert bound.key == kernel.key(*args, **kwargs) == kernel.explain(*args, **kwargs).key


def test_the_signature_is_that_of_the_function():
    for function in {call[0] for call in CALLS}:
        assert inspect.signature(tzero.kernel(function)) == inspect.signature(function)


def test_a_config_goes_beside_other_keywords():
    @tzero.kernel(config=tzero.Config(BY=3.0))
    def host(x, *rest, plus=0.0, config, **more):
        return scaled(x, config.BY + plus + sum(rest) + sum(more.values()))

    for _ in range(3):
        assert torch.equal(host(X), X * 3)
        assert torch.equal(host(X, 1.0, 1.0, plus=2.0, a=1.0), X * 8)


def test_a_config_goes_between_positional_parameters():
    @tzero.kernel(config=tzero.Config(BY=3.0))
    def host(x, config, plus=0.0, *, minus=0.0):
        return scaled(x, config.BY + plus - minus)

    for _ in range(3):
        assert torch.equal(host(X, 1.0, minus=2.0), X * 2)


def test_variants_take_every_kind_of_parameter():
    def one(x, /, y=1.0, *rest, k, j=1.0, **more):
        return scaled(x, y + k + j + sum(rest) + sum(more.values()))

    def two(x, /, y=1.0, *rest, k, j=1.0, **more):
        return scaled(x, sum(more.values()) + sum(rest) + j + k + y)

    both = tzero.multi_kernel([one, two])
    for _ in range(3):
        assert torch.equal(both(X, k=1.0), X * 3)
        assert torch.equal(both(X, 2.0, 1.0, k=1.0, a=1.0), X * 6)
