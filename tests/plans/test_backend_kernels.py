"""Kernels of other backends in host functions are recorded and replayed like Triton's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plans import kernels
from tests.plans.tiers import Pair, Raised
from tzero import events
from tzero.backends import cpp

pytestmark = pytest.mark.filterwarnings("error")

scale = cpp.kernel("""
void scale(const float *x, float *out, int64_t n, double by, tzero::Program program) {
    for (int64_t i = program.id[0]; i < n; i += program.grid[0]) out[i] = float(by * x[i]);
}
""")
put = cpp.kernel("""
#include <stdexcept>
void put(float *out, int32_t value, tzero::Program program) {
    if (value < 0 && program.id[0] == 2) throw std::runtime_error("a negative value");
    out[program.id[0]] = float(value + 10 * program.grid[0]);
}
""")

Make = Callable[..., Pair]


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(4,)](x, out, x.numel(), 2.0)
    return out


def by_name(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(2,)](by=3.0, out=out, n=x.numel(), x=x)
    return out


def with_a_grid_function(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[lambda given: (given["n"],)](x, out, x.numel(), 2.0)
    return out


def passed_on(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(3,)](x, out, 12, by)
    return out


def put_in(value: int) -> torch.Tensor:
    out = torch.zeros(4)
    put[(4,)](out, value)
    return out


def after_one_of_tritons(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernels.scale[(1,)](x, x, 2, 12, BLOCK=16)
    scale[(4,)](x, out, 12, 0.5)
    return out


def three_views(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in (0, 1, 2):
        scale[(1,)](x[row], out[row], 4, 1.0 + row)
    return out


def numbers() -> torch.Tensor:
    return torch.arange(12.0)


@pytest.mark.parametrize("host", [doubled, by_name, with_a_grid_function, after_one_of_tritons])
def test_a_launch_of_a_cpp_kernel_is_replayed(pair: Make, host: Callable[..., Any]) -> None:
    pair(host).replays(lambda: (numbers(),))


def test_views_are_passed_by_their_own_addresses(pair: Make) -> None:
    pair(three_views).replays(lambda: (torch.randn(3, 4),))


@pytest.mark.usefixtures("replaying")
def test_a_number_that_is_passed_on_is_that_of_each_call(pair: Make) -> None:
    made = pair(passed_on)
    assert made(numbers(), 2.0)
    for by in (3.5, -1.0, 1e30):
        assert not made(numbers(), by), made.reasons()


@pytest.mark.usefixtures("replaying")
def test_a_number_that_does_not_fit_is_refused_by_name_in_a_replay(pair: Make) -> None:
    made = pair(put_in)
    assert made(3)
    assert not made(5), made.reasons()
    made(1 << 40)
    assert isinstance(made.found, Raised) and "'value'" in made.found.words[1]
    assert not made(6)


def test_what_a_kernel_throws_in_a_replay_is_raised(pair: Make) -> None:
    made = pair(put_in)
    made.replays(lambda: (3,))
    made(-1)
    assert isinstance(made.found, Raised) and "a negative value" in made.found.words[1]
    made(4)
    assert not isinstance(made.found, Raised)


def test_another_dtype_is_another_plan_and_an_error(pair: Make) -> None:
    made = pair(doubled)
    made.replays(lambda: (numbers(),))
    made(numbers().double())
    assert (
        isinstance(made.found, Raised) and "'x' is a tensor of torch.float64" in made.found.words[1]
    )
    made.replays(lambda: (numbers(),), recorded=0)


@pytest.mark.usefixtures("replaying")
def test_native_replays_of_cpp_kernels_are_native(tier: int) -> None:
    if tier != 2:
        pytest.skip("about native replays")
    made = Pair(tier, doubled)
    made.replays(lambda: (numbers(),))
    assert made.reasons() == []
    calls: list[Any] = []
    run, cpp.CppKernel.bound = cpp.CppKernel.bound, lambda self, *rest: calls.append(self)  # type: ignore
    try:
        made.kernel(numbers())
    finally:
        cpp.CppKernel.bound = run  # type: ignore[method-assign]
    assert calls == [], "the launch went through Python"


def test_a_launch_tells_an_event_in_a_replay(pair: Make) -> None:
    made = pair(doubled)
    made.replays(lambda: (numbers(),))
    seen: list[events.Event] = []
    with events.observe(seen.append):
        made.kernel(numbers())
    assert [(e.kernel, e.facts["grid"]) for e in seen if e.kind == "launch"] == [
        ("scale", (4, 1, 1))
    ]
