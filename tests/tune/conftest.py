"""Fixtures of the tests that tune real kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.briefly import tune_briefly
from tzero.cache.disk import Disk
from tzero.tune import shipping
from tzero.tune.records import Memory


@pytest.fixture
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with nothing tuned and no shipped files; compiled kernels may come from the cache."""
    monkeypatch.setattr(Memory, "of", lambda settings: Memory(Disk(str(tmp_path / "tuned"))))
    monkeypatch.setattr(shipping, "_files", [])
    tune_briefly(monkeypatch)


tier = tiers.fixture(0, 1, 2, override=True)
