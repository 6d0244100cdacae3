"""Runs a Python program in this process, as ``python`` would.

Enters: a script or the name of a module, and its arguments. Leaves: what the program does, and the
status that it ends with. It must not know why it is run here.
"""

from __future__ import annotations

import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

__all__ = ["run", "status_of"]

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
    stderr, as the interpreter does, without the functions that run it.

    ::

        status_of("train.py", ["--steps", "3"])
    """
    status = 0
    try:
        run(target, arguments, is_module=is_module)
    except SystemExit as left:
        status = _status_in(left)
    except KeyboardInterrupt as error:
        _show(error)
        return INTERRUPTED
    except BaseException as error:
        _show(error)
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


def _show(error: BaseException) -> None:
    trace: TracebackType | None = error.__traceback__
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


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
