"""Launches of compiled kernels and through heuristics, with Triton's functions and native ones.

Each guard of the native ones is also switched off, and its rows demanded to fail.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.launches import rows_installed
from tests.launches.mutable_native import mutable
from tests.launches.row import INSTALLED_GUARDS, Row
from tests.launches.test_mutations import in_a_child, kind_of
from tests.rows import by_row
from tests.tiers import can_launch
from tzero.adapters import triton_entries
from tzero.launches import beside

ROWS = rows_installed.ROWS
CLAIMS = [(guard, row) for row in ROWS for guard in row.guards]


@contextmanager
def native_everywhere(module: Any) -> Iterator[None]:
    """A build of the native module makes every launch."""
    beside.everywhere(module, lambda kernel: True)
    try:
        yield
    finally:
        beside.nowhere(module)


@by_row(ROWS)
def test_triton_does_so(row: Row, device: Any) -> None:
    row.run(device)


@by_row(ROWS)
def test_native_launches_do_so(row: Row, device: Any) -> None:
    can_launch(2)
    with native_everywhere(importlib.import_module("tzero._native")):
        row.run(device)


@pytest.mark.parametrize(
    ("guard", "row"), CLAIMS, ids=[f"{guard}-{row.name}" for guard, row in CLAIMS]
)
def test_a_row_fails_without_its_guard(guard: str, row: Row, device: Any) -> None:
    can_launch(2)
    module = mutable()
    if module is None:
        pytest.skip("the native module cannot be built a second time here")
    if guard.startswith("compiled"):
        if device.type == "cuda":
            pytest.skip("compiled kernels by themselves are native on the CPU only")
        if not triton_entries.compiled_is_known():
            pytest.skip("this Triton launches compiled kernels in another way")
    kind_of(module)  # configures it

    def run() -> None:
        with native_everywhere(module):
            row.run(device)

    assert in_a_child(run) == 0, "it fails with every guard in place"
    module.guards_off(frozenset({guard}))
    try:
        assert in_a_child(run) != 0, f"without the guard {guard!r} {row.name!r} passes"
    finally:
        module.guards_off(frozenset())


def test_every_guard_has_a_row() -> None:
    assert {guard for guard, _ in CLAIMS} == set(INSTALLED_GUARDS)
