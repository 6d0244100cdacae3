"""Backends compile into a cache of the test's own, so that each compiles what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Before the first import of Triton.
    os.environ.setdefault("TZERO_CPU", "1")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test finds what another has compiled, nor what is in the user's cache."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TZERO_CACHE_DIR", str(folder))
    yield
