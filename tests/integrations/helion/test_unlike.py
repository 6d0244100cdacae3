"""Unusual Helion kernels while tzero is installed: copies, positional-only parameters, calls in
tracers. tzero does what Helion does, or raises an error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NoReturn

import helion
import helion.language as hl
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tzero
from tests.integrations.helion import kernels_tiles
from tests.integrations.helion.calls import again, installed, is_replayed, settled, wrapped
from tzero import events, settings
from tzero.integrations.helion.calls import HelionKernel

ROW = kernels_tiles.tile_1d
CONFIG = helion.Config(block_sizes=[32])


@pytest.fixture(autouse=True)
def while_installed() -> Iterator[None]:
    with installed():
        yield


@helion.kernel(config=CONFIG)
def first_by_place(x: torch.Tensor, times: float, /, plus: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * times + plus
    return out


@helion.kernel(config=CONFIG)
def with_config(x: torch.Tensor, config: float, config_: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * config + config_
    return out


def test_a_copy_of_a_kernel_is_a_kernel_of_its_own() -> None:
    kernel = again(ROW.kernel)
    settled(kernel, ROW)
    twice = copy.copy(kernel)
    twice.reset()  # resets what both share; from then on it has its own
    twice._bound_kernels, twice._dispatch_cache = {}, {}
    x, y = ROW.fresh()
    twice.bind((x, y))._run = lambda x, y: x * y
    for _ in range(3):
        torch.testing.assert_close(twice(x, y), x * y)
        torch.testing.assert_close(kernel(x, y), x + y)


@pytest.mark.parametrize("off", [{"disable": True}, {"tier": 0}, {"tier": 1}], ids=str)
def test_nothing_of_tzeros_is_called_where_it_is_off_or_would_be_slower(
    off: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Any, *args: Any) -> NoReturn:
        raise AssertionError("a call came to tzero's kernel")

    monkeypatch.setattr(HelionKernel, "_answer", never)
    monkeypatch.setattr(HelionKernel, "__call__", never)
    seen: list[events.Event] = []
    with settings.override(**off), events.observe(seen.append):
        settled(again(ROW.kernel), ROW)
    reasons = [event.reason for event in seen if event.kind == "fallback"]
    slower = "left to Helion: a replay in Python (tier 1) takes longer"
    assert [reason.startswith(slower) for reason in reasons] == [True] * (off == {"tier": 1})


def test_parameters_may_be_positional_only() -> None:
    x = torch.randn(50)
    seen: list[events.Event] = []
    with events.observe(seen.append):
        for _ in range(3):
            torch.testing.assert_close(first_by_place(x, 3.0), x * 3 + 1)
            torch.testing.assert_close(first_by_place(x, 3.0, plus=2.0), x * 3 + 2)
    with pytest.raises(TypeError, match="positional"):
        first_by_place(x, times=3.0)
    assert [event.reason for event in seen if event.kind == "fallback"] == []


@pytest.mark.parametrize("tier", [1, 2], ids=["python", "native"])
def test_a_parameter_called_config_is_an_argument(tier: int) -> None:
    kernel = wrapped(with_config, tier)
    x = torch.randn(50)
    for _ in range(3):
        torch.testing.assert_close(kernel(x, 2.0), x * 2 + 1)
        torch.testing.assert_close(kernel(x, config=3.0), x * 3 + 1)
        torch.testing.assert_close(kernel(x, 4.0, config_=5.0), x * 4 + 5)
        with pytest.raises(TypeError, match="'config'"):
            kernel(x, config_=3.0)
    assert is_replayed(kernel, x, 2.0)
    assert kernel.planner.recorded == 1


@pytest.mark.parametrize("settle", [0, 3], ids=["new", "replayed"])
@pytest.mark.parametrize("name", ["torch.jit.trace", "make_fx"])
def test_tracers_that_do_not_see_launches_are_refused(name: str, settle: int) -> None:
    kernel: Any = again(ROW.kernel)
    settled(kernel, ROW, settle)
    x, y = ROW.fresh()
    with pytest.raises(tzero.InvalidArgument, match=f"{name} does not see its launches"):
        if name == "make_fx":
            make_fx(kernel)(x, y)
        else:
            torch.jit.trace(lambda x, y: kernel(x, y), (x, y))
    settled(kernel, ROW)


def test_a_tracer_sees_what_reference_mode_does() -> None:
    kernel: Any = again(ROW.kernel, ref_mode=helion.RefMode.EAGER)
    x, y = ROW.fresh()
    traced = make_fx(lambda x, y: kernel(x, y))(x, y)
    torch.testing.assert_close(traced(y, y), y + y)
