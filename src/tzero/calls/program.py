"""Runs a Python program in this process, as ``python`` would.

Enters: a script or the name of a module, and its arguments. Leaves: what the program does, and the
status that it ends with. It must not know why it is run here.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

__all__ = ["run", "show_failure", "status_of"]

INTERRUPTED = 130
"""The status of a program that SIGINT has ended, as shells report it."""


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


def status_of(target: str, arguments: Sequence[str], *, is_module: bool = False) -> int:
    """Run a program to its end, threads included, and return its status. What it raises is shown on
    stderr by `show_failure`.

    ::

        status_of("train.py", ["--steps", "3"])
    """
    status = 0
    try:
        run(target, arguments, is_module=is_module)
    except SystemExit as left:
        status = _status_in(left)
    except KeyboardInterrupt as error:
        show_failure(error)
        return INTERRUPTED
    except BaseException as error:
        show_failure(error)
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    return status


def _status_in(left: SystemExit) -> int:
    if left.code is None or isinstance(left.code, int):
        return int(left.code or 0) & 0xFF
    print(left.code, file=sys.stderr)
    return 1


def show_failure(error: BaseException) -> None:
    """Show what a program has raised as the interpreter does, by `sys.excepthook`, which may be the
    program's own. The functions of tzero that called the program are left out.

    ::

        show_failure(error)
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_around(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


_PACKAGE = str(Path(__file__).parents[1])


def _is_around(file: str) -> bool:
    """Whether code of a file runs programs, and is none."""
    runs = file.startswith(("<frozen ", f"{_PACKAGE}/"))
    return runs or file in (runpy.__file__, importlib.__file__)


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
