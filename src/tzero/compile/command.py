"""Run compilers that are separate programs, and kill them when their compile ends.

Enters: a command line. Leaves: its output and exit code. A command is killed, with everything it
started, at the deadline of its compile, when its caller is interrupted, and when the process exits.
It must not know what the command is. A backend that starts compilers without `run` gets none of
this.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tzero import locks, processes
from tzero.compile.worker import inside
from tzero.errors import CompileFailed, CompileTimeout

__all__ = ["deadline", "end_all", "forget", "run"]

QUESTION_LIMIT = 60.0
"""Seconds for a command outside of any compile, such as a question for a compiler's version."""


class _Thread(threading.local):
    """`limit`: kernel, seconds, and end on the monotonic clock; None: no limit. `blocks` counts the
    open blocks of `deadline`."""

    limit: tuple[str, float, float] | None = None
    blocks = 0


_thread = _Thread()
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
    before = _thread.limit
    _thread.limit = (kernel, seconds, time.monotonic() + seconds) if seconds else None
    _thread.blocks += 1
    try:
        yield
    finally:
        _thread.limit = before
        _thread.blocks -= 1


def run(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; the caller checks the exit code. Raises `CompileTimeout` at the
    deadline. Of megabytes of output the beginning and the end are returned.

    >>> run(["echo", "hello"]).stdout
    b'hello\\n'
    """
    with _lock:
        # A worker's commands stay in the worker's process group, and are killed with it.
        running = processes.start(command, cwd=cwd, env=env, new_session=not inside())
        process = running.process
        _running.add(process)
    try:
        with process:
            try:
                out, err = processes.communicate(process, stdin, _seconds_left())
            except BaseException as error:
                _kill(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise _too_late(command) from None
                raise
            finally:
                with _lock:
                    _running.discard(process)
        return subprocess.CompletedProcess(command, running.code(), out, err)
    finally:
        running.close()


def _seconds_left() -> float | None:
    if not _thread.blocks:
        return QUESTION_LIMIT
    return None if _thread.limit is None else max(0.0, _thread.limit[2] - time.monotonic())


def _too_late(command: Sequence[str]) -> CompileTimeout | CompileFailed:
    if _thread.limit is not None:
        return CompileTimeout(kernel=_thread.limit[0], seconds=_thread.limit[1])
    name, line = os.path.basename(command[0]), shlex.join(command)
    problem = f"`{line}` did not end within {QUESTION_LIMIT:g} s and was stopped"
    return CompileFailed(kernel=name, problem=problem, trace="")


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
