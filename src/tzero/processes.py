"""Run a program with a deadline, and keep a bounded part of its output.

Enters: a command line, and the seconds it may take. Leaves: its exit code, and the beginning and
the end of what it printed. It must not know what the program is for.

Output is cut while it is read, so that a program that prints without end does not fill the memory.
Exit codes are right also where the user's program ignores SIGCHLD or waits for all children itself:
then a process in between reports them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["KEPT", "Running", "communicate", "run", "start"]

KEPT = 256 << 10
"""Bytes of output that are kept of each stream: this many of its beginning, and of its end."""

_CHUNK = 64 << 10

_SHORT = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
_WAITS = (0.05, 0.2, 0.8)  # seconds between attempts while there is too little of something

# Runs a command, and writes its exit code, or the error of starting it, to a pipe.
_REPORTER = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
pipe = int(sys.argv[1])
os.set_inheritable(pipe, False)
child = os.fork()
if child == 0:
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        os.write(pipe, b"e%d" % error.errno)
    finally:
        os._exit(127)
status = os.waitpid(child, 0)[1]
os.write(pipe, b"c%d" % os.waitstatus_to_exitcode(status))
"""


@dataclass(slots=True)
class Running:
    """A program that runs, and the pipe of its exit code, if another process reports that.

    ::

        running = start(["cc", "--version"])
    """

    process: subprocess.Popen[bytes]
    report: int | None

    def code(self) -> int:
        """The exit code of a program that has ended; negative: the signal that ended it. Raises
        OSError if it could not be started."""
        if self.report is None:
            return int(self.process.returncode)
        said = os.read(self.report, 100)  # of a program that could not be started, both
        if said.startswith(b"e"):
            number = int(said[1:].partition(b"c")[0])
            raise OSError(number, os.strerror(number), self.process.args)
        return int(said[1:]) if said else -signal.SIGKILL

    def close(self) -> None:
        """Close the pipe."""
        if self.report is not None:
            os.close(self.report)
            self.report = None


def run(
    command: Sequence[str],
    *,
    seconds: float | None,
    merged: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without input. At the deadline it is killed with all it started, and
    ``subprocess.TimeoutExpired`` is raised. ``merged``: stdout has the errors, too.

    >>> run(["echo", "hello"], seconds=60).stdout
    b'hello\\n'
    """
    # In the process group of this process: a compile worker is killed with its group.
    running = start(command, merged=merged, new_session=False)
    try:
        with running.process:
            try:
                out, err = communicate(running.process, b"", seconds)
            except BaseException:
                for pid in [*_descendants(running.process.pid), running.process.pid]:
                    with contextlib.suppress(ProcessLookupError):  # it ended by itself
                        os.kill(pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, running.code(), out, err)
    finally:
        running.close()


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        with contextlib.suppress(OSError):  # it has ended
            if name.isdecimal():
                text = Path("/proc", name, "stat").read_text(errors="replace")
                parent = int(text.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, waiting = [], [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def start(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
    new_session: bool = True,
) -> Running:
    """Start a command. While there are too few file descriptors or processes, wait a little and try
    again.

    ::

        running = start(["cc", "-c", "add.c"], cwd=folder)
    """
    for wait in (*_WAITS, None):
        try:
            return _start(command, cwd, env, merged, new_session)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            if wait is None:
                error.add_note(
                    f"{command[0]} could not be started in {len(_WAITS) + 1} attempts. Close "
                    "files, or raise the limits of this process (`ulimit -n`, `ulimit -u`)."
                )
                raise
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _start(
    command: Sequence[str],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    merged: bool,
    new_session: bool,
) -> Running:
    reader = writer = None
    line = list(command)
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL and sys.executable:
        reader, writer = os.pipe()
        line = [sys.executable, "-I", "-S", "-c", _REPORTER, str(writer), *command]
    try:
        process = subprocess.Popen(
            line,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            start_new_session=new_session,
            pass_fds=() if writer is None else (writer,),
        )
    except BaseException:
        if reader is not None:
            os.close(reader)
        raise
    finally:
        if writer is not None:
            os.close(writer)
    return Running(process, reader)


def communicate(
    process: subprocess.Popen[bytes], stdin: bytes, seconds: float | None
) -> tuple[bytes, bytes]:
    """Send input and read output until the program ends; raises ``subprocess.TimeoutExpired`` at
    the deadline, and leaves the program running then.

    ::

        out, err = communicate(process, b"int x;", 600)
    """
    end = None if seconds is None else time.monotonic() + seconds
    kept = {stream: _Kept() for stream in (process.stdout, process.stderr) if stream is not None}
    left = memoryview(stdin)
    assert process.stdin is not None
    with selectors.PollSelector() as selector:  # unlike epoll it needs no file descriptor
        if left:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(_remaining(end, process, seconds)):
                ready: Any = key.fileobj
                if ready is process.stdin:
                    left = _write(process.stdin, left)
                    is_done = not left
                else:
                    data = os.read(key.fd, _CHUNK)
                    kept[ready].add(data)
                    is_done = not data
                if is_done:
                    selector.unregister(ready)
                    ready.close()
    process.wait(_remaining(end, process, seconds))
    outputs = [each.value() for each in kept.values()]
    return outputs[0], outputs[1] if len(outputs) > 1 else b""


def _remaining(
    end: float | None, process: subprocess.Popen[bytes], seconds: float | None
) -> float | None:
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise subprocess.TimeoutExpired(process.args, seconds or 0.0)
    return left


def _write(stream: IO[bytes], left: memoryview) -> memoryview:
    try:
        return left[os.write(stream.fileno(), left[: select.PIPE_BUF]) :]
    except BrokenPipeError:  # it reads no more
        return left[:0]


class _Kept:
    """The beginning and the end of a stream."""

    def __init__(self) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._cut = 0

    def add(self, data: bytes) -> None:
        room = KEPT - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * KEPT:
            self._shorten()

    def _shorten(self) -> None:
        surplus = max(0, len(self._tail) - KEPT)
        self._cut += surplus
        del self._tail[:surplus]

    def value(self) -> bytes:
        self._shorten()
        note = b"\n[%d bytes of output are not shown]\n" % self._cut if self._cut else b""
        return bytes(self._head + note + self._tail)
