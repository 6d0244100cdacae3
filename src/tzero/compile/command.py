"""Compilers that are programs: run, watched, and ended with the compile they belong to.

Enters: a command. Leaves: what it said and how it ended. A command ends at its compile's deadline,
when its caller is interrupted, and when the process ends, with whatever it started itself. It must
not know what the command is. A backend that starts compilers in its own way has none of this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tzero.compile.worker import inside
from tzero.errors import CompileTimeout

__all__ = ["deadline", "end_all", "forget", "run"]

_limits = threading.local()  # of a thread: which kernel it compiles, how long, and until when
# Protects `_running`. It is held while a command starts, which may have done much before the start
# returns: whoever ends all of them is not to miss it.
_change = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()


@contextmanager
def deadline(kernel: str, seconds: float) -> Iterator[None]:
    """Give the commands that this thread runs in the block so long together; 0: as they like.

    >>> with deadline("add", 600):
    ...     run(["true"]).returncode
    0
    """
    before = getattr(_limits, "held", None)
    _limits.held = (kernel, seconds, time.monotonic() + seconds) if seconds else None
    try:
        yield
    finally:
        _limits.held = before


def run(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. How it ended is for the caller to look at; `CompileTimeout` where
    it was not let.

    >>> run(["echo", "hello"]).stdout
    b'hello\\n'
    """
    held = getattr(_limits, "held", None)
    with _change:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A worker's commands belong to the worker's group, and end with it.
            start_new_session=not inside(),
        )
        _running.add(process)
    with process:
        try:
            left = None if held is None else max(0.0, held[2] - time.monotonic())
            out, err = process.communicate(stdin, timeout=left)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired) and held is not None:
                raise CompileTimeout(kernel=held[0], seconds=held[1]) from None
            raise
        finally:
            with _change:
                _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def end_all() -> None:
    """End every command that this process runs.

    >>> end_all()
    """
    with _change:
        left = list(_running)
    for process in left:
        _end(process)


def forget() -> None:
    """In a forked child: leave the parent's commands to the parent.

    >>> forget()
    """
    global _change, _running
    _change, _running = threading.Lock(), set()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    try:
        if inside():
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was quicker
