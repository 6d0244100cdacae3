"""Run jobs: in worker processes, on threads, or in the caller.

Enters: jobs that no cache could answer. Leaves: a call of ``compiled`` with the artifact's bytes,
or of ``failed`` with the error, for each job. It must not know about caches, nor who waits for a
job.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Protocol

from tzero import locks, settings
from tzero.compile import command, worker
from tzero.compile.accounting import CompileRun, Where
from tzero.compile.backend import find, names
from tzero.compile.lifetime import register_exit_hook
from tzero.compile.pending import Job
from tzero.compile.pool import Slot, cores
from tzero.compile.thread_pool import ThreadPool
from tzero.errors import CompileFailed
from tzero.events import Event, emit
from tzero.settings import Settings

__all__ = ["Compilers"]


class _OnFailure(Protocol):
    def __call__(self, job: Job, error: BaseException, run: CompileRun | None = None, /) -> None:
        """``run`` says where it ran, if it was started."""


class Compilers:
    """The worker processes and compile threads of a service; both start on demand.

    ::

        compilers = Compilers(compiled=store_and_finish, failed=in_flight.fail)
        compilers.enqueue(job)
    """

    def __init__(
        self, compiled: Callable[[Job, bytes, CompileRun], None], failed: _OnFailure
    ) -> None:
        self._compiled, self._failed = compiled, failed
        self._closed = False
        self._threads: ThreadPool[None, Job] = ThreadPool(
            "tzero-compile", make=lambda: None, run=self._run_in_thread, size=1, idle=5
        )
        self._slots: ThreadPool[Slot, Job] = ThreadPool(
            "tzero-worker",
            make=lambda: Slot(register_exit_hook),
            run=self._run_in_slot,
            warm=self._warm_slot,
            release=Slot.end,
            size=1,
            idle=60,
        )

    # Queueing.

    def enqueue(self, job: Job, first: bool = False) -> None:
        """Queue a job for a worker or a thread, as its backend requires."""
        self._apply(job.settings)
        runs = find(job.request.backend).runs
        try:
            (self._threads if runs == "thread" else self._slots).put(job, first)
        except RuntimeError:  # closed meanwhile, or no thread can be started
            if not self._closed:
                raise
            raise job.stopped_error() from None

    def move_to_front(self, job: Job) -> None:
        """Let a job that still waits for a worker be the next."""
        self._slots.move_to_front(job)

    def remove(self, job: Job) -> bool:
        """Take a job out of its queue; return False if it has started."""
        return self._threads.remove(job) or self._slots.remove(job)

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

    def _apply(self, now: Settings) -> None:
        self._slots.size = self._threads.size = now.compile_workers or cores()
        self._slots.idle = now.quiesce

    def _start_all(self, now: Settings) -> None:
        try:
            self._apply(now)
            self._slots.start_all()
        finally:
            self._slots.end_announcement()

    def _warm_slot(self, slot: Slot) -> None:
        if self._closed:
            return
        try:
            problems = slot.warm(settings.now(), names())
        except Exception as error:  # reported here; the next request starts a worker again
            emit(Event("refusal", "warm_pool", f"a worker did not start: {error}"))
            return
        for name, problem in problems:
            reason = f"warm_pool: the backend could not be imported: {problem}"
            emit(Event("refusal", name, reason), logging.INFO)

    # Compiling.

    def _run_in_slot(self, slot: Slot, job: Job) -> None:
        start = time.perf_counter_ns()
        try:
            job.slot = slot
            job.raise_if_stopped()
            reply = slot.compile(job.request, job.settings)
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

    def _run_in_thread(self, _: None, job: Job) -> None:
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
                if find(request.backend).runs == "thread":
                    payload = worker.compile_to_bytes(request)
                else:
                    with _environment_lock, settings.applied(request.environment):
                        payload = worker.compile_to_bytes(request)
        except KeyboardInterrupt:
            raise  # meant for this caller; its own caller fails the job for those who joined
        except BaseException as error:  # also sys.exit() in a compiler, as in a worker
            self._failed(job, _as_seen_by_caller(error, request.name), run())
            return
        try:
            self._compiled(job, payload, run())
        except Exception as error:
            self._failed(job, error)


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
