"""`AsyncCompile`: requests in, futures out; each thing is compiled once, beside the program.

Enters: requests. Leaves: artifacts, from memory, a cache or a compiler, in this order; who talks to
whom is drawn in `tzero.compile`. It must not know what is compiled, nor where caches keep things.

Futures that it hands out are shared by all who ask for the same thing, so none of them can cancel
one. A failure is kept by nobody: the next request tries again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Protocol, overload

from tzero import settings
from tzero.cache import Found, stores
from tzero.compile import command, worker
from tzero.compile.accounting import Book, CompileStats, Cost, Done
from tzero.compile.backend import find, names
from tzero.compile.crew import Crew
from tzero.compile.lifetime import register, see_to_exit
from tzero.compile.pending import Job, Pending
from tzero.compile.pool import Slot, cores
from tzero.compile.progress import watch
from tzero.compile.recent import Recent
from tzero.compile.request import Artifact, Malformed, Request
from tzero.errors import CompileFailed
from tzero.events import Event, emit
from tzero.settings import Settings

__all__ = ["AsyncCompile", "Stores", "service"]

KEPT = 64 << 20
"""Bytes of artifacts that are kept in memory."""

LOOKERS = 4
"""Threads that look into caches: a slow one must not hold up what another has."""

PARTING = 2.0
"""Seconds that `shutdown` gives its threads; what they wait for has been killed by then."""


class Stores(Protocol):
    """The caches behind memory, as `tzero.cache.Layers` has them.

    ::

        found = stores.get(request.digest)
    """

    def get(self, digest: str, /) -> Found | None:
        """The bytes of an artifact, and which layer had them."""

    def put(self, digest: str, payload: bytes, /) -> None:
        """Keep the bytes of an artifact."""


class AsyncCompile:
    """Compiles beside the program, each thing once.

    ::

        service = tzero.compile.service()
        future = service.submit(request)      # at once
        artifact = future.result()
    """

    def __init__(self, stores: Callable[[Settings], Stores] = stores) -> None:
        self._stores = stores
        self._begin()
        register(self)

    def _begin(self) -> None:
        # Protects the two below, and the counts in jobs.
        self._change = threading.Lock()
        self._flying: dict[str, Job] = {}  # by digest
        self._recent = Recent(KEPT)
        self._closed = False
        self._book = Book()
        self._lookers: Crew[None, Job] = Crew(
            "tzero-lookup", hire=lambda: None, do=self._look_up, size=LOOKERS, idle=5
        )
        self._threads: Crew[None, Job] = Crew(
            "tzero-compile", hire=lambda: None, do=self._compile_in_thread, size=1, idle=5
        )
        self._slots: Crew[Slot, Job] = Crew(
            "tzero-worker",
            hire=lambda: Slot(see_to_exit),
            do=self._compile_in_slot,
            warm=self._warm,
            part=Slot.end,
            size=1,
            idle=60,
        )

    # What callers use

    def submit(self, request: Request) -> Pending:
        """Ask for an artifact; equal requests share one future.

        With ``TZERO_COMPILE_WORKERS=1``, in a worker, and after `shutdown`, it is compiled before
        this returns.
        """
        job, is_new = self._enter(request)
        if is_new:
            with self._answering(job):
                if self._is_inline(job):
                    self._do_inline(job, "no workers")
                else:
                    self._lookers.give(job)
        return job.future

    def compile(self, request: Request) -> Artifact:
        """Ask for an artifact and wait for it: the caller compiles it unless workers are up."""
        while True:
            job, is_new = self._enter(request)
            try:
                return self._awaited(job, is_new)
            except CancelledError:
                if is_new or self._closed:
                    raise
                # Whoever compiled it was interrupted, and it is still wanted here.

    def _awaited(self, job: Job, is_new: bool) -> Artifact:
        if is_new:
            why = "" if self._has_workers() else "the pool is not up"
            with self._answering(job):
                self._do_inline(job, "no workers" if self._is_inline(job) else why)
        elif not job.future.done():
            self._slots.hurry(job)
        try:
            return job.future.result()
        except KeyboardInterrupt:
            self._stop([job.future])
            raise

    @overload
    def wait(self, scope: Mapping[str, Future[Artifact]]) -> dict[str, Artifact]: ...

    @overload
    def wait(self, scope: Iterable[Future[Artifact]]) -> list[Artifact]: ...

    def wait(
        self, scope: Mapping[str, Future[Artifact]] | Iterable[Future[Artifact]]
    ) -> dict[str, Artifact] | list[Artifact]:
        """The artifacts of a scope of futures, in its shape and order; at a terminal a bar names
        what is waited for. When all are done the first that failed raises, and names the others.

        On Ctrl-C, what nobody else has asked for is stopped.
        """
        futures = list(scope.values() if isinstance(scope, Mapping) else scope)
        if isinstance(scope, Mapping):
            named = list(scope.items())
        else:
            named = [(_name_of(future), future) for future in futures]
        for future in futures:
            if isinstance(future, Pending):
                future.require_here()
        try:
            watch(named)
        except KeyboardInterrupt:
            self._stop(futures)
            raise
        self._raise_first(named)
        if isinstance(scope, Mapping):
            return {name: future.result() for name, future in named}
        return [future.result() for future in futures]

    def warm_pool(self) -> None:
        """Start all workers in the background, and have them import what backends need."""
        now = settings.now()
        if self._closed or _is_alone(now):
            return
        self._slots.expect()
        # Not even loky's import is for the caller to wait for.
        threading.Thread(target=self._fill, args=(now,), name="tzero-warm", daemon=True).start()

    def wait_pool_ready(self, timeout: float | None = None) -> bool:
        """Wait for a pool that is warming up; whether there are workers. Starts none."""
        if self._closed or _is_alone(settings.now()):
            return True
        return self._slots.wait_warm(timeout) and self._has_workers()

    def quiesce(self) -> None:
        """End the workers that are idle; the next request starts one again."""
        self._slots.dismiss()

    def wakeup(self) -> None:
        """Start the workers again after `quiesce`."""
        self.warm_pool()

    def shutdown(self) -> None:
        """Stop all that is under way, and end workers and threads. What is asked for afterwards,
        the caller compiles."""
        with self._change:
            self._closed = True
            flying = list(self._flying.values())
        for job in flying:
            job.stopped = True
        queued = self._lookers.close() + self._threads.close() + self._slots.close()
        for job in queued:
            self._fail(job, job.as_stopped())
        for slot in self._slots.hands():
            slot.close()
        command.end_all()
        for crew in (self._lookers, self._threads, self._slots):
            crew.join(PARTING)

    def workers(self) -> list[int]:
        """The process ids of the workers there are."""
        return [slot.pid for slot in self._slots.hands() if slot.pid is not None]

    def stats(self) -> CompileStats:
        """Counts since the service was made."""
        return self._book.stats()

    def top(self, count: int = 10) -> list[Cost]:
        """The kernels whose compiles took longest."""
        return self._book.top(count)

    def reloaded(self) -> None:
        """Count a kernel whose source this process had to read again to compile it itself."""
        self._book.reloaded()

    # From a request to a job

    def _enter(self, request: Request) -> tuple[Job, bool]:
        """The job of a request, and whether it is new and so for the caller to see to."""
        digest = request.digest
        with self._change:
            job = self._flying.get(digest)
            if job is not None:
                job.asked += 1
            else:
                kept = self._recent.get(digest)
        self._book.asked(joined=job is not None)
        if job is not None:
            return job, False
        if kept is not None:
            job = Job(request, settings.current(), Pending(request))
            self._book.hit(request, "memory")
            job.future.set_result(kept)
            return job, False
        job = Job(request, settings.now(), Pending(request))
        with self._change:
            other = self._flying.setdefault(digest, job)
            if other is not job:
                other.asked += 1
        return other, other is job

    @contextmanager
    def _answering(self, job: Job) -> Iterator[None]:
        """See to it that a job which could not be begun is not waited for."""
        try:
            yield
        except BaseException:
            self._fail(job, job.as_stopped())
            raise

    def _is_inline(self, job: Job) -> bool:
        return self._closed or _is_alone(job.settings)

    def _has_workers(self) -> bool:
        return any(slot.is_up for slot in self._slots.hands())

    def _set_up(self, now: Settings) -> None:
        """Let the crews be as settings have it now."""
        size = now.compile_workers or cores()
        self._slots.size = self._threads.size = size
        self._slots.idle = now.quiesce

    # On the lookers' threads, or the caller's

    def _look_up(self, _: None, job: Job) -> None:
        try:
            if not self._is_found(job):
                self._hand_on(job)
        except BaseException as error:
            self._fail(job, error)

    def _is_found(self, job: Job) -> bool:
        """Whether a cache has it; then the job is done."""
        job.require_wanted()
        found = self._stores(job.settings).get(job.request.digest)
        if found is None:
            return False
        try:
            artifact = Artifact.decode(found.payload)
        except Malformed as error:
            reason = f"an entry of the {found.layer} cache is replaced: {error}"
            emit(Event("cache", job.request.name, reason))
            return False
        self._book.hit(job.request, found.layer)
        self._land(job, artifact, len(found.payload))
        return True

    def _hand_on(self, job: Job, first: bool = False) -> None:
        """Queue what no cache has."""
        self._set_up(job.settings)
        runs = find(job.request.backend).runs
        try:
            (self._threads if runs == "thread" else self._slots).give(job, first)
        except RuntimeError:  # closed meanwhile, or no thread can be started
            if not self._closed:
                raise
            raise job.as_stopped() from None

    # Compiling: in a worker, on a thread, in the caller

    def _compile_in_slot(self, slot: Slot, job: Job) -> None:
        start = time.perf_counter_ns()
        try:
            job.slot = slot
            job.require_wanted()
            reply = slot.compile(job.request, job.settings)
            done = Done("process", reply.pid, reply.thread, reply.start, reply.end)
            if reply.failure is not None:
                error = worker.error_of(reply.failure, job.request.name, f"worker {reply.pid}")
                self._fail(job, error, done)
            else:
                assert reply.payload is not None
                self._keep(job, reply.payload, done)
        except BaseException as error:
            times = start, time.perf_counter_ns()
            self._fail(job, error, Done("process", slot.last_pid, slot.last_pid, *times))

    def _compile_in_thread(self, _: None, job: Job) -> None:
        with self._answering(job):
            self._make(job, Done("thread", os.getpid(), threading.get_native_id(), 0, 0))

    def _do_inline(self, job: Job, why: str) -> None:
        """See to a job in the caller's thread; without a reason for it, workers compile."""
        try:
            if self._is_found(job):
                return
            if not why and find(job.request.backend).runs == "process":
                self._hand_on(job, first=True)
                return
        except Exception as error:
            self._fail(job, error)
            return
        here = os.getpid(), threading.get_native_id()
        self._make(job, Done("inline", *here, 0, 0, why or "the caller waits"))

    def _make(self, job: Job, plan: Done) -> None:
        """Compile in this thread, as planned."""
        request, start = job.request, time.perf_counter_ns()
        try:
            job.require_wanted()
            with command.deadline(request.name, job.settings.compile_timeout):
                if find(request.backend).runs == "thread":
                    payload = worker.make(request)
                else:
                    with _environment, settings.applied(request.environment):
                        payload = worker.make(request)
        except KeyboardInterrupt:
            raise  # the caller's own; whoever joined is answered further out
        except BaseException as error:  # also a sys.exit() of a compiler, as in a worker
            self._fail(job, _wrapped(error, request.name), _over(plan, start))
            return
        try:
            self._keep(job, payload, _over(plan, start))
        except Exception as error:
            self._fail(job, error)

    # The end of a job

    def _keep(self, job: Job, payload: bytes, done: Done) -> None:
        """Put what was compiled into the caches, and hand it over."""
        artifact = Artifact.decode(payload)
        self._stores(job.settings).put(job.request.digest, payload)
        self._book.compiled(job.request, done)  # an observer's exception fails the job
        self._land(job, artifact, len(payload))

    def _land(self, job: Job, artifact: Artifact, size: int) -> None:
        digest = job.request.digest
        with self._change:
            self._flying.pop(digest, None)
            self._recent.put(digest, artifact, size)
        job.future.set_result(artifact)

    def _fail(self, job: Job, error: BaseException, done: Done | None = None) -> None:
        with self._change:
            if self._flying.get(job.request.digest) is job:
                del self._flying[job.request.digest]
        if job.future.done():
            return
        try:
            self._book.failed(job.request, error, done)
        except Exception as more:  # an observer's; the caller sees both
            error.add_note(f"An observer of events failed, too: {type(more).__name__}: {more}")
        job.future.set_exception(error)

    def _stop(self, futures: Iterable[Future[Artifact]]) -> None:
        """Stop what nobody but the caller has asked for."""
        wanted = {id(future) for future in futures}
        with self._change:
            jobs = [job for job in self._flying.values() if id(job.future) in wanted]
            alone = [job for job in jobs if job.asked == 1]
        for job in alone:
            job.stopped = True
            if any(crew.take_back(job) for crew in (self._lookers, self._threads, self._slots)):
                self._fail(job, job.as_stopped())
            elif job.slot is not None:
                job.slot.kill(job.request)

    def _raise_first(self, named: Iterable[tuple[str, Future[Artifact]]]) -> None:
        failed = [(name, error) for name, f in named if (error := f.exception()) is not None]
        if not failed:
            return
        (_, first), *others = failed
        if others:
            text = "; ".join(f"{name}: {type(error).__name__}" for name, error in others)
            note = f"{len(others)} more failed: {text}"
            if note not in getattr(first, "__notes__", ()):
                first.add_note(note)
        raise first

    def _fill(self, now: Settings) -> None:
        try:
            self._set_up(now)
            self._slots.fill()
        finally:
            self._slots.settle()

    def _warm(self, slot: Slot) -> None:
        if self._closed:
            return
        try:
            problems = slot.warm(settings.now(), names())
        except Exception as error:  # told; the first request to come tries again
            emit(Event("refusal", "warm_pool", f"a worker is not there: {error}"))
            return
        for name, problem in problems:
            emit(Event("refusal", name, f"warm_pool: it was not imported: {problem}"), logging.INFO)

    def leave_to_parent(self) -> None:
        """In a forked child: begin anew, and leave alone what belongs to the parent."""
        global _environment
        _environment = threading.RLock()
        command.forget()
        _inherited.append(dict(vars(self)))
        for slot in list(self._slots._threads.values()):  # its lock may have been held at the fork
            slot.disown()
        self._begin()


_environment = threading.RLock()  # protects the environment while a compile in this process has it
_inherited: list[object] = []  # kept for ever, because ending them would be felt by the parent


def _name_of(future: Future[Artifact]) -> str:
    return future.request.name if isinstance(future, Pending) else "a kernel"


def _over(plan: Done, start: int) -> Done:
    end = time.perf_counter_ns()
    return Done(plan.where, plan.pid, plan.thread, start, end, plan.why)


def _wrapped(error: BaseException, kernel: str) -> BaseException:
    """What the caller is to see of an exception that was raised in this process."""
    if isinstance(error, CancelledError):
        return error
    if not worker.is_pythons(error):
        error.add_note(f"While compiling {kernel}.")
        return error
    failed = CompileFailed(kernel=kernel, problem=worker.failure_of(error).problem, trace="")
    failed.__cause__ = error
    return failed


def _is_alone(now: Settings) -> bool:
    """Whether this process is to have no workers: it was told so, it is one, or it may not."""
    return now.compile_workers == 1 or worker.inside() or multiprocessing.current_process().daemon


_own_lock = threading.Lock()  # protects making `_own`
_own: AsyncCompile | None = None


def service() -> AsyncCompile:
    """The process's own service, made at the first use.

    >>> service() is service()
    True
    """
    global _own
    if _own is None:
        with _own_lock:
            if _own is None:
                _own = AsyncCompile()
    return _own
