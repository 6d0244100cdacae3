"""Changes that make Helion call another function take effect in the next call through tzero:
configs, resets, tuning, late specializations, process groups, globals, reference mode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import helion
import pytest
import torch
import torch.distributed as dist

import tzero
from tests.integrations.helion import kernels_calls, kernels_tiles
from tests.integrations.helion.calls import again, held_to, is_replayed, settled, wrapped
from tests.plans.tiers import verifying
from tzero.integrations.helion import compat
from tzero.plans.plan import Launch

ROW = kernels_tiles.tile_masked  # 100 elements, blocks of 32


@pytest.fixture(params=[1, 2], ids=["python", "native"])
def kernel(request: pytest.FixtureRequest) -> Any:
    """A kernel whose calls are replayed."""
    made = wrapped(again(ROW.kernel), request.param)
    settled(made, ROW)
    assert is_replayed(made, *ROW.fresh())
    return made


def blocks(kernel: Any) -> int:
    """How many blocks the plan for the row's arguments launches."""
    plan = kernel.explain(*ROW.fresh()).plan
    (launch,) = [step for step in plan.steps if isinstance(step, Launch)]
    return launch.grid[0]


def counted(bound: Any) -> list[int]:
    """Replace the function that Helion compiled by one that counts its calls."""
    run, calls = bound._run, [0]

    def counting(*args: Any) -> Any:
        calls[0] += 1
        return run(*args)

    bound._run = counting
    return calls


def test_set_config_is_in_force_in_the_next_call(kernel: Any) -> None:
    assert blocks(kernel) == 4
    bound = kernel.helion.bind(ROW.fresh())
    bound.set_config(helion.Config(block_sizes=[16]))
    calls = counted(bound)
    held_to(ROW, kernel(*ROW.fresh()))
    assert calls == [1]
    bound.set_config(helion.Config(block_sizes=[16]))
    settled(kernel, ROW)
    assert blocks(kernel) == 7


def test_configs_may_be_tried_one_after_the_other(kernel: Any) -> None:
    bound = kernel.helion.bind(ROW.fresh())
    for k in range(24):
        bound.set_config(helion.Config(block_sizes=[16 if k % 2 else 64]))
        settled(kernel, ROW, times=2)
        assert blocks(kernel) == (7 if k % 2 else 2)
    assert is_replayed(kernel, *ROW.fresh())


def test_a_reset_of_helions_kernel_has_it_compile_anew(kernel: Any) -> None:
    before = kernel.helion.bind(ROW.fresh())
    calls = counted(before)
    kernel.helion.reset()
    held_to(ROW, kernel(*ROW.fresh()))
    assert kernel.helion.bind(ROW.fresh()) is not before and calls == [0]
    settled(kernel, ROW)
    assert is_replayed(kernel, *ROW.fresh())


def test_a_reset_of_tzeros_kernel_is_one_of_helions(kernel: Any) -> None:
    before = kernel.helion.bind(ROW.fresh())
    kernel.reset()
    assert kernel.stats().entries == 0
    held_to(ROW, kernel(*ROW.fresh()))
    assert kernel.helion.bind(ROW.fresh()) is not before


def test_a_kernel_that_is_tuned_is_called_as_it_was_tuned(kernel: Any) -> None:
    """Tuning ends with `set_config`; the chosen function gives a wrong result, so that it shows."""
    bound = kernel.helion.bind(ROW.fresh())
    bound._run = lambda x, y: x - y
    x, y = ROW.fresh()
    for _ in range(3):
        torch.testing.assert_close(kernel(x, y), x - y)


def test_a_specialization_that_is_found_late_has_calls_looked_at_again(kernel: Any) -> None:
    if not hasattr(kernel.helion, "_specialization_generation"):
        pytest.skip("Helion finds none late before 1.5")
    recorded = kernel.planner.recorded
    kernel.helion._specialization_generation += 1
    settled(kernel, ROW)
    assert kernel.planner.recorded == recorded + 1


def test_a_global_that_changes_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    row = kernels_calls.reads_global
    kernel = wrapped(again(row.kernel))
    settled(kernel, row)
    assert is_replayed(kernel, *row.fresh())
    monkeypatch.setattr(kernels_calls, "FACTOR", 5.0)
    (x,) = row.fresh()
    for _ in range(3):
        torch.testing.assert_close(kernel(x), x * 5)


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which a group replaces for good
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_within_a_process_group_helion_makes_the_calls(
    request: pytest.FixtureRequest, kernel: Any
) -> None:
    request.getfixturevalue("process_group")
    calls = counted(kernel.helion.bind(ROW.fresh()))
    settled(kernel, ROW, times=3)
    assert calls == [3]
    dist.destroy_process_group()
    kernel.helion.bind(ROW.fresh()).set_config(kernel.helion.configs[0])
    settled(kernel, ROW)
    assert is_replayed(kernel, *ROW.fresh())


def test_reference_mode_is_helions() -> None:
    ref = helion.RefMode.EAGER if hasattr(helion, "RefMode") else None
    if ref is None:
        from helion.runtime.settings import RefMode

        ref = RefMode.EAGER
    kernel = wrapped(again(ROW.kernel, ref_mode=ref))
    settled(kernel, ROW)
    assert "reference mode" in kernel.explain(*ROW.fresh()).refusal


def test_without_helions_guards_a_change_goes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: without Helion's guards a change goes unnoticed."""
    kernel = wrapped(again(ROW.kernel))
    found = compat.compiled
    monkeypatch.setattr(
        compat, "compiled", lambda *args: (now := found(*args)) and now._replace(guards=())
    )
    settled(kernel, ROW)
    kernel.helion.bind(ROW.fresh())._run = lambda x, y: x - y
    if verifying():
        with pytest.raises(tzero.PlanDrift):
            kernel(*ROW.fresh())
    else:
        held_to(ROW, kernel(*ROW.fresh()))  # a sum, still
