"""Candidates timed in a process of their own: one that crashes or hangs takes only that with it.

::

    Isolated ── parcel: function, arguments ──────► child ── Trial
        │ ───── question: reference, or config ───►   │
        │ ◄──── reply: problem, or outcome ────────   │
        └ no reply in time: killed; gone: how it ended; the next question starts a new child

Enters: a host function, arguments, and configs one after the other. Leaves: an `Outcome` for each,
as `tzero.tune.trial` does in this process. It must not know how a candidate is tried.

An `Isolated` is used from one thread at a time.
"""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any, NamedTuple

from tzero.arguments.host import Host
from tzero.compile.pool import START_LIMIT, how_it_ended
from tzero.config import Config
from tzero.errors import TzeroError
from tzero.tune.child import Ask, Refer, Reply, world
from tzero.tune.copying import copies
from tzero.tune.records import Outcome
from tzero.tune.transfer import Parcel, packed, unsendable
from tzero.tune.trial import Called, ReferenceFailed, as_written

__all__ = ["Isolated"]

LIMIT = 60.0
"""Seconds that a candidate may take beside what timing it may: compiling, the first call."""

_GLANCE = 0.5  # seconds after which it is asked whether a silent child is still there
_PATIENCE = 2.0  # seconds that a child gets for ending by itself

_CODE = "import sys; sys.path[:] = {path!r}; from tzero.tune.child import main; main(*{given!r})"


class Isolated:
    """Times candidates in a process of its own; one that crashes or hangs takes only that process
    with it.

    ::

        with Isolated(add.host, (x, y), reference=Config(BLOCK=64)) as bench:
            bench.outcome(Config(BLOCK=128), budget=0.5, best=None)

    The arguments are sent as they are when it is made, which raises `InvalidArgument` where they or
    the function cannot be sent.
    """

    def __init__(
        self,
        host: Host[Any],
        args: tuple[Any, ...],
        *,
        reference: Config,
        called: Called = as_written,
        limit: float = LIMIT,
    ) -> None:
        self._name, self._limit, self._args = host.name, limit, args
        self._parcel = packed(host, args, called)
        self._child: _Child | None = None
        self._end: weakref.finalize[Any, Any] | None = None  # of the child
        self._closed = weakref.finalize(self, os.close, self._parcel.descriptor)
        self._refer(reference)

    @property
    def pid(self) -> int | None:
        """The process that is there now, if one is."""
        return None if self._child is None else self._child.process.pid

    def set_reference(self, config: Config) -> None:
        """Compare with this config from now on; one that is the reference already is not run
        again."""
        if config != self._reference:
            self._refer(config)

    def _refer(self, config: Config) -> None:
        self._reference = config
        self._problem = ""  # of the reference
        self._referred = False  # whether the child that is there has run it

    def spare(self) -> Any:
        """Copies of the arguments."""
        return copies(self._args)

    def reference_problem(self) -> str:
        """Why the reference does not run; nothing where it does. Each process runs it once."""
        if not self._problem and (self._child is None or not self._referred):
            value = self._asked(Refer(self._reference), self._limit)
            assert isinstance(value, str)
            self._problem, self._referred = value, True
        return self._problem

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        """What timing a config comes to. `ReferenceFailed` where there is nothing to compare its
        results with."""
        problem = self.reference_problem()
        if problem and config != self._reference:
            raise ReferenceFailed(self._reference, problem)
        if problem:
            return Outcome(problem=problem)
        value = self._asked(Ask(config, budget, best), budget + self._limit)
        return value if isinstance(value, Outcome) else Outcome(problem=value)

    def close(self) -> None:
        """End the process."""
        self._bury()
        self._closed()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _asked(self, question: Refer | Ask, seconds: float) -> str | Outcome:
        """The answer to a question, or the problem because of which there is none."""
        child = self._started()
        try:
            reply = child.answer(question, seconds)
        except TimeoutError:
            self._bury(kill=True)
            return f"it hung: no answer within {seconds:g} s"
        except (EOFError, OSError):
            return f"it crashed: {self._bury()}"
        except BaseException:  # Ctrl-C: what the child answers is for nobody
            self._bury(kill=True)
            raise
        if reply.last:
            self._bury()
        return reply.value

    def _started(self) -> _Child:
        if self._child is not None:
            return self._child
        if not self._closed.alive:
            raise ValueError(f"{self._name}: it was closed; make another Isolated")
        self._child = child = _Child.start(self._parcel)
        self._end = weakref.finalize(self, _end, child, os.getpid())
        self._referred = False
        try:
            child.pipe.send(world())
            problem = child.reply(START_LIMIT).value
        except TimeoutError:
            self._bury(kill=True)
            problem = f"a process for it did not start within {START_LIMIT:g} s"
        except (EOFError, OSError):
            problem = f"a process for it did not start: {self._bury()}"
        except BaseException:
            self._bury(kill=True)
            raise
        if problem:
            self._bury()
            raise unsendable(self._name, str(problem))
        return child

    def _bury(self, *, kill: bool = False) -> str:
        """Remove all that is left of the child; how it ended."""
        child, self._child = self._child, None
        if child is None:
            return ""
        assert self._end is not None
        self._end.detach()
        return child.end(0.0 if kill else _PATIENCE)


class _Child(NamedTuple):
    """A process, and what it is talked to by."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    lifeline: int

    @classmethod
    def start(cls, parcel: Parcel) -> _Child:
        """A new process that will have read the parcel when it says its first word."""
        mine, its = Pipe()
        end, lifeline = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, end)
            stack.enter_context(its)
            given = (os.getpid(), its.fileno(), end, *parcel)
            code = _CODE.format(path=sys.path, given=given)
            process = subprocess.Popen(
                [*_python(), "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(), end, parcel.descriptor),
                process_group=0,  # so that Ctrl-C does not reach it, and all that it starts ends
            )
            return cls(process, mine, lifeline)

    def answer(self, question: Refer | Ask, seconds: float) -> Reply:
        """The answer to a question; TimeoutError, EOFError or OSError where there is none."""
        self.pipe.send(question)
        return self.reply(seconds)

    def reply(self, seconds: float) -> Reply:
        """What it says next."""
        end = time.monotonic() + seconds
        while not self.pipe.poll(max(0.0, min(_GLANCE, end - time.monotonic()))):
            # Someone who was forked may have the other end of the pipe, too: then there is no EOF.
            if self._is_gone() and not self.pipe.poll(0):
                raise EOFError
            if time.monotonic() >= end:
                raise TimeoutError
        reply: Reply = self.pipe.recv()
        return reply

    def end(self, patience: float) -> str:
        """End it, and all that it started: by itself, in so many seconds; how it ended."""
        self.pipe.close()
        limit = time.monotonic() + patience
        while not self._is_gone() and time.monotonic() < limit:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):  # nothing is left of its group
            # Its number is not given away before it is waited for.
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        os.close(self.lifeline)
        return how_it_ended(code)

    def _is_gone(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None


def _end(child: _Child, owner: int) -> None:
    """End a child whose `Isolated` nobody closed; a process that was forked since has none."""
    if os.getpid() == owner:
        child.end(0.0)


def _python() -> Sequence[str]:
    """The command that starts a Python like this one."""
    executable = multiprocessing.spawn.get_executable()
    if not executable:
        raise TzeroError("Python does not say where it is (sys.executable), so none can be started")
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(executable), *flags]
