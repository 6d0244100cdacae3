"""Helion's private parts, checked against the installed Helion: a test for each supported version,
skipped if another one is installed."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
import torch
from packaging.version import Version

from tests.integrations.helion import kernels_calls, kernels_tiles
from tests.integrations.helion.calls import again
from tzero.integrations.helion import compat

ROW = kernels_tiles.tile_1d
THERE = Version(version("helion"))


@pytest.fixture
def kernel() -> Any:
    """A new kernel."""
    return again(ROW.kernel)


def only(wanted: str) -> pytest.MarkDecorator:
    there = THERE.release[:2] == Version(wanted).release[:2]
    return pytest.mark.skipif(not there, reason=f"Helion {THERE} is installed, not {wanted}")


def guard_names(kernel: Any) -> list[str]:
    """The guards about Helion, without those about torch.distributed."""
    found = compat.compiled(kernel, ROW.fresh())
    assert found is not None
    return [guard.name for guard in found.guards if guard.name not in ("_world", "_default_pg")]


@only("1.4")
def test_a_reset_of_1_4_shows_by_a_mark_that_is_gone(kernel: Any) -> None:
    kernel(*ROW.fresh())
    assert guard_names(kernel) == ["_run", "tzero"]
    assert "tzero" in kernel._dispatch_cache
    compat.forget_epoch(kernel)
    assert "tzero" not in kernel._dispatch_cache


@only("1.5")
def test_1_5_counts_resets_and_specializations(kernel: Any) -> None:
    kernel(*ROW.fresh())
    assert guard_names(kernel) == ["_run", "_reset_generation", "_specialization_generation"]
    assert "tzero" not in kernel._dispatch_cache


def test_the_version_that_is_installed_is_one_of_these() -> None:
    assert THERE.release[:2] in ((1, 4), (1, 5)), f"read {compat.__file__} for {THERE}"


def test_nothing_is_compiled_before_the_first_call(kernel: Any) -> None:
    assert compat.compiled(kernel, ROW.fresh()) is None
    kernel(*ROW.fresh())
    found = compat.compiled(kernel, ROW.fresh())
    assert found is not None and found.numbers_by_type and not found.obstacle
    assert compat.LAUNCHER in found.run.__code__.co_varnames
    torch.testing.assert_close(found.run(*ROW.fresh()), ROW.expected())


def test_each_guard_of_helions_holds_until_what_it_watches_changes(kernel: Any) -> None:
    kernel(*ROW.fresh())
    found = compat.compiled(kernel, ROW.fresh())
    assert found is not None and all(guard.holds() for guard in found.guards)
    run, *since = found.guards
    kernel.reset()
    assert not all(guard.holds() for guard in since)
    kernel.bind(ROW.fresh())
    assert run.holds()  # the compiled function still exists; only Helion forgot it
    run.where["_run"] = None
    assert not run.holds()


def test_an_epoch_lasts_until_a_reset(kernel: Any) -> None:
    before = compat.epoch(kernel)
    kernel(*ROW.fresh())
    assert compat.epoch(kernel) == before
    kernel.reset()
    assert compat.epoch(kernel) != before


def test_a_number_that_helion_specializes_is_known_to_be_looked_at() -> None:
    kernel = again(kernels_calls.specialized_number.kernel)
    args = kernels_calls.specialized_number.fresh()
    kernel(*args)
    found = compat.compiled(kernel, args)
    assert found is not None and not found.numbers_by_type


@pytest.mark.parametrize("name", sorted(compat._KEEPING))
def test_a_launcher_that_keeps_memory_is_known_by_what_it_is_given(name: str, kernel: Any) -> None:
    kernel(*ROW.fresh())
    bound, world = kernel.bind(ROW.fresh()), {"kernel": None}
    exec(f"def run(x, y, *, _launcher=print): _launcher(kernel, (1,), x, y, {name}=())", world)
    bound._run = world["run"]
    found = compat.compiled(kernel, ROW.fresh())
    assert found is not None and "keeps memory" in found.obstacle


def test_constants_are_known_by_their_annotation() -> None:
    found = compat.signature(kernels_calls.constant.kernel, "constant")
    assert [p.annotation == "constant" for p in found.parameters.values()] == [False, True]


@pytest.mark.parametrize("value", [print, torch.add, object(), kernels_calls, 3])
def test_other_things_are_no_kernels_of_helions(value: object) -> None:
    assert not compat.is_kernel(value)
    assert compat.is_kernel(ROW.kernel)
