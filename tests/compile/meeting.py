"""Waiting for what other processes do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0


def until(happened: Callable[[], object], what: str) -> None:
    """Return as soon as it has happened; long before the patience is over, unless it never does."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def met(path: Path) -> int:
    """Wait for the one who makes a file and waits until it is gone; its process."""
    until(path.exists, f"the meeting at {path.name}")
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as there, if it is ours to bury."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state[0] == "Z" and int(state[1]) != os.getpid()
