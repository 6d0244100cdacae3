"""Worker processes, one per slot, so that a crash affects one request and no other.

::

    queue of the service ──► Slot ── loky executor ── worker      (one request at a time)
                        └──► Slot ── loky executor ── worker

Enters: a request, and the settings it was made under. Leaves: the worker's `Reply`, or an error
that says how the worker was lost. It must not know what a request means, nor who waits for it.

loky would share one queue among its workers, and fail everything that is queued when one dies. With
one executor per worker we know which request crashed it, the others go on, and a deadline or memory
limit applies to one worker. A slot is used from one thread; only `Slot.kill` and `Slot.close` may
be called from another.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.context
import multiprocessing.popen_spawn_posix
import multiprocessing.process
import multiprocessing.spawn
import operator
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from types import FunctionType, SimpleNamespace
from typing import Any, BinaryIO

from tzero import locks, scratch
from tzero.compile import worker
from tzero.compile.budget import Place
from tzero.compile.request import Request
from tzero.compile.worker import Reply
from tzero.errors import CompileTimeout, WorkerDied
from tzero.settings import Settings

__all__ = ["START_LIMIT", "Lost", "Slot", "cores", "how_it_ended"]

START_LIMIT = 60.0
"""Seconds within which a new worker must answer its first message."""

WARM_LIMIT = 120.0
"""Seconds within which a worker must have imported the backends."""

GROWTH = 1 << 30
"""A worker whose memory grew by this many bytes since its first request is replaced."""


class Lost(Exception):
    """A worker was lost with its request. ``error`` is what the caller would see.

    >>> Lost(WorkerDied(kernel="add", how="killed by SIGKILL"), by_compiler=False).by_compiler
    False
    """

    def __init__(self, error: WorkerDied | CompileTimeout, by_compiler: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.by_compiler = by_compiler
        """Whether the compiler crashed or hung, so that it may do so again wherever it runs;
        otherwise something outside ended the worker, or kept it from starting."""


class Slot:
    """At most one worker process, started at the first request.

    ::

        slot = Slot()
        reply = slot.compile(request, settings.now())
        slot.end()
    """

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        self._started = started  # called after each start
        self.place = Place()
        # Protects what `kill` and `close` read: `_process`, `_request`, `_stopped`, `_closed`.
        self._lock = locks.lock()
        self._executor: Any = None
        self._process: Any = None
        self._request: Request | None = None
        self._stopped = self._closed = False
        self._method = ""
        self._log: BinaryIO | None = None
        self._first_size = 0
        self._crash_output = ""
        self.last_pid = 0
        """The process id of the latest worker."""

    @property
    def is_up(self) -> bool:
        """Whether there is a worker that is not known to have died."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        process = self._process
        return None if process is None else process.pid

    def warm(self, settings: Settings, backends: Sequence[str]) -> list[tuple[str, str]]:
        """Start the worker and import in it what these backends need; return (backend, problem)
        for each that failed."""
        self._start("a worker", settings)
        try:
            future = self._executor.submit(worker.warm, backends)
            if not wait([future], timeout=WARM_LIMIT).done:
                self._kill()
                self._clean_up(None)
                how = f"it did not import the backends within {WARM_LIMIT:g} s"
                raise WorkerDied(kernel="warming up", how=how)
            problems: list[tuple[str, str]] = future.result()
        except BrokenProcessPool as error:
            raise WorkerDied(kernel="warming up", how=self._clean_up(error)) from error
        return problems

    def compile(self, request: Request, settings: Settings) -> Reply:
        """Compile a request in the worker; raise `Lost` if the worker is lost meanwhile."""
        with self._lock:
            self._request, self._stopped = request, self._closed
        oom_kills = _oom_kills()
        try:
            try:
                return self._ask(request, settings)
            except BrokenProcessPool as error:
                begun = self._has_begun(request)
                process = self._process
                how = self._clean_up(error, settings)
                by_compiler = begun and _is_crash(process, oom_kills)
                raise Lost(self._worker_died(request, how), by_compiler) from None
            except WorkerDied as error:  # it could not be started
                raise Lost(error, by_compiler=False) from error.__cause__
        except Lost:
            if self._stopped:
                raise CancelledError(f"{request.name}: its compile was stopped") from None
            raise
        finally:
            with self._lock:
                self._request = None

    def kill(self, request: Request) -> None:
        """Kill the worker if it compiles this request. Any thread may call this."""
        with self._lock:
            if self._request is request:
                self._stopped = True
                self._kill()

    def close(self) -> None:
        """Kill the worker, and compile nothing here again. Any thread may call this."""
        with self._lock:
            self._stopped = self._closed = True
            self._kill()

    def end(self) -> None:
        """End the worker."""
        if self._executor is not None:
            self._clean_up(None)
        elif self._log is not None:
            self._log.close()
            self._log = None

    def leave(self) -> None:
        """End the worker, and let another process have its place."""
        self.end()
        self.place.give_back()

    def disown(self) -> None:
        """In a forked child: leave the parent's worker alone, also at exit."""
        self.place.disown()
        if self._executor is None:
            return
        # The exit hooks of loky and multiprocessing must not run here. They would join a thread
        # that does not exist in the child, take a lock that may have been held at the fork, and
        # wait for processes that are not children of this one.
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
            is_stopped = self.pid is not None and _is_stopped(self.pid)
            self._kill()
            self._clean_up(None)
            raise Lost(CompileTimeout(kernel=request.name, seconds=limit), not is_stopped)
        reply: Reply = future.result()
        self._first_size = self._first_size or reply.resident
        if reply.resident > self._first_size + GROWTH:
            self._clean_up(None)
        return reply

    def _start(self, name: str, settings: Settings) -> None:
        """Start a worker with the start method of the settings, unless there is one."""
        if self._executor is not None and (
            self._method != settings.start_method or self._executor._flags.broken is not None
        ):
            self._clean_up(None)
        if self._executor is not None:
            return
        self._method, self._first_size = settings.start_method, 0
        try:
            self._launch(settings.start_method)
        except Exception as error:
            # BrokenProcessPool: the process ended before it answered. TimeoutError: it did not
            # answer in time. OSError: no memory, no file descriptor, no temporary directory.
            how = str(error) or f"{type(error).__name__} after {START_LIMIT:g} s"
            self.end()
            raise WorkerDied(kernel=name, how=f"it could not be started: {how}") from error

    def _launch(self, method: str) -> None:
        with locks.importing():
            loky = importlib.import_module("loky")
        number, path = tempfile.mkstemp(prefix="worker-", dir=scratch.directory())
        try:
            self._log = os.fdopen(number, "rb")  # closed by `_clean_up`
            with locks.no_fork:
                self._executor = loky.ProcessPoolExecutor(
                    max_workers=1,
                    context=_context(method),
                    initializer=worker.begin,
                    initargs=(os.getpid(), path),
                )
            try:
                with locks.no_fork:
                    answer: Future[int] = self._executor.submit(os.getpid)
            finally:  # at interpreter exit loky starts a process, and then raises
                with self._lock:
                    self._process = next(iter(self._executor._processes.values()), None)
                    self.last_pid = self.pid or 0
                    if self._stopped:
                        self._kill()
            self._started()
            answer.result(timeout=START_LIMIT)
        except BaseException:
            # Before the log is removed: a worker that cannot open it would print a traceback.
            self._kill()
            self.end()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):  # the worker removed it when it began
                os.unlink(path)

    def _kill(self) -> None:
        """Kill the worker and all it started; the slot's own thread then sees a broken pool."""
        pid = self.pid
        if pid is None or self._process.exitcode is not None:
            return
        for kill in (os.killpg, os.kill):  # before `worker.begin` it has no process group
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                kill(pid, signal.SIGKILL)

    def _clean_up(self, error: BaseException | None, settings: Settings | None = None) -> str:
        """End the worker and release its resources; return how it ended."""
        process, executor, log = self._process, self._executor, self._log
        executor.shutdown(wait=True, kill_workers=True)  # joins the process, so it has an exit code
        self._kill_group()
        with self._lock:
            self._process = None
        self._executor = self._log = None
        scratch.sweep()  # a worker that is killed leaves its temporary files
        self._crash_output = _read_crash_output(log)
        loky = importlib.import_module("loky.process_executor")
        if error is not None and not isinstance(error, loky.TerminatedWorkerError):
            return str(error) or type(error).__name__
        return how_it_ended(None if process is None else process.exitcode, settings)

    def _kill_group(self) -> None:
        """Kill what a dead worker left running: its process group exists while it has members."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # nothing was left
                os.killpg(self.pid, signal.SIGKILL)

    def _worker_died(self, request: Request, how: str) -> WorkerDied:
        error = WorkerDied(kernel=request.name, how=how)
        if self._crash_output:
            error.add_note(f"Written by the worker as it crashed:\n{self._crash_output}")
        return error

    def _has_begun(self, request: Request) -> bool:
        assert self._log is not None
        self._log.seek(0)
        return self._log.read(len(request.digest)) == request.digest.encode()


# Locks of libraries that starting and ending a worker takes, and that these do not reset.
_LIBRARY_LOCKS = {
    "tempfile": "_once_lock",
    "multiprocessing.resource_tracker": "_resource_tracker._lock",
    "loky.backend.resource_tracker": "_resource_tracker._lock",
    "loky.process_executor": "_global_shutdown_lock",
}


def _reset_library_locks() -> None:
    for name, attribute in _LIBRARY_LOCKS.items():
        if name in sys.modules:
            operator.attrgetter(attribute)(sys.modules[name])._at_fork_reinit()


locks.after_fork(_reset_library_locks)


def _is_crash(process: Any, oom_kills: int) -> bool:
    """Whether a dead worker's compiler ended it; ``oom_kills`` is the count before it began."""
    code = None if process is None else process.exitcode
    if code == -signal.SIGKILL:
        return _oom_kills() > oom_kills  # it would take as much memory in the caller
    if code is None or code >= 0:
        return True  # it is not known, or the compiler has called exit
    return -code in {signal.Signals[name] for name in worker.CRASHES}


def _oom_kills() -> int:
    """How many processes of this machine or container were killed to free memory."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as lines:
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def cores() -> int:
    """Return how many cores this process may use.

    >>> cores() > 0
    True
    """
    with locks.importing():
        return int(importlib.import_module("loky").cpu_count())


def _read_crash_output(log: BinaryIO | None) -> str:
    """What faulthandler wrote into the worker's log, without the digest in its first line."""
    if log is None:
        return ""
    with log:
        log.seek(0)
        _, _, output = log.read().decode(errors="replace").partition("\n")
    return output.strip()


def how_it_ended(code: int | None, settings: Settings | None = None) -> str:
    """Describe an exit code.

    >>> how_it_ended(3), how_it_ended(-11)
    ('it ended by itself with exit code 3', 'killed by SIGSEGV')
    >>> how_it_ended(-9)
    'killed by SIGKILL (out of memory?)'
    """
    if code is None:
        return "its exit code is unknown"
    if code >= 0:
        return f"it ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = 0 if settings is None else settings.compile_memory
    guess = f" (memory limit: {memory} MiB, set by TZERO_COMPILE_MEMORY)" if memory else ""
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
    """Spawn without running the main module again in the worker. A request needs nothing from it,
    and a script without ``if __name__ == "__main__"`` would start itself recursively."""

    # The code of `Popen._launch` with other globals: `get_preparation_data` is replaced.
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
