"""Runs a Python program in this process, as ``python`` would.

Enters: a script or the name of a module, and its arguments. Leaves: what the program does. It must
not know why it is run here.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["run"]


def run(target: str, arguments: Sequence[str], *, is_module: bool = False) -> None:
    """Run a script, or a module by its name, as ``__main__``; what it raises is raised here.

    ::

        run("train.py", ["--steps", "3"])
        run("package.train", ["--steps", "3"], is_module=True)
    """
    first = str(Path.cwd()) if is_module else str(Path(target).resolve().parent)
    with _as_program([target, *arguments], first):
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")


@contextmanager
def _as_program(argv: list[str], first: str) -> Iterator[None]:
    """`sys.argv` and `sys.path` as a program finds them."""
    before, path = sys.argv, list(sys.path)
    sys.argv = argv
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
