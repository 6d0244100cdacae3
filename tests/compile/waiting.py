"""Wait for other processes, and start Python programs that import what the tests import."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

HANG = 60.0  # seconds after which a wait is given up, so that a failing test does not hang

# What PYTHONPATH must be for a program to import the same packages as this process.
PYTHONPATH = os.pathsep.join(os.path.abspath(each) for each in sys.path)


def until(happened: Callable[[], object], what: str) -> None:
    """Poll until ``happened`` is true; fail if it never is."""
    end = time.monotonic() + HANG
    while not happened():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def paused_at(path: Path) -> int:
    """Wait until a backend pauses at this file (see `backends.pause_at`); return its process id."""
    until(path.exists, f"pausing at {path.name}")
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    """Whether a process has ended. A zombie child of this process counts as alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state[0] == "Z" and int(state[1]) != os.getpid()
