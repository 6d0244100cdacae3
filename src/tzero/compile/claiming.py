"""Claims of jobs: a job is compiled here, or waits for the process that compiles it.

::

    a thread that has a job ── begin ── claimed, and still not in a cache ──► True: compile it
                                   ├─── in a cache meanwhile ───────────────► False: it is finished
                                   └─── another process has it ─────────────► False: it is parked
                                                                                     │
             compilers.enqueue ◄── claimed ── one thread asks for all of these ◄─────┘
                      finished ◄── in a cache ─┘

Enters: jobs that no cache could answer, and what was made of them. Leaves: jobs to compile, and
results in caches. It must not know how a job is compiled, nor where claims are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Protocol

from tzero import locks
from tzero.cache import Found
from tzero.cache.claims import FOUND, Claims, Lease
from tzero.cache.store import Published
from tzero.compile.accounting import CompileRun
from tzero.compile.in_flight import InFlight
from tzero.compile.pending import Job
from tzero.settings import Settings

__all__ = ["Claiming", "Stores"]


AFTER_PROGRESS = 1.0
"""Seconds after which a process without a place in the machine's budget compiles all the same, if
no other has finished meanwhile what it wants."""

DEFERRED = 0.05
"""Seconds between two looks at a job that is left to others."""


class Stores(Protocol):
    """The caches behind memory, such as `tzero.cache.Layers`.

    ::

        found = stores.get(request.digest)
    """

    def get(self, digest: str, /) -> Found | None:
        """Return the bytes of an artifact, and the layer that had them."""

    def publish(
        self, digest: str, payload: bytes, /, then: Callable[[bool], None], *, first: bool = True
    ) -> Published:
        """Keep the bytes of an artifact, and return those that count: by default the ``first``.
        ``then`` is called when others have received them, or with False if they do not."""

    @property
    def claims(self) -> Sequence[Claims]:
        """Who may make what is missing."""


class Claiming:
    """The claims of one service.

    ::

        claiming = Claiming(stores, is_found, enqueue, in_flight)
        if claiming.begin(job):
            payload, _ = claiming.publish(job, compiled(job))
    """

    def __init__(
        self,
        stores: Callable[[Settings], Stores],
        found: Callable[[Job], bool],
        start: Callable[[Job], None],
        in_flight: InFlight,
    ) -> None:
        self._stores, self._found, self._start = stores, found, start
        self._in_flight = in_flight
        # When another process last finished what is wanted here, or when that was first hoped for.
        self._progress: float | None = None
        self._changed = locks.condition()  # protects the two below
        self._parked: dict[Job, float] = {}  # when to ask again
        self._is_running = False

    def begin(self, job: Job, has_place: bool = True) -> bool:
        """Whether to compile a job now. If not, it is finished, or will be. Without a place in the
        machine's budget, a job waits for as long as other processes finish what is wanted here."""
        job.is_deferred = not has_place and self._may_defer(job)
        pause = DEFERRED if job.is_deferred else self._step(job)
        if pause is not None and job.is_cleared is None:
            self._park(job, pause)
        return job.is_cleared is True

    def _may_defer(self, job: Job) -> bool:
        """Whether a job may be left to other processes for a while: at first, and while they finish
        what is wanted here. Only those of this machine are asked, because that costs little."""
        claims = self._stores(job.settings).claims
        if job.is_cleared is not None or not (claims and claims[0].is_local):
            return False
        if self._progress is None:
            self._progress = time.monotonic()
        return not self._is_stuck()

    def _is_stuck(self) -> bool:
        return self._progress is None or time.monotonic() > self._progress + AFTER_PROGRESS

    def begin_here(self, job: Job) -> bool:
        """The same for a caller that waits itself: False only if the job is finished."""
        while (pause := self._step(job)) is not None and job.is_cleared is None:
            time.sleep(pause)
        return job.is_cleared is True

    def publish(self, job: Job, payload: bytes) -> tuple[bytes, str]:
        """Put what was made into the caches, and give the claims up; return what counts, and
        `Found.fetched_as` of it. That is another process's result if it was faster, because this
        one was stopped meanwhile."""
        layers = self._stores(job.settings)
        if any(lease.is_lost for lease in job.leases):
            found = layers.get(job.request.digest)
            if found is not None:
                self.end(job)
                return found.payload, found.fetched_as
        leases, job.leases = job.leases, []
        near = [lease for lease in leases if lease.is_local]
        far = [lease for lease in leases if not lease.is_local]

        def then(is_sent: bool) -> None:
            for lease in far:
                lease.release(has_failed=not is_sent)

        made = layers.publish(job.request.digest, payload, then, first=not job.replaces)
        for lease in near:
            lease.release(has_failed=not made.is_on_disk)
        return made.payload, ""

    def end(self, job: Job, has_failed: bool = False) -> None:
        """Give the claims of a job up. If it ``has_failed``, all who wait for it try it at once."""
        leases, job.leases = job.leases, []
        for lease in leases:
            lease.release(has_failed)

    def fail(self, job: Job, error: BaseException, run: CompileRun | None = None) -> None:
        """Give the claims of a job up, and set its error."""
        self.end(job, has_failed=not isinstance(error, CancelledError))
        self._in_flight.fail(job, error, run)

    def remove(self, job: Job) -> bool:
        """Take a parked job out; return whether it was parked."""
        with self._changed:
            is_parked = self._parked.pop(job, None) is not None
            self._changed.notify_all()
        if is_parked:
            self._forget(job)
        return is_parked

    def close(self) -> list[Job]:
        """Take all parked jobs out, and return them."""
        with self._changed:
            parked = list(self._parked)
            self._parked.clear()
            self._changed.notify_all()
        for job in parked:
            self._forget(job)
        return parked

    def _forget(self, job: Job) -> None:
        """Wait no longer for a job."""
        self.end(job)
        for claims in self._stores(job.settings).claims:
            claims.forget(job.request.digest)

    def _step(self, job: Job) -> float | None:
        """Claim a job, as far as that is possible now. Returns the seconds until it is worth asking
        again, or None if the job is cleared for compiling, or finished."""
        if job.is_cleared is not None:
            return None
        digest, limit = job.request.digest, _limit(job.settings)
        job.raise_if_stopped()
        for claims in self._stores(job.settings).claims[len(job.leases) :]:
            claim = claims.claim(digest, limit, lambda: self._found(job))
            if claim is None:
                return claims.pause(digest)
            if claim == FOUND:
                self._finished(job)
                return None
            assert isinstance(claim, Lease)
            job.leases.append(claim)
        # Look again: it may have been published between the first look and the claim.
        if any(lease.is_held for lease in job.leases) and self._found(job):
            self._finished(job)
        else:
            job.is_cleared = True
        return None

    def _watch(self, job: Job) -> float | None:
        """Look whether another process has made what a deferred job asks for; claim nothing."""
        job.raise_if_stopped()
        claims = self._stores(job.settings).claims[0]
        if not claims.is_claimed(job.request.digest):
            if self._found(job):
                self._finished(job)
                return None
            if self._is_stuck():
                return None  # queued again; it is claimed when its turn comes
        return DEFERRED

    def _finished(self, job: Job) -> None:
        self._progress = time.monotonic()
        job.is_cleared = False
        self.end(job)

    def _park(self, job: Job, pause: float) -> None:
        with self._changed:
            self._parked[job] = time.monotonic() + pause
            start = not self._is_running
            self._is_running = True
            self._changed.notify_all()
        if start:
            try:
                threading.Thread(target=self._work, name="tzero-waiting", daemon=True).start()
            except RuntimeError as error:  # at exit, or there are too many threads
                with self._changed:
                    self._is_running = False
                    self._parked.clear()
                self.fail(job, error)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            with self._in_flight.relayed(job):
                try:
                    pause = self._watch(job) if job.is_deferred else self._step(job)
                    if pause is not None:
                        self._park_again(job, pause)
                    elif not self._taken(job):
                        self.end(job)  # it was stopped while its claim was made
                    elif job.is_cleared is not False:
                        self._start(job)
                except BaseException as error:
                    self._taken(job)
                    self.fail(job, error)

    def _next(self) -> Job | None:
        """The job to ask for next; None if there is none, and the thread ends."""
        with self._changed:
            while self._parked:
                job = min(self._parked, key=self._parked.__getitem__)
                left = self._parked[job] - time.monotonic()
                if left <= 0:
                    return job
                self._changed.wait(left)
            self._is_running = False
            return None

    def _park_again(self, job: Job, pause: float) -> None:
        with self._changed:
            is_parked = job in self._parked
            if is_parked:
                self._parked[job] = time.monotonic() + pause
        if not is_parked:
            self._forget(job)  # it was stopped meanwhile

    def _taken(self, job: Job) -> bool:
        """Take a job out; return False if another thread has, because it was stopped."""
        with self._changed:
            return self._parked.pop(job, None) is not None


def _limit(settings: Settings) -> float:
    """Seconds for which a job waits for another process: its two attempts."""
    return 2.0 * settings.compile_timeout or float("inf")
