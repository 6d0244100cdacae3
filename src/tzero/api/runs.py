"""One run of a program in a process of its own, for `tzero bench`.

::

    parent ── fork ──► child: streams, program, what is to be found out ── report, a file ──► parent
       └─ waits; copies stdin to the child if that is a pipe, so that later runs get it too

Enters: what a child does, and where its output goes. Leaves: its status, its report, and what it
wrote to stderr. It must not know what is measured.

Children are forked, so that torch and Triton are imported once. The parent must not have started
threads, nor CUDA.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn

__all__ = ["Ended", "Input", "run"]

PATIENCE = 5.0
"""Seconds that an interrupted program has to end, before it is terminated, and then killed."""

_PIECE = 1 << 16

Tell = Callable[[Any], None]
"""Writes what a child has found out, as JSON; what it has told before is replaced."""

Work = Callable[[Tell], int]
"""What a child does: returns its status, or an exception ends it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    >>> Ended(0, {"seconds": 1.5}, "").report["seconds"]
    1.5
    """

    status: int
    """As shells report it: 128 and the signal, if one has ended it."""
    report: Any
    """None if the program has ended its process by itself."""
    errors: str
    """What it wrote to stderr, if that was not shown."""


class Input:
    """stdin, for several runs: a pipe is copied while the first run reads it, and a terminal is for
    the first run alone, since the questions of later ones are not shown.

    ::

        with Input() as given:
            run(work, given)
    """

    def __init__(self) -> None:
        self._copy: IO[bytes] | None = None
        self._runs = 0
        self.is_terminal = os.isatty(0)
        try:
            kind = os.fstat(0).st_mode
        except OSError:  # closed
            self._is_pipe = self._is_file = False
            return
        self._is_pipe = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        self._is_file = stat.S_ISREG(kind)
        self._start = os.lseek(0, 0, os.SEEK_CUR) if self._is_file else 0

    def __enter__(self) -> Input:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._copy is not None:
            self._copy.close()

    def for_child(self) -> tuple[int | None, int | None]:
        """What the next child gets as stdin, None for the parent's; and the end of a pipe into
        which the parent's is to be copied, if it is one that nobody has read yet."""
        self._runs += 1
        if self.is_terminal and self._runs > 1:
            return os.open(os.devnull, os.O_RDONLY), None
        if self._is_file:
            os.lseek(0, self._start, os.SEEK_SET)
            return None, None
        if not self._is_pipe:
            return None, None
        if self._copy is None:
            self._copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
            return os.pipe()
        self._copy.seek(0)
        return os.dup(self._copy.fileno()), None

    def copy(self, into: int) -> bool:
        """Copy what can be read now; whether more may come."""
        piece = os.read(0, _PIECE)
        if piece and self._copy is not None:
            self._copy.write(piece)
            self._copy.flush()
            with suppress(BrokenPipeError):  # the child does not read it
                _write_all(into, piece)
        return bool(piece)


def _write_all(into: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(into, piece) :]


def run(work: Work, given: Input, *, output: int | None) -> Ended:
    """Do some work in a forked child. `output` is the file descriptor that gets its stdout; without
    one, stdout is dropped, and stderr is returned.

    ::

        run(work, Input(), output=1)
    """
    with ExitStack() as stack:
        report = stack.enter_context(tempfile.TemporaryFile())
        errors = None if output is not None else stack.enter_context(tempfile.TemporaryFile())
        stdin, into = given.for_child()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            if into is not None:
                os.close(into)  # else the child would never see the end of its input
            _in_child(work, stdin, output, None if errors is None else errors.fileno(), report)
        if stdin is not None:
            os.close(stdin)
        try:
            status = _wait(pid, given, into)
        except KeyboardInterrupt:
            _end(pid)
            raise
        return Ended(status, _read(report), "" if errors is None else _text(errors))


def _in_child(
    work: Work, stdin: int | None, output: int | None, errors: int | None, report: IO[bytes]
) -> NoReturn:
    """Be the child, and end as the interpreter does, with the program's functions for its end."""
    own = os.getpid()
    if stdin is not None:
        os.dup2(stdin, 0)
        os.close(stdin)
    if errors is not None:
        os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if output is None else output, 1)
    told = os.dup(report.fileno())  # also after `report` is closed, at the end of the process

    def tell(found: Any) -> None:
        if os.getpid() == own:  # not a process that the program has forked
            text = json.dumps(found).encode()
            os.ftruncate(told, 0)
            os.pwrite(told, text, 0)

    sys.exit(work(tell))


def _wait(pid: int, given: Input, into: int | None) -> int:
    """Wait for a child, and copy stdin meanwhile if it is to be copied; its status."""
    ended = os.pidfd_open(pid)
    try:
        while into is not None:
            ready, _, _ = select.select([0, ended], [], [])
            if ended in ready or not given.copy(into):
                os.close(into)
                into = None
        return _status(os.waitpid(pid, 0)[1])
    finally:
        os.close(ended)
        if into is not None:
            os.close(into)


def _status(waited: int) -> int:
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


def _end(pid: int) -> None:
    """Wait for a child that was interrupted too, and end it if it goes on."""
    ended = os.pidfd_open(pid)
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if select.select([ended], [], [], PATIENCE)[0]:
                break
            os.kill(pid, number)
        os.waitpid(pid, 0)
    finally:
        os.close(ended)


def _read(report: IO[bytes]) -> Any:
    report.seek(0)
    text = report.read()
    return json.loads(text) if text else None


def _text(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")
