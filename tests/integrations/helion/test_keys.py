"""Keys are as fine as Helion's: calls that Helion compiles separately never share a plan. Numbers
that Helion only passes to launches do not select plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest
import torch
from packaging.version import Version

from tests.integrations.helion import kernels_calls, kernels_tiles
from tests.integrations.helion.calls import again, is_replayed, wrapped
from tests.integrations.helion.row import Row


@dataclass(frozen=True, slots=True)
class Apart:
    """Two calls with different keys in Helion, and their results; `since` is the oldest version."""

    name: str
    row: Row
    one: Callable[[], tuple[Any, ...]]
    other: Callable[[], tuple[Any, ...]]
    wanted: Callable[..., Any]
    since: str = "1.4"


def ones(n: int = 50) -> torch.Tensor:
    return torch.arange(n) + 1.0


APART = (
    Apart("the size", kernels_tiles.tile_1d, lambda: (ones(64), ones(64)),
          lambda: (ones(65), ones(65)), torch.add),
    Apart("the size, dynamic, at one", kernels_calls.dynamic_1d, lambda: (ones(1), ones(1)),
          lambda: (ones(7), ones(7)), torch.add, since="1.5"),
    Apart("the strides", kernels_tiles.tile_1d, lambda: (ones(64), ones(64)),
          lambda: (ones(128)[::2], ones(64)), torch.add),
    Apart("the dtype", kernels_tiles.tile_1d, lambda: (ones(64), ones(64)),
          lambda: (ones(64).double(), ones(64).double()), torch.add),
    Apart("one tensor twice", kernels_tiles.tile_1d, lambda: (ones(64), ones(64)),
          lambda: (ones(64),) * 2, torch.add, since="1.5"),
    Apart("a constexpr", kernels_calls.constant, lambda: (ones(), True), lambda: (ones(), False),
          lambda x, up: x + 1 if up else x - 1),
    Apart("a number that is specialized", kernels_calls.specialized_number, lambda: (ones(), 3),
          lambda: (ones(), 4), torch.mul),
    Apart("a size that is specialized", kernels_calls.specialized,
          lambda: (ones(72).view(9, 8),), lambda: (ones(72).view(18, 4),), lambda x: x.sum(1)),
    Apart("the type of a number", kernels_calls.keyed, lambda: (ones(), 2), lambda: (ones(), 2.5),
          torch.mul),
    Apart("what key= says", kernels_calls.keyed, lambda: (ones(), 2), lambda: (ones(), 3),
          torch.mul),
    Apart("None or a tensor", kernels_calls.optional, lambda: (ones(), None),
          lambda: (ones(), ones()), lambda x, y: x if y is None else x + y),
    Apart("a function as an argument", kernels_calls.takes_function,
          lambda: (ones(), kernels_calls.halved), lambda: (ones(), lambda x: x * 3),
          lambda x, f: f(x)),
    Apart("a dtype as an argument", kernels_calls.takes_dtype, lambda: (ones(), torch.float64),
          lambda: (ones(), torch.float16), lambda x, d: x.to(d)),
)  # fmt: skip


@pytest.mark.parametrize("tier", [1, 2], ids=["python", "native"])
@pytest.mark.parametrize("apart", APART, ids=lambda apart: apart.name)
def test_what_helion_tells_apart_is_told_apart(apart: Apart, tier: int) -> None:
    plain = again(apart.row.kernel)
    for args in (apart.one(), apart.other()):
        plain(*args)  # Helion's specializations are known once it has compiled
    if Version(version("helion")) >= Version(apart.since):
        assert plain.specialization_key(apart.one()) != plain.specialization_key(apart.other())
    kernel = wrapped(again(apart.row.kernel), tier)
    for _ in range(4):
        for args in (apart.one(), apart.other()):
            torch.testing.assert_close(kernel(*args), apart.wanted(*args))
    assert is_replayed(kernel, *apart.one()) and is_replayed(kernel, *apart.other())


def test_two_arguments_that_share_memory_are_both_written() -> None:
    kernel = wrapped(again(kernels_tiles.in_place.kernel))
    whole = torch.ones(200)
    for k in range(1, 5):
        kernel(whole[:100])
        torch.testing.assert_close(whole, torch.cat([torch.ones(100) * 0.5**k, torch.ones(100)]))


@pytest.mark.parametrize("tier", [1, 2], ids=["python", "native"])
def test_a_number_that_is_only_passed_on_may_be_another_one(tier: int) -> None:
    kernel = wrapped(again(kernels_calls.numbers.kernel), tier)
    x = ones()
    for scale, plus in [(2.5, 7)] * 3:
        torch.testing.assert_close(kernel(x, scale, plus), x * scale + plus)
    recorded = kernel.planner.recorded
    for scale, plus in [(0.5, 5), (-3.0, 9), (1e20, 7)]:
        torch.testing.assert_close(kernel(x, scale, plus), x * scale + plus)
    assert kernel.planner.recorded == recorded == 1
    for plus in (1, 16, 1 << 40):  # Triton compiles other code for these
        torch.testing.assert_close(kernel(x, 2.0, plus), x * 2 + plus)


def test_a_function_is_known_by_its_code() -> None:
    """As in Helion: a lambda that is created in each call is the same function."""
    kernel = wrapped(again(kernels_calls.takes_function.kernel))
    x = ones()
    for _ in range(6):
        torch.testing.assert_close(kernel(x, lambda x: x + 5), x + 5)
        torch.testing.assert_close(kernel(function=lambda x: x - 5, x=x), x - 5)
    assert kernel.stats().entries == 2


def test_a_function_whose_code_is_replaced_is_another_one() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 7

    kernel = wrapped(again(kernels_calls.takes_function.kernel))
    x = ones()
    for _ in range(4):
        torch.testing.assert_close(kernel(x, function), x * 2)
    function.__code__ = other.__code__
    for _ in range(4):
        torch.testing.assert_close(kernel(x, function), x * 7)


@pytest.mark.parametrize("tier", [1, 2], ids=["python", "native"])
def test_a_function_may_be_left_out(tier: int) -> None:
    kernel = wrapped(again(kernels_calls.defaulted_function.kernel), tier)
    x = ones()
    for _ in range(4):
        torch.testing.assert_close(kernel(x), x * 0.5)
        torch.testing.assert_close(kernel(x, lambda x: x + 1), x + 1)
    assert is_replayed(kernel, x)


def test_a_number_that_decides_what_runs_counts_in_full() -> None:
    kernel = wrapped(again(kernels_calls.specialized_number.kernel))
    x = ones()
    for n in (3, 5, 2, 3, 5, 2, 3, 5, 2):
        torch.testing.assert_close(kernel(x, n), x * n)
    assert kernel.planner.recorded == 3


def test_a_tensor_that_is_not_aligned_is_not_given_to_code_for_those_that_are() -> None:
    kernel = wrapped(again(kernels_tiles.tile_1d.kernel))
    whole = torch.randn(129)
    for _ in range(4):
        for x in (whole[:128], whole[1:]):
            torch.testing.assert_close(kernel(x, x), x + x)
