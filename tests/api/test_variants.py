"""Several functions that compute the same, as variants of one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers
from tests.briefly import tune_briefly
from tzero.errors import InvalidKernel


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def narrow(x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
    """Twice a tensor."""
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


def wide(x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def wrong(x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
    return x * 3


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tune_briefly(monkeypatch)


tier = tiers.fixture(0, 1, 2, override=True)


X = torch.randn(5000)


def test_a_call_gets_the_fastest_right_variant(tier: int) -> None:
    made = tzero.multi_kernel([narrow, wide, wrong])
    for _ in range(3):
        assert torch.equal(made(X), X * 2)
    choice = made.bind(X).choice
    assert choice is not None
    assert choice.variant.variant in ("narrow", "wide")
    assert choice.how in ("tuned", "cached")


def test_a_plan_launches_one_variant() -> None:
    made = tzero.multi_kernel([narrow, wide], name="double")
    for _ in range(3):
        made(X)
    plan = made.explain(X).plan
    assert plan is not None
    assert str(plan).count("launch double_kernel") == 1


def test_it_has_the_name_documentation_and_defaults_of_the_first() -> None:
    made = tzero.multi_kernel([narrow, wide])
    assert made.name == "narrow"
    assert made.__doc__ == "Twice a tensor."
    assert torch.equal(made(X, more=1.0), made(X))
    assert tzero.multi_kernel([narrow], name="double").name == "double"


def test_variants_are_chosen_by_size() -> None:
    made = tzero.multi_kernel([narrow, wide], static_shapes=False, size_hints=[16, 8192])
    for n in (10, 10_000, 20, 20_000):
        x = torch.randn(n)
        assert torch.equal(made(x), x * 2)
    assert "nearest" in str(made.explain(X))


def test_variants_with_the_same_name_are_distinct() -> None:
    functions = [lambda x: x * 2, lambda x: x + x]
    made = tzero.multi_kernel(functions, name="double")
    assert torch.equal(made(X), X * 2)
    assert len(made.configs) == 2


def test_a_variant_may_be_a_kernel_with_configs() -> None:
    inner = tzero.kernel(configs=[tzero.Config(BLOCK=16), tzero.Config(BLOCK=64)])(_configured)
    made = tzero.multi_kernel([narrow_alone, inner])
    for _ in range(2):
        assert torch.equal(made(X), X * 2)


def narrow_alone(x: torch.Tensor) -> torch.Tensor:
    return narrow(x)


def _configured(x: torch.Tensor, config: tzero.Config) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), config.BLOCK),)
    double_kernel[grid](x, out, x.numel(), **config)
    return out


@pytest.mark.parametrize(
    ("variants", "options", "words"),
    [
        ([], {}, "its variants are"),
        (narrow, {}, "its variants are"),
        ([narrow, lambda y: y], {}, "takes y, not x, more"),
        ([_configured], {}, "has a parameter `config`"),
        ([narrow], {"configs": [tzero.Config()]}, "the variants themselves"),
    ],
)
def test_invalid_variants_are_an_error(variants: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidKernel, match=words):
        tzero.multi_kernel(variants, **options)


def test_a_parameter_may_have_any_name() -> None:
    def one(variant_0: torch.Tensor) -> torch.Tensor:
        return variant_0 * 2

    def other(variant_0: torch.Tensor) -> torch.Tensor:
        return variant_0 + variant_0

    made = tzero.multi_kernel([one, other])
    found = made.autotune(torch.ones(3), force=True)
    assert all(outcome.usable for outcome in found.outcomes.values())
