"""``TZERO_TRACE``: the stages of all calls, measured from the first kernel to the exit.

Enters: the setting ``trace``. Leaves: at exit, a trace in the file that it names, and a table on
stderr. It must not know what is measured, which is in `tzero.measure`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from tzero import locks, measure, settings

__all__ = ["begin"]

_lock = locks.lock()  # held while measuring begins
_begun: list[measure.Record] = []  # at most one


def begin() -> None:
    """Begin to measure, if the settings say so and it has not begun.

    >>> begin()
    """
    path = settings.current().trace
    if path is not None and not _begun:
        with _lock:
            if not _begun:
                stack = contextlib.ExitStack()
                _begun.append(stack.enter_context(measure.recording()))
                atexit.register(_end, stack, _begun[0], os.path.abspath(path), os.getpid())


def _end(stack: contextlib.ExitStack, record: measure.Record, path: str, owner: int) -> None:
    stack.close()
    if os.getpid() != owner:
        return  # a fork: its parent writes the file
    try:
        record.write_trace(path)
    except OSError as error:
        print(f"tzero: the trace was not written (TZERO_TRACE): {error}", file=sys.stderr)
    print(record, file=sys.stderr)
