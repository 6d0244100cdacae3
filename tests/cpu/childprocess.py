"""Runs programs in a process of their own, and finds marked lines of source files.

Enters: a program's text and environment variables. Leaves: its output. For tests about processes,
caches and settings that are read once.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import warm


def run_program(
    folder: Path, source: str, *, check: bool = True, fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Write ``source`` into ``folder`` and run it there, with Triton's cache in that folder.

    ``fresh`` is for programs about the import of Triton or tzero, which others find imported.
    """
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    variables["TRITON_CACHE_DIR"] = str(folder / "triton_cache")
    variables.update(environment)
    run = functools.partial(subprocess.run, capture_output=True, text=True) if fresh else warm.run
    done = run([sys.executable, str(program)], cwd=folder, env=variables, timeout=120)
    if check:
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def line_of(file: str | Path, marker: str) -> int:
    """The number of the one line of ``file`` that ends with the comment ``# <marker>``."""
    lines = Path(file).read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    assert len(found) == 1, f"{marker!r} marks lines {found} of {file}"
    return found[0]
