"""Fixture: Triton's autotuners, of which these projects have many, time each config briefly."""

from __future__ import annotations

import pytest

from tests.briefly import autotune_briefly


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    autotune_briefly(monkeypatch)
