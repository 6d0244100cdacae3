"""Runs a Python program in this process, as ``python`` would.

Enters: a script or the name of a module, and its arguments. Leaves: what the program does, and the
status that it ends with. It must not know why it is run here.

Nothing is restored when the program's main code has ended: its threads and its functions for the
end of the process find `sys.argv`, `sys.path` and ``__main__`` as under ``python``. So a process
runs one program.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

__all__ = ["run", "show_failure", "status_of"]

_run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` calls."""

INTERRUPTED = 130
"""The status of a program that SIGINT has ended, as shells report it."""


def run(target: str, arguments: Sequence[str], *, is_module: bool = False) -> None:
    """Run a script, or a module by its name, as ``__main__``; what it raises is raised here. From
    then on the process is the program's.

    ::

        run("train.py", ["--steps", "3"])
        run("package.train", ["--steps", "3"], is_module=True)
    """
    main = _fresh_main()
    if is_module:
        sys.argv = ["-m", *arguments]  # until the module is found
        _lead_path(None if sys.flags.safe_path else os.getcwd())
        _run_module(target)
        return
    sys.argv = [target, *arguments]
    place = os.path.join(os.getcwd(), target)  # as `python`, which keeps ".."
    if pkgutil.get_importer(place) is not None:  # a directory or an archive with a __main__.py
        _lead_path(place)
        _run_module("__main__", False)
        return
    _lead_path(None if sys.flags.safe_path else str(Path(place).resolve().parent))
    code, loader = _code_of(place)
    vars(main).update(__file__=place, __cached__=None, __loader__=loader)
    exec(code, vars(main))


def _fresh_main() -> ModuleType:
    """A module ``__main__`` as ``python`` begins with."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    return main


def _lead_path(first: str | None) -> None:
    """Put a folder where ``python`` has put that of what it runs, which is tzero; None: none."""
    found = [] if first is None else [first]
    sys.path[: 0 if sys.flags.safe_path else 1] = found


def _code_of(place: str) -> tuple[CodeType, object]:
    with io.open_code(place) as file:
        compiled = pkgutil.read_code(file)
    if compiled is not None:
        return compiled, SourcelessFileLoader("__main__", place)
    with io.open_code(place) as file:
        text = file.read()
    return compile(text, place, "exec", dont_inherit=True), SourceFileLoader("__main__", place)


def status_of(
    target: str, arguments: Sequence[str], *, is_module: bool = False, waits: bool = True
) -> int:
    """Run a program to its end, and return its status. What it raises is shown on stderr by
    `show_failure`. It `waits` for threads too, as the interpreter does at its end; then the program
    can start no more work in pools.

    ::

        status_of("train.py", ["--steps", "3"])
    """
    status = 0
    try:
        run(target, arguments, is_module=is_module)
    except SystemExit as left:
        status = _status_in(left)
    except KeyboardInterrupt as error:
        return show_failure(error, INTERRUPTED)
    except BaseException as error:
        status = show_failure(error)
    if waits:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except KeyboardInterrupt as error:
            return show_failure(error, INTERRUPTED)
    return status


def _status_in(left: SystemExit) -> int:
    if left.code is None or isinstance(left.code, int):
        return int(left.code or 0) & 0xFF
    print(left.code, file=sys.stderr)
    return 1


def show_failure(error: BaseException, status: int = 1) -> int:
    """Show what a program has raised as the interpreter does, by `sys.excepthook`, which may be the
    program's own. The functions of tzero that called the program are left out. Returns `status`, or
    that with which the hook ends the program.

    ::

        show_failure(error)
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_around(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as left:
        return _status_in(left)
    except BaseException as second:
        second.__traceback__ = second.__traceback__ and second.__traceback__.tb_next
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return status


_PACKAGE = str(Path(__file__).parents[1])


def _is_around(file: str) -> bool:
    """Whether code of a file runs programs, and is none."""
    runs = file.startswith(("<frozen ", f"{_PACKAGE}/"))
    return runs or file in (runpy.__file__, importlib.__file__)
