"""`AsyncCompile`: takes requests, returns futures, and compiles each request once.

Enters: requests. Leaves: artifacts, from memory, a cache or a compiler, in this order; the diagram
is in `tzero.compile`. It must not know what is compiled, nor where caches keep things.

All callers with equal requests share one future, so none of them can cancel it. Failures are not
kept: the next request tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from typing import overload

from tzero import events, locks, sealed, settings
from tzero.cache import stores
from tzero.compile.accounting import Accounting, CompileRun, CompileStats, Cost
from tzero.compile.backend import find
from tzero.compile.claiming import Claiming, Stores
from tzero.compile.compilers import Compilers, has_no_workers
from tzero.compile.delivery import Delivery
from tzero.compile.executors import current as current_sender
from tzero.compile.in_flight import InFlight
from tzero.compile.lifetime import register
from tzero.compile.pending import Job, Pending
from tzero.compile.progress import watch
from tzero.compile.request import Artifact, Malformed, Request
from tzero.compile.thread_pool import ThreadPool
from tzero.compile.together import is_held
from tzero.settings import Settings

__all__ = ["AsyncCompile", "Stores", "service"]

MEMORY_LIMIT = 64 << 20
"""Bytes of artifacts kept in memory."""

LOOKUP_THREADS = 4
"""Threads that read caches. Several, so that one slow read does not delay the others."""

NOT_UP = "the pool is not up"
"""Why the caller compiles what a worker could."""

JOIN_TIMEOUT = 2.0
"""Seconds that `shutdown` waits for threads. What they wait for was killed before."""


class AsyncCompile:
    """Compiles requests in the background, each one once.

    ::

        service = tzero.compile.service()
        future = service.submit(request)      # returns immediately
        artifact = future.result()
    """

    def __init__(self, stores: Callable[[Settings], Stores] = stores) -> None:
        self._stores = stores
        self._reset()
        register(self)

    def _reset(self) -> None:
        self._closed = False
        self._accounting = Accounting()
        self._delivery = Delivery()
        self._in_flight = InFlight(self._accounting, MEMORY_LIMIT, self._delivery)
        self._claiming = Claiming(
            lambda now: self._stores(now),
            self._is_found,
            lambda job: self._compilers.enqueue(job, first=True),
            self._in_flight,
        )
        self._compilers = Compilers(
            self._claiming.begin, self._store, self._claiming.fail, self._in_flight.relayed
        )
        self._lookups: ThreadPool[None, Job] = ThreadPool(
            "tzero-lookup", make=lambda: None, run=self._look_up, size=LOOKUP_THREADS, idle=5
        )

    # Requests.

    def submit(self, request: Request) -> Pending:
        """Request an artifact; equal requests share one future.

        With ``TZERO_COMPILE_WORKERS=1``, in a worker, and after `shutdown`, it is compiled before
        this returns.
        """
        job, is_new = self._in_flight.enter(request)
        if is_new:
            with self._in_flight.failing(job):
                job.sender = current_sender()
                if self._is_inline(job):
                    self._compile_inline(job, "no workers")
                elif not is_held(job, self._start):
                    self._start(job)
        return job.future

    def _start(self, job: Job) -> None:
        """Queue a new job; compile it here if no thread can be started."""
        try:
            self._lookups.put(job)
        except RuntimeError as error:
            if self._lookups.remove(job) or self._closed:
                self._compile_inline(job, f"no thread can be started: {error}")

    def compile(self, request: Request) -> Artifact:
        """Request an artifact and wait for it; the caller compiles it if no worker is up."""
        while True:
            job, is_new = self._in_flight.enter(request)
            try:
                return self._result(job, is_new)
            except CancelledError:
                if is_new or self._closed:
                    raise
                # The caller that compiled it was interrupted. It is still wanted here: try again.

    def _result(self, job: Job, is_new: bool) -> Artifact:
        if is_new:
            job.sender = current_sender()
            has_compilers = job.sender is not None or self._compilers.has_workers()
            why = "" if has_compilers else NOT_UP
            with self._in_flight.failing(job):
                self._compile_inline(job, "no workers" if self._is_inline(job) else why)
        elif not job.future.done():
            self._compilers.move_to_front(job)
        try:
            return job.future.result()
        except KeyboardInterrupt:
            self.stop([job.future])
            raise

    @overload
    def wait(self, scope: Mapping[str, Future[Artifact]]) -> dict[str, Artifact]: ...

    @overload
    def wait(self, scope: Iterable[Future[Artifact]]) -> list[Artifact]: ...

    def wait(
        self, scope: Mapping[str, Future[Artifact]] | Iterable[Future[Artifact]]
    ) -> dict[str, Artifact] | list[Artifact]:
        """Wait for all futures; return their artifacts as a dict or list like ``scope``.

        On a terminal, a progress bar names what is still compiling. When all are done, the first
        error is raised, with a note that names the other failures. On Ctrl-C, the jobs that nobody
        else requested are stopped.
        """
        futures = list(scope.values() if isinstance(scope, Mapping) else scope)
        if isinstance(scope, Mapping):
            named = list(scope.items())
        else:
            named = [(_name_of(future), future) for future in futures]
        for future in futures:
            if isinstance(future, Pending):
                future.check_process()
        try:
            watch(named)
        except KeyboardInterrupt:
            self.stop(futures)
            raise
        _raise_first(named)
        if isinstance(scope, Mapping):
            return {name: future.result() for name, future in named}
        return [future.result() for future in futures]

    def stop(self, futures: Iterable[Future[Artifact]]) -> None:
        """Stop the compiles that nobody else requested; their futures get `CancelledError`."""
        for job in self._in_flight.requested_once(futures):
            job.stopped = True
            queues = self._lookups, self._compilers, self._claiming
            if any(queue.remove(job) for queue in queues):
                self._in_flight.fail(job, job.stopped_error())
            elif job.slot is not None:
                job.slot.kill(job.request)

    # Workers.

    def warm_pool(self) -> None:
        """Start all workers in the background, and import in them what backends need."""
        now = settings.now()
        if not (self._closed or has_no_workers(now)):
            self._compilers.start_workers(now)

    def wait_pool_ready(self, timeout: float | None = None) -> bool:
        """Wait for workers that are being started; return whether there are any. Starts none."""
        if self._closed or has_no_workers(settings.now()):
            return True
        return self._compilers.wait_warm(timeout) and self._compilers.has_workers()

    def quiesce(self) -> None:
        """End idle workers now and busy ones after their work, unless more is queued; the next
        request starts one again."""
        self._compilers.stop_idle()

    def wakeup(self) -> None:
        """Start the workers again after `quiesce`."""
        self.warm_pool()

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return self._compilers.workers()

    def shutdown(self) -> None:
        """Stop all jobs, and end workers and threads. Later requests are compiled by the caller."""
        self._closed = True
        for job in self._in_flight.jobs():
            job.stopped = True
        queued = self._lookups.close() + self._claiming.close() + self._compilers.close()
        sent = [job for job in self._in_flight.jobs() if job.sender and self._compilers.remove(job)]
        for job in queued + sent:
            self._claiming.fail(job, job.stopped_error())
        self._lookups.join(JOIN_TIMEOUT)
        self._compilers.join(JOIN_TIMEOUT)
        self._delivery.drain(JOIN_TIMEOUT)

    def reset_after_fork(self) -> None:
        """In a forked child: start empty, and leave alone what belongs to the parent."""
        _inherited.append(dict(vars(self)))
        self._compilers.disown()
        self._reset()

    # Counters.

    def stats(self) -> CompileStats:
        """Return counts since the service was made."""
        return self._accounting.stats()

    def top(self, count: int = 10) -> list[Cost]:
        """Return the kernels whose compiles took longest, longest first."""
        return self._accounting.top(count)

    def reloaded(self) -> None:
        """Count a kernel whose source this process read again to compile it itself."""
        self._accounting.reloaded()

    # The stages of a job: caches, compiler, caches.

    def _is_inline(self, job: Job) -> bool:
        # A compiler on a thread of the service may ask for more, and must not wait for that thread.
        if self._closed or events.relays():
            return True
        return job.sender is None and has_no_workers(job.settings)

    def _look_up(self, _: None, job: Job) -> None:
        """Look into the caches, on a lookup thread; queue the job if they miss."""
        with self._in_flight.relayed(job):
            try:
                if not self._is_found(job):
                    self._compilers.enqueue(job)
            except BaseException as error:
                self._in_flight.fail(job, error)

    def _compile_inline(self, job: Job, why: str) -> None:
        """Look into the caches and compile, both in the caller's thread. With an empty ``why``, a
        backend written in Python is left to the workers."""
        try:
            if self._is_found(job):
                return
            is_sent = job.sender is not None
            if not why and (is_sent or find(job.request.backend).runs == "process"):
                self._compilers.enqueue(job, first=True)
                return
            if why == NOT_UP and find(job.request.backend).runs == "process":
                self._compilers.warm_soon(job.settings)
        except Exception as error:
            self._claiming.fail(job, error)
            return
        try:
            if self._claiming.begin_here(job):
                self._compilers.run_here(job, "inline", why or "the caller waits")
        except Exception as error:
            self._claiming.fail(job, error)
        except BaseException:  # Ctrl-C
            self._claiming.end(job)
            raise

    def _is_found(self, job: Job) -> bool:
        """Whether a cache has the artifact; if so, the job is finished."""
        job.raise_if_stopped()
        found = self._stores(job.settings).get(job.request.digest)
        if found is None:
            sealed.check("compile", job.request.name)
            return False
        try:
            artifact = Artifact.decode(found.payload)
        except Malformed as error:
            reason = f"an entry of the {found.layer} cache is replaced: {error}"
            job.replaces = True
            events.emit(events.Event("cache", job.request.name, reason))
            return False
        self._accounting.hit(job.request, found.layer)
        size, fetched_as = len(found.payload), found.fetched_as
        self._in_flight.finish(job, artifact, size, fetched_as=fetched_as)
        return True

    def _store(self, job: Job, payload: bytes, run: CompileRun) -> None:
        """Put a compiled artifact into the caches, and finish its job with the one that counts."""
        artifact = Artifact.decode(payload)
        counts, fetched_as = self._claiming.publish(job, payload)
        try:
            artifact = Artifact.decode(counts)
        except Malformed:  # reported when it is next read; it came while this was compiled
            counts = payload
        self._in_flight.finish(job, artifact, len(counts), run, fetched_as)


_inherited: list[object] = []  # never freed: finalizers would affect the parent's workers


def _name_of(future: Future[Artifact]) -> str:
    return future.request.name if isinstance(future, Pending) else "a kernel"


_MOST_NAMED = 5
"""How many of the kernels that failed are named."""


def _raise_first(named: Iterable[tuple[str, Future[Artifact]]]) -> None:
    """Raise the first error, with a note about the others; return if there is none."""
    failed = [(name, error) for name, f in named if (error := f.exception()) is not None]
    if not failed:
        return
    (_, first), *others = failed
    if others:
        shown = [f"{name}: {type(error).__name__}" for name, error in others[:_MOST_NAMED]]
        note = f"{len(others)} more failed: {'; '.join(shown)}"
        if len(others) > len(shown):
            note += f"; and {len(others) - len(shown)} more"
        if note not in getattr(first, "__notes__", ()):
            first.add_note(note)
    raise first


_service_lock = locks.lock()  # held while `_service` is made
_service: AsyncCompile | None = None


def service() -> AsyncCompile:
    """Return the service of this process, made at first use.

    >>> service() is service()
    True
    """
    global _service
    if _service is None:
        with _service_lock:
            if _service is None:
                _service = AsyncCompile()
    return _service
