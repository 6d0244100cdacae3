"""Skips the tests with a reason if Helion is not installed."""

from __future__ import annotations

import builtins
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before Helion reads it; otherwise a kernel without a config would be tuned for minutes.
os.environ.setdefault("HELION_AUTOTUNE_EFFORT", "none")


class Missing(pytest.Module):
    """A test file that is not imported, because it needs Helion."""

    def collect(self) -> Iterator[pytest.Item]:
        reason = "Helion is not installed; pip install 'tzero-runtime[bench]' brings it"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Missing | None:
    if importlib.util.find_spec("helion") is not None:
        return None
    found: Missing = Missing.from_parent(parent, path=module_path)
    return found


@pytest.fixture(autouse=True)
def on_the_cpu() -> None:
    """Use the CPU backend, also on a machine that has a GPU."""
    import torch

    from tzero import settings

    if torch.cuda.is_available() and not settings.current().cpu:
        pytest.skip("needs TZERO_CPU=1 beside a GPU")


@pytest.fixture(autouse=True)
def _without_the_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the builtin ``_`` that doctests leave, which Helion would take for a host variable."""
    monkeypatch.delattr(builtins, "_", raising=False)
