"""Pre-run hooks get in a replay what they get in the launch as it is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.plans.kernels import BLOCK, add, fast_scale, scale
from tests.plans.tiers import of_tier, verifying
from tests.tiers import jit_maker

Hooked = tuple[tuple[Any, ...], dict[str, Any]]

NUMBERS = itertools.count()


@triton.jit
def with_default(x, out, n, by=2, BLOCK: tl.constexpr = 64):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


heuristic = triton.heuristics({"BLOCK": lambda meta: 64})(with_default)


def constants_by_name(x, y):
    out = torch.empty_like(x)
    add[(1,)](x, y, out, x.numel(), BLOCK=BLOCK)
    return out


def all_by_position(x, y):
    out = torch.empty_like(x)
    add[(1,)](x, y, out, x.numel(), BLOCK)
    return out


def all_by_name_in_another_order(x, y):
    out = torch.empty_like(x)
    add[(1,)](BLOCK=BLOCK, n=x.numel(), out=out, y=y, x=x)
    return out


def with_options(x, y):
    out = torch.empty_like(x)
    add[(1,)](x, y, num_warps=2, out=out, n=x.numel(), num_stages=1, BLOCK=BLOCK)
    return out


def defaults_left_out(x, y):
    out = torch.empty_like(x)
    with_default[(1,)](x, out, n=x.numel())
    return out


def through_a_heuristic(x, y):
    out = torch.empty_like(x)
    heuristic[(1,)](x, out, x.numel(), by=3)
    return out


def a_grid_function(x, y):
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=BLOCK)
    return out


def of_a_view(x, y):
    out = torch.empty_like(x[1:])
    scale[(1,)](x[1:], out, 2.0, n=out.numel(), BLOCK=BLOCK)
    return out


def by_tzero(x, y):
    out = torch.empty_like(x)
    fast_scale[(1,)](x, out, by=2.0, n=x.numel(), BLOCK=BLOCK)
    return out


HOSTS: dict[Callable[..., Any], Any] = {
    constants_by_name: add,
    all_by_position: add,
    all_by_name_in_another_order: add,
    with_options: add,
    defaults_left_out: with_default,
    through_a_heuristic: with_default,
    a_grid_function: add,
    of_a_view: scale,
    by_tzero: fast_scale,
}


@pytest.fixture
def attach() -> Iterator[Callable[[Any], list[Hooked]]]:
    """Attaches a hook to a kernel, and returns the list of what it gets."""
    hooks: list[tuple[Any, Any]] = []

    def attached(kernel: Any) -> list[Hooked]:
        seen: list[Hooked] = []

        def hook(*args: Any, **kwargs: Any) -> None:
            seen.append((args, dict(kwargs)))

        kernel.add_pre_run_hook(hook)
        hooks.append((kernel, hook))
        return seen

    yield attached
    for kernel, hook in hooks:
        kernel.pre_run_hooks.remove(hook)


def facts(seen: list[Hooked]) -> list[Any]:
    """What hooks got, tensors by geometry."""

    def fact(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (type(value), value.dtype, value.size(), value.stride(), value.storage_offset())
        return (type(value), value)

    return [
        ([fact(each) for each in args], [(name, fact(each)) for name, each in kwargs.items()])
        for args, kwargs in seen
    ]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("early", [False, True], ids=["attached later", "attached first"])
def test_a_hook_gets_the_arguments_as_they_are_written(
    host: Callable[..., Any], early: bool, tier: int, attach: Callable[[Any], list[Hooked]]
) -> None:
    kernel, x, y = of_tier(tier, host), torch.randn(40), torch.randn(40)
    seen = attach(HOSTS[host]) if early else []
    for _ in range(3):
        kernel(x, y)
    assert kernel.explain(x, y).plan is not None
    seen = seen if early else attach(HOSTS[host])
    seen.clear()
    expected = host(x, y)
    plainly = facts(seen)
    seen.clear()
    before = kernel.stats()
    assert torch.equal(kernel(x, y), expected)
    assert facts(seen) == plainly and len(plainly) == 1
    if not verifying():
        assert kernel.stats().python_replays == before.python_replays + 1


def test_a_hook_that_comes_in_the_middle_of_a_native_replay_gets_them_too(
    tier: int, attach: Callable[[Any], list[Hooked]]
) -> None:
    attached: list[list[Hooked]] = []

    # What is left of an operator of the same name takes the new one away when it is collected.
    @torch.library.custom_op(f"tzero_hooks::attach_{next(NUMBERS)}", mutates_args=("x",))
    def attach_now(x: torch.Tensor) -> None:
        if wanted:
            attached.append(attach(add))

    def host(x, y):
        attach_now(x)
        out = torch.empty_like(x)
        add[(1,)](x, y, n=x.numel(), out=out, BLOCK=BLOCK)
        return out

    wanted = False
    kernel, x, y = of_tier(tier, host), torch.randn(40), torch.randn(40)
    for _ in range(3):
        kernel(x, y)
    wanted = True
    assert torch.equal(kernel(x, y), x + y)
    ((args, kwargs),) = attached[0]
    assert len(args) == 2 and args[0] is x and args[1] is y
    assert list(kwargs)[:3] == ["n", "out", "BLOCK"] and len(kwargs["out"]) == 40


def test_a_launch_of_tzeros_own_shows_hooks_the_same(
    tier: int, attach: Callable[[Any], list[Hooked]]
) -> None:
    make = jit_maker(tier)
    mine = make(with_default.fn)
    x, out = torch.randn(40), torch.empty(40)
    mine[(1,)](x, out, 40)
    seen, plainly = attach(mine), attach(with_default)
    mine[(1,)](x, out, n=40, by=3)
    with_default[(1,)](x, out, n=40, by=3)
    assert facts(seen) == facts(plainly)


@pytest.mark.usefixtures("exact")
def test_the_source_of_a_wrapper_spells_launches_as_they_are_written(tier: int) -> None:
    kernel, x, y = of_tier(tier, with_options), torch.randn(40), torch.randn(40)
    kernel(x, y)
    assert f"(x, y, num_warps=2, out=t2, n=40, num_stages=1, BLOCK={BLOCK})" in (
        kernel.bind(x, y).to_code()
    )
    assert isinstance(kernel, tzero.Kernel)
