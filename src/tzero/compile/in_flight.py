"""Which requests are being compiled, and the artifacts that are kept in memory.

Enters: requests, and the end of each job: an artifact or an error. Leaves: one job for all equal
requests, and results in the futures that callers hold. It must not know how a job is compiled, nor
about caches outside this process.

A failed job is dropped: the next equal request is a new job.

What was fetched from a remote is trusted only under the settings, and the key, that it was fetched
with. So it is kept under the digest that the disk has for it (`tzero.cache.store`), and requests
share a job only if they trust the same remote.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager

from tzero import locks, settings
from tzero.cache.store import fetched_as
from tzero.compile.accounting import Accounting, CompileRun
from tzero.compile.backend import source_of
from tzero.compile.delivery import Delivery
from tzero.compile.pending import Job, Pending
from tzero.compile.recent import Recent
from tzero.compile.request import Artifact, Request
from tzero.events import one_line, relayed, relays

__all__ = ["InFlight"]


def _log_source(request: Request) -> None:
    source = source_of(request)
    text = f"{one_line(request.name)}: the source of {request.digest[:12]}:\n{source}"
    logging.getLogger("tzero").info(text)


class InFlight:
    """Jobs by digest, from `enter` to `finish` or `fail`.

    >>> in_flight = InFlight(Accounting(), memory=1 << 20)
    >>> request = Request("cpp", "add", "int main() {}", "gcc 12")
    >>> job, is_new = in_flight.enter(request)
    >>> in_flight.enter(request) == (job, False)
    True
    >>> in_flight.finish(job, Artifact({}), size=10)
    >>> job.future.result(), in_flight.jobs()
    (Artifact(files={}, facts={}), [])
    """

    def __init__(
        self, accounting: Accounting, memory: int, delivery: Delivery | None = None
    ) -> None:
        self._accounting = accounting
        self._delivery = delivery or Delivery()
        self._lock = locks.lock()  # protects the two below, and `Job.requests`
        self._jobs: dict[str, Job] = {}  # by `Job.place`
        self._recent = Recent(memory)

    def enter(self, request: Request) -> tuple[Job, bool]:
        """Return the job of a request, and whether it is new, so that the caller must start it."""
        digest, now = request.digest, settings.now()
        place = fetched_as(now, digest)
        with self._lock:
            job = self._jobs.get(place)
            if job is not None:
                job.requests += 1
            else:
                kept = self._recent.get(digest) or self._recent.get(place)
        self._accounting.requested(joined=job is not None)
        if job is not None:
            return job, False
        job = Job(request, now, Pending(request), place)
        if kept is not None:
            self._accounting.hit(request, "memory")
            job.future.set_result(kept)
            return job, False
        with self._lock:
            other = self._jobs.setdefault(place, job)
            if other is not job:
                other.requests += 1
        return other, other is job

    def finish(
        self,
        job: Job,
        artifact: Artifact,
        size: int,
        run: CompileRun | None = None,
        fetched_as: str = "",
    ) -> None:
        """Keep the artifact of ``size`` bytes in memory, and set the job's result, unless it has
        ended already. ``run`` says where it was compiled, ``fetched_as`` under which digest it is
        kept if it was fetched from a remote. An observer's exception fails the job."""

        def finish() -> None:
            try:
                if run is not None:
                    self._accounting.compiled(job.request, run)
                    if job.settings.log_source:
                        _log_source(job.request)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not self._delivery.is_calling():
                    raise  # Ctrl-C, meant for the caller that compiles
                self.fail(job, error)
            else:
                if self._settle(job, artifact, size, fetched_as):
                    job.future.set_result(artifact)

        self._deliver(finish)

    def fail(self, job: Job, error: BaseException, run: CompileRun | None = None) -> None:
        """Set the job's error, unless it has ended already."""

        def fail() -> None:
            if not self._settle(job):
                return
            try:
                self._accounting.failed(job.request, error, run)
            except BaseException as more:  # raised by an observer of events; the caller sees both
                error.add_note(f"An observer of events failed, too: {type(more).__name__}: {more}")
            job.future.set_exception(error)

        self._deliver(fail)

    def relayed(self, job: Job | None) -> AbstractContextManager[None]:
        """The state in which a thread of the service works on a job: users' code runs elsewhere. An
        exception of an observer fails the job."""

        def observe(call: Callable[[], None]) -> None:
            try:
                call()
            except BaseException as error:
                if job is None:
                    logging.getLogger("tzero").exception("An observer of events failed")
                else:
                    self.fail(job, error)

        return relayed(lambda call: self._delivery.put(functools.partial(observe, call)))

    def _deliver(self, call: Callable[[], None]) -> None:
        """Make a call that runs users' code: here if the caller compiles, else on a thread that the
        service does not need."""
        if relays():
            self._delivery.put(call)
        else:
            call()

    def _settle(
        self, job: Job, artifact: Artifact | None = None, size: int = 0, fetched_as: str = ""
    ) -> bool:
        """Take a job out of the table, and keep its artifact; return False if it has ended."""
        with self._lock:
            if job.settled:
                return False
            job.settled = True
            if self._jobs.get(job.place) is job:
                del self._jobs[job.place]
            if artifact is not None:
                self._recent.put(fetched_as or job.request.digest, artifact, size)
        return True

    @contextmanager
    def failing(self, job: Job) -> Iterator[None]:
        """Fail the job if the block raises, so that nobody waits for a job that never started."""
        try:
            yield
        except BaseException:
            self.fail(job, job.stopped_error())
            raise

    def jobs(self) -> list[Job]:
        """Return all jobs in flight."""
        with self._lock:
            return list(self._jobs.values())

    def requested_once(self, futures: Iterable[Future[Artifact]]) -> list[Job]:
        """Return the jobs of these futures that no other caller has requested."""
        wanted = {id(future) for future in futures}
        with self._lock:
            jobs = [job for job in self._jobs.values() if id(job.future) in wanted]
            return [job for job in jobs if job.requests == 1]
