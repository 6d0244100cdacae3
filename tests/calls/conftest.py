"""Fixtures: native code makes the calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tzero import settings


@pytest.fixture
def native_calls() -> Iterator[None]:
    """Calls are made natively; in verify mode native code makes none."""
    from tzero.calls.native import NativeKernel

    if NativeKernel.unavailable:
        pytest.skip(f"native calls: {NativeKernel.unavailable}")
    with settings.override(verify=False, tier=2):
        yield
