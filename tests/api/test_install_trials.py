"""Launches that an autotuner makes to time its configs are counted apart from the program's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

import tzero
from tzero.api.install import Installed, KernelLaunches
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="about native launches")

TIMES = 40
PLAIN = Autotuner._bench


def _put(out, n, BLOCK: tl.constexpr, TIMES: tl.constexpr = 1):
    tl.store(out + tl.arange(0, BLOCK), n * TIMES, mask=tl.arange(0, BLOCK) < 1)


def timed(call: Callable[[], Any], quantiles: Any) -> list[float]:
    for _ in range(TIMES):
        call()
    return [1.0, 1.0, 1.0]


def tuned(kernel: Any) -> Any:
    configs = [triton.Config({"BLOCK": size}) for size in (16, 32)]
    return triton.autotune(configs, key=["n"], do_bench=timed)(kernel)


@pytest.fixture
def installed() -> Iterator[None]:
    tzero.install()
    yield
    tzero.uninstall()
    assert Autotuner._bench is PLAIN


def of(function: Any) -> KernelLaunches:
    from tzero.launches import counted

    (found,) = (each for each in counted.launched() if each.kernel is function)
    left = dict(found.left)
    counts = (found.launches, found.native, found.microseconds, left, found.trials)
    return KernelLaunches("", "", *counts)


@pytest.mark.parametrize("has_heuristics", [False, True])
def test_trials_are_no_launches_of_the_program(installed: None, has_heuristics: bool) -> None:
    kernel = triton.jit(_put)
    inside = triton.heuristics({"TIMES": lambda given: 3})(kernel) if has_heuristics else kernel
    launched, out = tuned(inside), torch.zeros(1)
    for _ in range(5):
        launched[(1,)](out, 3)
    found = of(kernel)
    assert (found.launches, found.native, found.trials) == (5, 5, 2 * TIMES)
    assert found.microseconds is None or found.microseconds > 0
    launched[(1,)](out, 4)
    kernel[(1,)](out, 4, BLOCK=16)
    assert of(kernel).launches == 7


def test_trials_of_a_kernel_that_native_code_cannot_launch_are_counted_too(
    installed: None,
) -> None:
    kernel = triton.jit(_put)
    kernel.run = lambda *args, **kwargs: type(kernel).run(kernel, *args, **kwargs)
    launched, out = tuned(kernel), torch.zeros(1)
    for _ in range(5):
        launched[(1,)](out, 3)
    found = of(kernel)
    assert (found.launches, found.trials) == (5, 2 * TIMES)


def test_a_trial_that_fails_is_counted_until_it_failed(installed: None) -> None:
    def fails(call: Callable[[], Any], quantiles: Any) -> Any:
        call()
        raise ZeroDivisionError

    kernel = triton.jit(_put)
    launched = tuned(kernel)
    launched.__dict__["do_bench"] = fails
    with pytest.raises(ZeroDivisionError):
        launched[(1,)](torch.zeros(1), 3)
    assert (of(kernel).launches, of(kernel).trials) == (0, 1)


def test_a_bench_that_the_program_has_replaced_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(*args: Any, **kwargs: Any) -> Any:
        return PLAIN(*args, **kwargs)

    monkeypatch.setattr(Autotuner, "_bench", own)
    tzero.install()
    try:
        assert Autotuner._bench is own
    finally:
        tzero.uninstall()
    assert Autotuner._bench is own


def test_trials_are_shown_apart() -> None:
    one = KernelLaunches("app", "one", 600, 600, 1.5, {}, 105_363)
    other = KernelLaunches("app", "other", 300, 300, 1.5, {})
    text = str(Installed((), (one, other)))
    first, head, row, *_ = text.splitlines()
    assert first == "900 launches of 2 kernels, 100% native, and 105,363 trials by autotuners"
    assert head.split()[:4] == ["kernel", "launches", "trials", "native"]
    assert row.split()[:4] == ["app.one", "600", "105,363", "600"]
    assert "trials" not in str(Installed((), (other,)))
