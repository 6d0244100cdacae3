"""Run compilers that are separate programs, and kill them when their compile ends.

Enters: a command line. Leaves: its output and exit code. A command is killed, with everything it
started, at the deadline of its compile, when its caller is interrupted, and when the process exits.
It must not know what the command is. A backend that starts compilers without `run` gets none of
this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tzero import locks
from tzero.compile.worker import inside
from tzero.errors import CompileTimeout

__all__ = ["deadline", "end_all", "forget", "run"]

_thread = threading.local()  # .limit: (kernel, seconds, end on the monotonic clock) or None
# Protects `_running`. It is held while a command starts: a command may already do work before Popen
# returns, and `end_all` must not miss it.
_lock = locks.lock()
_running: set[subprocess.Popen[bytes]] = set()


@contextmanager
def deadline(kernel: str, seconds: float) -> Iterator[None]:
    """Limit the total time of the commands that this thread runs in the block; 0: no limit.

    >>> with deadline("add", 600):
    ...     run(["true"]).returncode
    0
    """
    before = getattr(_thread, "limit", None)
    _thread.limit = (kernel, seconds, time.monotonic() + seconds) if seconds else None
    try:
        yield
    finally:
        _thread.limit = before


def run(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; the caller checks the exit code. Raises `CompileTimeout` at the
    deadline.

    >>> run(["echo", "hello"]).stdout
    b'hello\\n'
    """
    limit = getattr(_thread, "limit", None)
    with _lock:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A worker's commands stay in the worker's process group, and are killed with it.
            start_new_session=not inside(),
        )
        _running.add(process)
    with process:
        try:
            left = None if limit is None else max(0.0, limit[2] - time.monotonic())
            out, err = process.communicate(stdin, timeout=left)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired) and limit is not None:
                raise CompileTimeout(kernel=limit[0], seconds=limit[1]) from None
            raise
        finally:
            with _lock:
                _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def end_all() -> None:
    """Kill every command that this process runs.

    ::

        end_all()  # at exit
    """
    with _lock:
        left = list(_running)
    for process in left:
        _kill(process)


def forget() -> None:
    """In a forked child: drop the parent's commands without killing them.

    ::

        os.register_at_fork(after_in_child=forget)
    """
    _running.clear()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    try:
        if inside():
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself
