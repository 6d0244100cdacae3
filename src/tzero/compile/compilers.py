"""Run jobs: in worker processes, on threads, or in the caller.

Enters: jobs that no cache could answer. Leaves: a call of ``compiled`` with the artifact's bytes,
or of ``failed`` with the error, for each job for which ``begin`` says that it is compiled here. It
must not know about caches, nor who waits for a job.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tzero import locks, settings
from tzero.compile import command, worker
from tzero.compile.accounting import CompileRun, Where
from tzero.compile.backend import find, names
from tzero.compile.budget import Place
from tzero.compile.lifetime import register_exit_hook
from tzero.compile.pending import Job
from tzero.compile.pool import Lost, Slot, cores
from tzero.compile.request import Request
from tzero.compile.thread_pool import ThreadPool
from tzero.compile.worker import Reply
from tzero.errors import CompileFailed
from tzero.events import Event, emit
from tzero.settings import Settings

if TYPE_CHECKING:
    from tzero.compile.executor_task import Answer

__all__ = ["Compilers", "compile_in_process", "has_no_workers"]

ATTEMPTS = 3
"""How many workers a request may lose before the caller compiles it."""

PAUSE = 0.1
"""Seconds between the first and the second attempt; longer between later ones."""

SHORT = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
"""Errors that say that there are too few file descriptors, processes or too little memory now."""


class _OnFailure(Protocol):
    def __call__(self, job: Job, error: BaseException, run: CompileRun | None = None, /) -> None:
        """``run`` says where it ran, if it was started."""


class Compilers:
    """The worker processes and compile threads of a service; both start on demand.

    ::

        compilers = Compilers(begin, compiled=store_and_finish, failed=in_flight.fail)
        compilers.enqueue(job)
    """

    def __init__(
        self,
        begin: Callable[[Job, bool], bool],
        compiled: Callable[[Job, bytes, CompileRun], None],
        failed: _OnFailure,
        relayed: Callable[[Job | None], AbstractContextManager[None]],
    ) -> None:
        self._begin, self._compiled, self._failed, self._relayed = begin, compiled, failed, relayed
        self._closed = False
        self._missed = 0
        self._most_on_machine = 1
        self._threads: ThreadPool[Place, Job] = ThreadPool(
            "tzero-compile",
            make=Place,
            admit=lambda place: place.take(self._most_on_machine),
            run=self._run_in_thread,
            release=Place.give_back,
            size=1,
            idle=5,
        )
        self._slots: ThreadPool[Slot, Job] = ThreadPool(
            "tzero-worker",
            make=lambda: Slot(register_exit_hook),
            run=self._run_in_slot,
            admit=lambda slot: slot.place.take(self._most_on_machine),
            warm=self._warm_slot,
            release=Slot.leave,
            size=1,
            idle=60,
        )

    # Queueing.

    def enqueue(self, job: Job, first: bool = False) -> None:
        """Send a job to its executor, or queue it for a worker or a thread, as its backend
        requires."""
        if job.sender is not None:
            job.sender.send(job, self)
            return
        self._apply(job.settings)
        runs = find(job.request.backend).runs
        pool: ThreadPool[Any, Job] = self._threads if runs == "thread" else self._slots
        try:
            pool.put(job, first)
        except RuntimeError as error:  # closed meanwhile, or no thread can be started
            if self._closed:
                raise job.stopped_error() from None
            if pool.remove(job):
                self.run_here(job, "inline", f"no thread can be started: {error}")

    def move_to_front(self, job: Job) -> None:
        """Let a job that still waits for a worker be the next."""
        self._slots.move_to_front(job)

    def remove(self, job: Job) -> bool:
        """Take a job out of its queue, or back from its executor; return False if it has started
        here."""
        if job.sender is not None:
            job.sender.stop(job)
            return True
        return self._threads.remove(job) or self._slots.remove(job)

    # Jobs at an executor.

    def answered(self, job: Job, answer: Answer) -> None:
        """Take the result of an executor."""
        end = time.perf_counter_ns()
        times = end - int(answer.seconds * 1e9), end
        run = CompileRun("executor", answer.pid, answer.pid, *times, answer.where)
        try:
            if answer.failure is not None:
                self._failed(
                    job, worker.error_of(answer.failure, job.request.name, answer.where), run
                )
            else:
                assert answer.payload is not None
                self._compiled(job, answer.payload, run)
        except Exception as error:
            self._failed(job, error)

    def unanswered(self, job: Job, why: str) -> None:
        """Compile what an executor cannot."""
        job.sender = None
        try:
            if has_no_workers(job.settings):
                self.run_here(job, "inline", why)
            else:
                self.enqueue(job, first=True)
        except Exception as error:
            self._failed(job, error)

    def relayed(self, job: Job | None) -> AbstractContextManager[None]:
        """The state in which a thread of the service works on a job."""
        return self._relayed(job)

    # Workers.

    def has_workers(self) -> bool:
        """Whether a worker process is up."""
        return any(slot.is_up for slot in self._slots.resources())

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return [slot.pid for slot in self._slots.resources() if slot.pid is not None]

    def start_workers(self, now: Settings) -> None:
        """Start all workers in the background, and import in them what backends need."""
        self._slots.announce_warming()
        # On a thread, because even importing loky takes time.
        threading.Thread(
            target=self._start_all, args=(now,), name="tzero-warm", daemon=True
        ).start()

    def warm_soon(self, now: Settings) -> None:
        """The caller has to compile, because no worker is up: at the second time, start all. One
        compile alone is not worth it, and would only be slowed down."""
        self._missed += 1
        if self._missed == 2 and now.warm and not has_no_workers(now):
            self.start_workers(now)

    def wait_warm(self, timeout: float | None) -> bool:
        """Wait for workers that are being started; return False on timeout."""
        return self._slots.wait_warm(timeout)

    def stop_idle(self) -> None:
        """End the workers that have no job."""
        self._slots.stop_idle()

    def close(self) -> list[Job]:
        """Kill workers and commands, and accept no more jobs; return the jobs not started."""
        self._closed = True
        queued = self._threads.close() + self._slots.close()
        for slot in self._slots.resources():
            slot.close()
        command.end_all()
        return queued

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, for at most ``timeout`` seconds each kind."""
        self._threads.join(timeout)
        self._slots.join(timeout)

    def disown(self) -> None:
        """In a forked child: leave the parent's workers and commands alone."""
        command.forget()
        for slot in self._slots.resources_without_lock():
            slot.disown()
        for place in self._threads.resources_without_lock():
            place.disown()

    def _apply(self, now: Settings) -> None:
        self._slots.size = self._threads.size = now.compile_workers or cores()
        self._most_on_machine = now.machine_workers or max(cores(), now.compile_workers or 0)
        self._slots.idle = now.quiesce

    def _start_all(self, now: Settings) -> None:
        try:
            with self._relayed(None):
                self._apply(now)
                try:
                    self._slots.start_all()
                except RuntimeError as error:  # requests start workers again
                    emit(Event("fallback", "warm_pool", f"no thread can be started: {error}"))
        finally:
            self._slots.end_announcement()

    def _warm_slot(self, slot: Slot) -> None:
        if self._closed:
            return
        with self._relayed(None):
            try:
                problems = slot.warm(settings.now(), names())
            except Exception as error:  # reported here; the next request starts a worker again
                if not self._closed:  # else `close` has ended it
                    emit(Event("fallback", "warm_pool", f"a worker did not start: {error}"))
                return
            for name, problem in problems:
                reason = f"warm_pool: the backend could not be imported: {problem}"
                emit(Event("fallback", name, reason), logging.INFO)

    # Compiling.

    def _run_in_slot(self, slot: Slot, job: Job) -> None:
        with self._relayed(job):
            if self._begun(job, slot.place):
                self._ask_slot(slot, job)

    def _begun(self, job: Job, place: Place) -> bool:
        """Whether to compile a job; if not, it is finished, or waits for another process."""
        try:
            return self._begin(job, place.take(self._most_on_machine))
        except BaseException as error:
            self._failed(job, error)
            return False

    def _ask_slot(self, slot: Slot, job: Job) -> None:
        start = time.perf_counter_ns()
        try:
            reply = self._reply(slot, job)
            if isinstance(reply, str):
                self.run_here(job, "inline", reply)
                return
            run = CompileRun("process", reply.pid, reply.thread, reply.start, reply.end)
            if reply.failure is not None:
                error = worker.error_of(reply.failure, job.request.name, f"worker {reply.pid}")
                self._failed(job, error, run)
            else:
                assert reply.payload is not None
                self._compiled(job, reply.payload, run)
        except BaseException as error:
            times = start, time.perf_counter_ns()
            self._failed(job, error, CompileRun("process", slot.last_pid, slot.last_pid, *times))

    def _reply(self, slot: Slot, job: Job) -> Reply | str:
        """Ask a worker, and another one if it is lost; return a string if all are, which says why
        the caller must compile. Raises the error of a compiler that has crashed or hung twice,
        because it would end or block the caller too."""
        crashes = losses = 0
        job.slot = slot
        while losses < ATTEMPTS:
            job.raise_if_stopped()
            try:
                return slot.compile(job.request, job.settings)
            except Lost as lost:
                crashes += lost.by_compiler
                losses += not lost.by_compiler
                if crashes == 2 or (crashes and losses == ATTEMPTS):
                    raise lost.error from None
                then = "another worker compiles it" if losses < ATTEMPTS else "the caller does"
                why = f"{lost.error}".partition("\n")[0]
                reason = f"attempt {crashes + losses} failed, {then}: {why}"
                emit(Event("fallback", job.request.name, reason))
            time.sleep(PAUSE * (crashes + losses))
        return f"{ATTEMPTS} workers were lost"

    def _run_in_thread(self, place: Place, job: Job) -> None:
        with self._relayed(job):
            if not self._begun(job, place):
                return
            try:
                self.run_here(job, "thread")
            except BaseException:
                self._failed(job, job.stopped_error())
                raise

    def run_here(self, job: Job, where: Where, why: str = "") -> None:
        """Compile in this thread. Raises only `KeyboardInterrupt`, and then ``failed`` was not
        called."""
        request, start = job.request, time.perf_counter_ns()

        def run() -> CompileRun:
            here = os.getpid(), threading.get_native_id()
            return CompileRun(where, *here, start, time.perf_counter_ns(), why)

        try:
            job.raise_if_stopped()
            with command.deadline(request.name, job.settings.compile_timeout):
                payload = _compile_patiently(request)
        except KeyboardInterrupt:
            raise  # meant for this caller; its own caller fails the job for those who joined
        except BaseException as error:  # also sys.exit() in a compiler, as in a worker
            self._failed(job, _as_seen_by_caller(error, request.name), run())
            return
        try:
            self._compiled(job, payload, run())
        except Exception as error:
            self._failed(job, error)


def has_no_workers(now: Settings) -> bool:
    """Whether this process must not start workers: by a setting, because it is a worker itself, or
    because it is a daemonic process of multiprocessing.

    >>> has_no_workers(Settings(compile_workers=1))
    True
    """
    return now.compile_workers == 1 or worker.inside() or multiprocessing.current_process().daemon


def _compile_patiently(request: Request) -> bytes:
    """Compile in this process. While it has too few file descriptors, processes or memory, wait and
    try again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return compile_in_process(request)
        except OSError as error:
            if error.errno not in SHORT or attempt == ATTEMPTS:
                raise
            reason = f"attempt {attempt} of {ATTEMPTS} to compile failed, tried again: {error}"
            emit(Event("fallback", request.name, reason))
        time.sleep(PAUSE * attempt)
    raise AssertionError("the last attempt returns or raises")


def compile_in_process(request: Request) -> bytes:
    """Compile in this thread; return the encoded artifact.

    ::

        Artifact.decode(compile_in_process(request))
    """
    if find(request.backend).runs == "thread":
        return worker.compile_to_bytes(request)
    with _environment_lock, settings.applied(request.environment):
        return worker.compile_to_bytes(request)


# Protects the environment of this process while a compile in it changes variables.
_environment_lock = locks.lock()


def _as_seen_by_caller(error: BaseException, kernel: str) -> BaseException:
    """The error that the caller sees for an exception raised while compiling in this process."""
    if isinstance(error, CancelledError):
        return error
    if not worker.is_stdlib_error(error):
        error.add_note(f"While compiling {kernel}.")
        return error
    failed = CompileFailed(kernel=kernel, problem=worker.failure_of(error).problem, trace="")
    failed.__cause__ = error
    return failed
