"""Fixtures: both tiers that replay, and both ways to find what a call reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tiers import fixture
from tzero.adapters import python_frames
from tzero.plans.planner import Planner

tier = fixture(1, 2)
"""A tier whose calls are replayed."""


def follow_all(patch: pytest.MonkeyPatch) -> None:
    """Follow each recorded call, also where reading the source would do."""
    made: Callable[..., None] = Planner.__init__

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._follows = True

    patch.setattr(Planner, "__init__", make)


@pytest.fixture(params=["source", "path"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How tzero finds what a call reads: from the source, and by following it where that fails; or
    always by following it."""
    if request.param == "path":
        if not python_frames.is_supported():
            pytest.skip("frames cannot be read with this Python")
        follow_all(monkeypatch)
    return str(request.param)
