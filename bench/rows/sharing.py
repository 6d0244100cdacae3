"""Processes that need the same kernels and share a cache: each kernel is compiled once.

The processes have imported everything and made their requests before they are timed; the workers
that compile start within the measurement, in all contenders.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import subprocess
import sys
import tempfile
from typing import Any

from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]

KERNELS = 40
PROCESSES = 4


@functools.cache
def _ranks() -> list[subprocess.Popen[str]]:
    source = tempfile.TemporaryDirectory(prefix="tzero-bench-")
    atexit.register(source.cleanup)
    command = [sys.executable, "-m", "bench.rank", str(KERNELS), source.name]
    made = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TZERO_COMPILE_WORKERS": "2", "TZERO_CACHE": "1"},
        )
        for _ in range(PROCESSES)
    ]
    for process in made:
        atexit.register(process.kill)
        assert _line(process) == "ready"
    return made


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def _together() -> Case:
    folder = tempfile.TemporaryDirectory(prefix="tzero-bench-")
    atexit.register(folder.cleanup)
    turns = itertools.count()

    def compile_by(count: int) -> None:
        ranks = _ranks()[:count]
        cache = f"{folder.name}/{next(turns)}"
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write(f"{cache}\n")
            process.stdin.flush()
        compiled = [int(_line(process)) for process in ranks]
        assert sum(compiled) == KERNELS, f"{compiled} compiles of {KERNELS} kernels"

    contenders: dict[str, Any] = {
        "four": functools.partial(compile_by, PROCESSES),
        "one": functools.partial(compile_by, 1),
    }
    return Case(contenders, lambda: compile_by(PROCESSES), calls=1, rounds=3)


ROWS = (
    Row(
        *("compile.shared.4x40", "4 processes compile 40 kernels, cold shared cache", _together),
        subject="four",
        baseline="one",
        target=Target("ratio", 1.25),
        interpreted=False,
        seconds=90.0,
    ),
)
