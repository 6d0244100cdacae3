"""Candidates timed in a process of their own, so that a crash or a hang ends only that process.

::

    Isolated ── parcel: function, arguments ──────► child ── Trial
        │ ───── question: reference, or config ───►   │
        │ ◄──── reply: problem, or outcome ────────   │
        └ no reply in time: the child is killed. The next question starts a new child.

Enters: a host function, arguments, and configs one after the other. Leaves: an `Outcome` for each,
as `tzero.tune.trial` gives it in this process. It must not know how a candidate is tried.

An `Isolated` is used from one thread at a time.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any, NamedTuple

from tzero.arguments.host import Host
from tzero.compile.pool import START_LIMIT, how_it_ended
from tzero.config import Config
from tzero.errors import TzeroError
from tzero.tune.child import ProcessState, Reply, SetReference, TimeConfig, process_state
from tzero.tune.copying import copies
from tzero.tune.failures import end_passes
from tzero.tune.judge import DEFAULT, Judge
from tzero.tune.outcome import Outcome
from tzero.tune.transfer import Parcel, packed, unsendable
from tzero.tune.trial import Called, ReferenceFailed, as_written

__all__ = ["Isolated"]

LIMIT = 60.0
"""Seconds that a candidate may take in addition to its timing budget: compiling, the first call."""

FIRST_LIMIT = 10.0
"""Seconds that a candidate gets whatever is left of the search's budget, until one has worked."""

LEAST_LIMIT = 2.0
"""Seconds that it gets after that."""

NICE = 10
"""The priority of a process in the background."""

_POLL = 0.1  # seconds between checks whether a silent child is still alive and wanted
_GRACE = 2.0  # seconds that a child gets to exit by itself

_CODE = "import sys; sys.path[:] = {path!r}; from tzero.tune.child import main; main(*{given!r})"


class Isolated:
    """Times candidates in a child process.

    ::

        with Isolated(add.host, (x, y), reference=Config(BLOCK=64)) as bench:
            bench.outcome(Config(BLOCK=128), budget=0.5, best=None)

    The contents of the arguments are those at construction, which raises `InvalidArgument` where
    the arguments or the function cannot be sent. `limit` is what a candidate may take in addition
    to its timing budget; `until` is when the search should end, by `time.monotonic`. In the
    background, for calls made in this state of the process, the arguments are not held, and other
    processes go first. `check` is called again and again while an answer is awaited; if it raises,
    the child is killed.
    """

    def __init__(
        self,
        host: Host[Any],
        args: tuple[Any, ...],
        *,
        reference: Config,
        called: Called = as_written,
        judge: Judge = DEFAULT,
        limit: float = LIMIT,
        until: float = math.inf,
        background: ProcessState | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._limit, self._check = host.name, limit, check
        self._args = args if background is None else None
        self._background = background
        self._until, self._one_worked = until, False
        self._parcel = packed(host, args, called, judge)
        self._child: _Child | None = None
        self._state: ProcessState | None = None  # to be sent to a child that was just started
        self._end: weakref.finalize[Any, Any] | None = None  # of the child
        self._closed = weakref.finalize(self, os.close, self._parcel.descriptor)
        self._use_reference(reference)

    @property
    def pid(self) -> int | None:
        """The id of the child process, if there is one."""
        return None if self._child is None else self._child.process.pid

    def set_reference(self, config: Config) -> None:
        """Compare with this config from now on. The current reference is not run again."""
        if config != self._reference:
            self._use_reference(config)

    def _use_reference(self, config: Config) -> None:
        self._reference = config
        self._failed: Outcome | None = None  # of the reference, where it does not run
        self._reference_ran = False  # whether the present child has run it

    def spare(self) -> Any:
        """Copies of the arguments; there are none in the background."""
        return copies(self._args)

    def reference_problem(self) -> str:
        """Why the reference does not run; empty where it does. Each process runs it once."""
        if self._failed is None and (self._child is None or not self._reference_ran):
            value = self._ask(SetReference(self._reference), self._limit)
            self._failed = value if isinstance(value, Outcome) else None
            self._reference_ran = True
        return "" if self._failed is None else self._failed.problem

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        """The outcome of timing a config; `ReferenceFailed` where the reference does not run."""
        problem = self.reference_problem()
        if problem and config != self._reference:
            raise ReferenceFailed(self._reference, problem)
        if self._failed is not None:
            return self._failed
        value = self._ask(TimeConfig(config, budget, best), budget + self._limit)
        assert isinstance(value, Outcome)
        return value

    def close(self) -> None:
        """End the process."""
        self._end_child(kill=self._state is not None)  # where it is still starting
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

    def _ask(self, question: SetReference | TimeConfig, seconds: float) -> str | Outcome:
        """The answer to a question, or the outcome of a config that does not answer."""
        child = self._started()
        wanted, seconds = seconds, self._limited(seconds)
        try:
            reply = child.answer(question, seconds, self._check)
        except TimeoutError:
            self._end_child(kill=True)
            why = "" if seconds == wanted else ", which is half of what was left of the budget"
            return Outcome(problem=f"it hung: no answer within {seconds:.3g} s{why}", passing=True)
        except (EOFError, OSError):
            code = self._end_child()
            return Outcome(problem=f"it crashed: {how_it_ended(code)}", passing=end_passes(code))
        except BaseException:  # Ctrl-C: nobody reads the answer any more
            self._end_child(kill=True)
            raise
        if reply.last:
            self._end_child()
        self._one_worked |= isinstance(reply.value, Outcome) and reply.value.usable
        return reply.value

    def _limited(self, seconds: float) -> float:
        """How long to wait for an answer: half of what is left of the search's budget, so that one
        candidate that hangs leaves time for others."""
        least = LEAST_LIMIT if self._one_worked else FIRST_LIMIT
        return min(seconds, max((self._until - time.monotonic()) / 2, least))

    def start(self) -> None:
        """Start the process, without waiting for it."""
        if self._child is not None:
            return
        if not self._closed.alive:
            raise ValueError(f"{self._name}: this Isolated is closed; make another one")
        self._child = child = _Child.start(self._parcel)
        if self._background is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which `_started` tells
                os.setpriority(os.PRIO_PROCESS, child.process.pid, NICE)
        self._end = weakref.finalize(self, _end, child, os.getpid())
        self._state, self._reference_ran = self._background or process_state(), False

    def _started(self) -> _Child:
        """The child, when it has read the parcel and the state of this process."""
        self.start()
        child, state = self._child, self._state
        assert child is not None
        if state is None:
            return child
        self._state = None
        try:
            child.pipe.send(state)
            problem = child.reply(START_LIMIT, self._check).value
        except TimeoutError:
            self._end_child(kill=True)
            problem = f"a process for it did not start within {START_LIMIT:g} s"
        except (EOFError, OSError):
            problem = f"a process for it did not start: {how_it_ended(self._end_child())}"
        except BaseException:
            self._end_child(kill=True)
            raise
        if problem:
            self._end_child()
            raise unsendable(self._name, str(problem))
        return child

    def _end_child(self, *, kill: bool = False) -> int | None:
        """End the child and release what it holds; returns its exit code."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert self._end is not None
        if self._end.detach() is None:
            return None  # the exit of this process has ended it, on another thread
        return child.end(0.0 if kill else _GRACE)


class _Child(NamedTuple):
    """A process, and the pipes to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    lifeline: int

    @classmethod
    def start(cls, parcel: Parcel) -> _Child:
        """A new process; its first reply comes when it has read the parcel."""
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
                process_group=0,  # Ctrl-C does not reach it; its own children are killed with it
            )
            return cls(process, mine, lifeline)

    def answer(
        self, question: SetReference | TimeConfig, seconds: float, check: Callable[[], None]
    ) -> Reply:
        """The answer to a question; TimeoutError, EOFError or OSError where there is none."""
        self.pipe.send(question)
        return self.reply(seconds, check)

    def reply(self, seconds: float, check: Callable[[], None]) -> Reply:
        """The next reply; TimeoutError, EOFError or OSError where there is none."""
        end = time.monotonic() + seconds
        while not self.pipe.poll(max(0.0, min(_POLL, end - time.monotonic()))):
            # A forked process may hold the other end of the pipe too, and then there is no EOF.
            if self._is_gone() and not self.pipe.poll(0):
                raise EOFError
            if time.monotonic() >= end:
                raise TimeoutError
            check()
        reply: Reply = self.pipe.recv()
        return reply

    def end(self, patience: float) -> int | None:
        """Wait `patience` seconds for it to exit, then kill it and all that it started; returns its
        exit code, or None if it is unknown, as after it was killed here."""
        self.pipe.close()
        limit = time.monotonic() + patience
        while not self._is_gone() and time.monotonic() < limit:
            time.sleep(0.005)
        ended = self._is_gone()
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended
            # The id is not reused before `wait`; where SIGCHLD is ignored, hardly so soon.
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self._code()
        os.close(self.lifeline)
        return code if ended else None

    def _is_gone(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.process.pid, flags) is not None
        except ChildProcessError:  # see `_code`
            return True

    def _code(self) -> int | None:
        """Wait for its end; return its exit code, or None if there is none because the user's
        program ignores SIGCHLD or waits for all children itself."""
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            self.process.wait()  # which would return 0
            return None
        return self.process.wait()


def _end(child: _Child, owner: int) -> None:
    """End a child whose `Isolated` was not closed; in a forked process there is no such child."""
    if os.getpid() == owner:
        child.end(0.0)


def _python() -> Sequence[str]:
    """The command that starts a Python like this one."""
    executable = multiprocessing.spawn.get_executable()
    if not executable:
        raise TzeroError("sys.executable is empty, so no process can be started to time configs in")
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(executable), *flags]
