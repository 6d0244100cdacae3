"""What torch counts as a change of a tensor is counted where native code copies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tzero
from tests.plans.hosts import scaled
from tests.plans.tiers import verifying
from tests.tiers import of_tier

Context = Callable[[], contextlib.AbstractContextManager[Any]]


def onto(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x)
    return scaled(x, 2.0)


def through_a_view(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.view(-1).copy_(x.view(-1))
    return scaled(x, 2.0)


def ordinary() -> torch.Tensor:
    return torch.ones(4)


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4)


def detached() -> torch.Tensor:
    """An inference tensor whose changes torch counts."""
    return of_inference().detach()


def outcome(call: Callable[..., Any], make: Callable[[], torch.Tensor], mode: Context) -> Any:
    """The version of the target afterwards, or the error."""
    out = make()
    with mode():
        try:
            call(torch.arange(4.0), out)
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return "none" if make is of_inference else out._version


@pytest.mark.parametrize("host", [onto, through_a_view], ids=lambda host: host.__name__)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.inference_mode])
@pytest.mark.parametrize(
    "first", [ordinary, of_inference, detached], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("then", [ordinary, of_inference, detached], ids=lambda each: each.__name__)
def test_versions_are_those_of_plain_calls(
    host: Any, mode: Context, first: Any, then: Any, tier: int
) -> None:
    kernel = of_tier(tier, host)
    for make in (first, first, first, then, then, first):
        assert outcome(kernel, make, mode) == outcome(host, make, mode)


def test_a_copy_of_an_inference_tensor_has_the_version_that_torch_gives(tier: int) -> None:
    if verifying():
        pytest.skip("in verify mode every call is recorded, and torch counts no recorded one")

    def host(x: torch.Tensor) -> torch.Tensor:
        scaled(x, 2.0)
        return x.clone()

    kernel = of_tier(tier, host)
    kernel(of_inference())  # while a call is recorded, torch does not count it
    for _ in range(3):
        assert kernel(of_inference())._version == host(of_inference())._version


@pytest.mark.parametrize("profiled", [False, True], ids=["large", "profiled"])
def test_an_output_that_is_used_again_is_counted_once(profiled: bool) -> None:
    @tzero.kernel(pool=True)
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out.copy_(x)
        scaled(out, 2.0)
        return out

    x = torch.ones(8) if profiled else torch.ones(1024, 257)
    for _ in range(6):
        kernel(x)
    block: Any = torch.profiler.profile() if profiled else contextlib.nullcontext()
    with block:
        assert [kernel(x)._version for _ in range(6)] == [1] * 6


def test_each_byte_of_a_boolean_is_0_or_1(tier: int) -> None:
    def host(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scaled(x, 2.0)
        return mask.clone()

    kernel = of_tier(tier, host)
    for _ in range(4):
        mask = torch.tensor([0, 2, 255, 1], dtype=torch.uint8).view(torch.bool)
        found = kernel(torch.ones(4), mask).view(torch.uint8)
        assert found.tolist() == host(torch.ones(4), mask).view(torch.uint8).tolist()
