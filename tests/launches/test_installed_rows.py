"""Every row with Triton's own kernels while `tzero.install` is in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import triton

import tzero
from tests.launches.row import Row
from tests.launches.rows import ROWS
from tests.rows import by_row
from tests.tiers import Make, can_launch


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes one of Triton's own kernels; `warm` demands that its launches are native."""
    can_launch(2)
    tzero.install()
    try:
        yield _made
    finally:
        tzero.uninstall()


def _made(function: Any, **options: Any) -> Any:
    return function if isinstance(function, triton.JITFunction) else triton.jit(function, **options)


@by_row(ROWS)
def test_an_installed_launch_is_what_triton_would_have_launched(row: Row, make, device) -> None:
    row.run(make, device)
