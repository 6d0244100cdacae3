"""Worker processes, one to a slot: what happens to one concerns one request and no other.

::

    the service's queue ──► Slot ── loky executor ── worker      (one request at a time)
                       └──► Slot ── loky executor ── worker

Enters: a request, and the settings it was made under. Leaves: the worker's `Reply`, or an error
that says how the worker was lost. It must not know what a request means, nor who waits for it.

loky would share one queue among its workers, and when one dies it gives up all that was handed out.
With one executor for each worker the culprit is known, the others go on, and a deadline or a limit
of memory is one worker's. Whoever has a slot uses it from one thread; only `Slot.kill` may come
from another.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.context
import multiprocessing.popen_spawn_posix
import multiprocessing.process
import multiprocessing.spawn
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from types import FunctionType, SimpleNamespace
from typing import Any, BinaryIO

from tzero.compile import worker
from tzero.compile.request import Request
from tzero.compile.worker import Reply
from tzero.errors import CompileTimeout, WorkerDied
from tzero.settings import Settings

__all__ = ["START_LIMIT", "Slot", "cores", "how_it_ended"]

START_LIMIT = 60.0
"""Seconds in which a new process must have said hello."""

GROWTH = 1 << 30
"""A worker that has grown by so many bytes since its first request makes room for a new one."""


class Slot:
    """A place for one worker, which is started when there is something to do.

    ::

        slot = Slot()
        reply = slot.compile(request, settings.now())
        slot.end()
    """

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        self._started = started  # called after each start
        # Protects who is to be killed, and for what: `_process`, `_request`, `_stopped`, `_closed`.
        self._change = threading.Lock()
        self._executor: Any = None
        self._process: Any = None
        self._request: Request | None = None
        self._stopped = self._closed = False
        self._method = ""
        self._log: BinaryIO | None = None
        self._first_size = 0
        self._last_words = ""
        self.last_pid = 0
        """The worker that was here last."""

    @property
    def is_up(self) -> bool:
        """Whether a worker is here, and alive as far as is known."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The worker's process."""
        process = self._process
        return None if process is None else process.pid

    def warm(self, settings: Settings, backends: Sequence[str]) -> list[tuple[str, str]]:
        """Start the worker, and have it import what backends need; their problems."""
        self._start("a worker", settings)
        try:
            problems: list[tuple[str, str]] = self._executor.submit(worker.warm, backends).result()
        except BrokenProcessPool as error:
            raise WorkerDied(kernel="warming up", how=self._bury(error)) from error
        return problems

    def compile(self, request: Request, settings: Settings) -> Reply:
        """Have a request met; a worker that is gone before it began does not count."""
        with self._change:
            self._request, self._stopped = request, self._closed
        try:
            for last in (False, True):
                try:
                    return self._ask(request, settings)
                except BrokenProcessPool as error:
                    begun = self._has_begun(request)
                    how = self._bury(error, settings)
                    if begun or last:
                        raise self._lost(request, how) from None
            raise AssertionError("the last attempt returns or raises")
        except WorkerDied:
            if self._stopped:
                raise CancelledError(f"{request.name}: its compile was stopped") from None
            raise
        finally:
            with self._change:
                self._request = None

    def kill(self, request: Request) -> None:
        """Kill the worker, from any thread, if it is at this request."""
        with self._change:
            if self._request is request:
                self._stopped = True
                self._kill()

    def close(self) -> None:
        """Kill the worker, from any thread, whatever it is at; nothing is compiled here again."""
        with self._change:
            self._stopped = self._closed = True
            self._kill()

    def end(self) -> None:
        """End the worker."""
        if self._executor is not None:
            self._bury(None)

    def disown(self) -> None:
        """In a forked child: leave the parent's worker alone, also when this process ends."""
        if self._executor is None:
            return
        # What loky and multiprocessing would do when this process ends is for the parent to do:
        # join a thread that is not here, with a lock that may have been held at the fork, and wait
        # for processes that are not its children.
        loky = importlib.import_module("loky.process_executor")
        manager = self._executor._executor_manager_thread
        if manager is not None:
            loky._threads_wakeups.pop(manager, None)
        self._executor._shutdown_lock._at_fork_reinit()
        wakeup = self._executor._executor_manager_thread_wakeup
        if wakeup is not None:
            wakeup._closed = True
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]

    def _ask(self, request: Request, settings: Settings) -> Reply:
        self._start(request.name, settings)
        future = self._executor.submit(worker.run, request, settings.compile_memory)
        limit = settings.compile_timeout
        if not wait([future], timeout=limit or None).done:
            self._kill()
            self._bury(None)
            raise CompileTimeout(kernel=request.name, seconds=limit)
        reply: Reply = future.result()
        self._first_size = self._first_size or reply.resident
        if reply.resident > self._first_size + GROWTH:
            self._bury(None)
        return reply

    def _start(self, name: str, settings: Settings) -> None:
        """Have a worker of the start method that is asked for."""
        if self._executor is not None and (
            self._method != settings.start_method or self._executor._flags.broken is not None
        ):
            self._bury(None)
        if self._executor is not None:
            return
        self._method, self._first_size = settings.start_method, 0
        try:
            self._launch(settings.start_method)
        except (OSError, RuntimeError) as error:
            # A broken pool is a RuntimeError: the process ended before it said anything. One that
            # says nothing in time is a TimeoutError, which is an OSError.
            how = str(error) or f"{type(error).__name__} after {START_LIMIT:g} s"
            self.end()
            raise WorkerDied(kernel=name, how=f"it could not be started: {how}") from error

    def _launch(self, method: str) -> None:
        loky = importlib.import_module("loky")
        number, path = tempfile.mkstemp(prefix="tzero-worker-")
        try:
            self._log = os.fdopen(number, "rb")  # closed when the worker is buried
            self._executor = loky.ProcessPoolExecutor(
                max_workers=1,
                context=_context(method),
                initializer=worker.begin,
                initargs=(os.getpid(), path),
            )
            with _starting:
                hello: Future[int] = self._executor.submit(os.getpid)
            with self._change:
                self._process = next(iter(self._executor._processes.values()), None)
                self.last_pid = self.pid or 0
                if self._stopped:
                    self._kill()
            self._started()
            hello.result(timeout=START_LIMIT)
        finally:
            with contextlib.suppress(FileNotFoundError):  # a worker that has begun removed it
                os.unlink(path)

    def _kill(self) -> None:
        """Kill the worker and what it started; the slot's own thread will see that it is gone."""
        pid = self.pid
        if pid is None or self._process.exitcode is not None:
            return
        for kill in (os.killpg, os.kill):  # it leads no group before it has begun
            with contextlib.suppress(ProcessLookupError):  # gone by itself
                kill(pid, signal.SIGKILL)

    def _bury(self, error: BaseException | None, settings: Settings | None = None) -> str:
        """Remove all that is left of the worker; how it went."""
        process, executor, log = self._process, self._executor, self._log
        executor.shutdown(wait=True, kill_workers=True)  # joins the process, so it has an exit code
        self._kill_group()
        with self._change:
            self._process = None
        self._executor = self._log = None
        self._last_words = _told(log)
        loky = importlib.import_module("loky.process_executor")
        if error is not None and not isinstance(error, loky.TerminatedWorkerError):
            return str(error) or type(error).__name__
        return how_it_ended(None if process is None else process.exitcode, settings)

    def _kill_group(self) -> None:
        """What a dead worker leaves running: its group is still there if it has members."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # nothing, as it should be
                os.killpg(self.pid, signal.SIGKILL)

    def _lost(self, request: Request, how: str) -> WorkerDied:
        error = WorkerDied(kernel=request.name, how=how)
        if self._last_words:
            error.add_note(f"The worker's last words:\n{self._last_words}")
        return error

    def _has_begun(self, request: Request) -> bool:
        assert self._log is not None
        self._log.seek(0)
        return self._log.read(len(request.digest)) == request.digest.encode()


_starting = threading.Lock()
"""One worker starts at a time: a process that is forked while another is would hold the pipe by
whose closing that one's death is seen."""
os.register_at_fork(after_in_child=_starting._at_fork_reinit)  # type: ignore[attr-defined]


def cores() -> int:
    """How many cores this process may use.

    >>> cores() > 0
    True
    """
    return int(importlib.import_module("loky").cpu_count())


def _told(log: BinaryIO | None) -> str:
    """What a worker wrote as it crashed."""
    if log is None:
        return ""
    with log:
        log.seek(0)
        _, _, words = log.read().decode(errors="replace").partition("\n")
    return words.strip()


def how_it_ended(code: int | None, settings: Settings | None = None) -> str:
    """An exit code, in words.

    >>> how_it_ended(3), how_it_ended(-11)
    ('it ended by itself with exit code 3', 'killed by SIGSEGV')
    >>> how_it_ended(-9)
    'killed by SIGKILL (out of memory?)'
    """
    if code is None:
        return "it is not known how"
    if code >= 0:
        return f"it ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = 0 if settings is None else settings.compile_memory
    guess = f" (with {memory} MiB of memory at most, by TZERO_COMPILE_MEMORY)" if memory else ""
    if not guess and code == -signal.SIGKILL:
        guess = " (out of memory?)"
    return f"killed by {name}{guess}"


def _context(method: str) -> Any:
    if method == "subprocess":
        return importlib.import_module("loky").backend.get_context("loky")
    if method == "spawn":
        return _SpawnContext()
    return multiprocessing.get_context(method)


def _without_main(name: str) -> dict[str, Any]:
    data = multiprocessing.spawn.get_preparation_data(name)
    return {key: value for key, value in data.items() if not key.startswith("init_main_")}


class _SpawnPopen(multiprocessing.popen_spawn_posix.Popen):
    """Python's spawn would run the main module again in the worker. A request needs nothing of it,
    and a script without an ``if __name__ == "__main__"`` would start over, and over."""

    # Python's own launch, which asks another function for what the child is told of the parent.
    _launch = FunctionType(
        multiprocessing.popen_spawn_posix.Popen._launch.__code__,  # type: ignore[attr-defined]
        {
            **vars(multiprocessing.popen_spawn_posix),
            "spawn": SimpleNamespace(
                get_preparation_data=_without_main,
                get_command_line=multiprocessing.spawn.get_command_line,
                get_executable=multiprocessing.spawn.get_executable,
            ),
        },
    )


class _SpawnProcess(multiprocessing.context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _SpawnPopen(process_obj)


class _SpawnContext(multiprocessing.context.SpawnContext):
    Process = _SpawnProcess
