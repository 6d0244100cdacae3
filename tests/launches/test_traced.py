"""``TZERO_TRACE`` measures a program from its first kernel to its exit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests import warm

PROGRAM = """
import torch
import tzero

@tzero.kernel
def doubled(x):
    return x * 2

for _ in range(3):
    doubled(torch.ones(4))
"""


def test_a_trace_and_a_table_are_written_at_exit(tmp_path: Path) -> None:
    program, trace = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(PROGRAM)
    variables = {**os.environ, "TZERO_TRACE": str(trace), "TZERO_CACHE_DIR": str(tmp_path / "c")}
    done = warm.run([sys.executable, str(program)], env=variables)
    assert done.returncode == 0, done.stderr
    assert "kernel" in done.stderr and "median µs" in done.stderr and "doubled" in done.stderr
    assert any(
        event.get("cat") == "doubled" for event in json.loads(trace.read_text())["traceEvents"]
    )


def test_a_trace_that_cannot_be_written_is_said_and_changes_no_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {**os.environ, "TZERO_TRACE": str(tmp_path / "no" / "trace.json")}
    done = warm.run([sys.executable, str(program)], env=variables)
    assert done.returncode == 0 and "the trace was not written" in done.stderr


def test_without_the_setting_nothing_is_measured(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "from tzero import measure\nassert measure.active() is None\n")
    done = warm.run([sys.executable, str(program)], env=dict(os.environ))
    assert done.returncode == 0 and "median" not in done.stderr
