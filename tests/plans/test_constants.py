"""Each replay checks whether ``tl.constexpr`` globals of a kernel changed, as Triton does; caches
in native code must not hide a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.plans.tiers import available, of_tier

FACTOR = tl.constexpr(3)
NAMED: Any = tl.constexpr("x")


@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if NAMED == "x":
        value = value * FACTOR
    tl.store(out + at, value, mask=at < n)


def host(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(1,)](x, out, x.numel(), BLOCK=32)
    return out


@pytest.fixture(params=[1, 2], ids=["python", "native"])
def kernel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A kernel whose calls are replayed."""
    made = of_tier(available(request.param), host)
    for _ in range(5):
        works(made)
    yield made
    assert FACTOR.value == 3 and NAMED.value == "x"


def works(kernel: Any) -> None:
    x = torch.arange(20.0)
    torch.testing.assert_close(kernel(x), x * 3)


def fails(kernel: Any) -> None:
    """Demand Triton's own error."""
    x = torch.arange(20.0)
    with pytest.raises(RuntimeError, match="has changed since we compiled this kernel"):
        host(x)
    with pytest.raises(RuntimeError, match="has changed since we compiled this kernel"):
        kernel(x)


def test_another_value_is_tritons_error(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", tl.constexpr(4))
        fails(kernel)
    works(kernel)


def test_an_equal_object_in_its_place_changes_nothing(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", tl.constexpr(3))
        for _ in range(3):
            works(kernel)
        patch.setattr(globals()["FACTOR"], "value", 5)
        fails(kernel)


def test_a_value_that_changes_within_the_object_is_tritons_error(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in ((FACTOR, 7), (NAMED, "y")):
        with monkeypatch.context() as patch:
            patch.setattr(constant, "value", value)
            fails(kernel)
        for _ in range(3):
            works(kernel)


def test_the_value_that_triton_compiled_with_is_compared_too(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the value that the kernel was compiled with."""
    (copied,) = [v for (n, _), (v, _) in scale.used_global_vals.items() if n == "FACTOR"]
    with monkeypatch.context() as patch:
        patch.setattr(copied, "value", 8)
        fails(kernel)
    works(kernel)


def test_the_class_of_a_constant_defines_inequality(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tl.constexpr, "__ne__", lambda self, other: True)
        fails(kernel)
    works(kernel)


def test_a_constant_that_is_gone_is_tritons_error(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(globals(), "FACTOR")
        fails(kernel)
    works(kernel)
