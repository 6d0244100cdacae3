"""`Pending`, the future that callers hold, and `Job`, the compile behind it.

Enters: a request. Leaves: a `Pending` shared by all callers with an equal request. It must not know
who compiles it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from tzero import locks
from tzero.cache.claims import Lease
from tzero.compile.pool import Slot
from tzero.compile.request import Artifact, Request
from tzero.settings import Settings

__all__ = ["Job", "Pending", "Sender"]


class Pending(Future[Artifact]):
    """The future of an artifact. It cannot be cancelled, because other callers may share it.

    >>> Pending(Request("cpp", "add", "", "")).cancel()
    False
    """

    def __init__(self, request: Request) -> None:
        super().__init__()
        locks.register(self._condition)  # a forked child may ask for the result
        self.request = request
        self._process = os.getpid()
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Artifact:
        """Wait for the artifact."""
        self.check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; return the error, or None."""
        self.check_process()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Artifact]], Any]) -> None:
        """Call ``fn`` when it is done. What it raises is logged, also `SystemExit`, because the
        callbacks of others come after it."""
        super().add_done_callback(functools.partial(_called, fn))

    def check_process(self) -> None:
        """Raise in a forked child, where nobody would ever set the result."""
        if self._process != os.getpid() and not self.done():
            raise CancelledError(
                f"{self.request.name}: process {self._process} compiles it, and this process is "
                "a fork of that one. Submit the request again here."
            )


def _called(callback: Callable[[Future[Artifact]], Any], future: Future[Artifact]) -> None:
    try:
        callback(future)
    except (Exception, KeyboardInterrupt):
        raise  # logged by `Future`; and Ctrl-C is meant for the caller that compiles
    except BaseException:
        logging.getLogger("tzero").exception("A callback failed")


class Sender(Protocol):
    """Sends jobs to an executor: `tzero.compile.executors.Sending`.

    ::

        job.sender.send(job, compilers)
    """

    def send(self, job: Job, owner: Any, /) -> None:
        """Send a job, whose end ``owner`` is told."""

    def stop(self, job: Job, /) -> None:
        """Forget a job that was stopped."""


@dataclass(eq=False, slots=True)
class Job:
    """A request in flight, with the settings in force when it was made.

    ::

        job = Job(request, settings.now(), Pending(request), request.digest)
    """

    request: Request
    settings: Settings
    future: Pending
    place: str
    """Its key in the table of jobs in flight."""
    requests: int = 1
    """How many callers requested it; protected by the lock of `InFlight`."""
    settled: bool = False
    """Whether its result or error is decided; protected by the lock of `InFlight`."""
    stopped: bool = False
    """Whether it was cancelled."""
    slot: Slot | None = None
    """The slot that compiles it, if a worker does."""
    sender: Sender | None = None
    """Sends it to an executor, if one was chosen when it was made and has not given it back."""
    leases: list[Lease] = field(default_factory=list)
    """Its claims, in the order of `Layers.claims`; changed by the thread that has the job."""
    is_deferred: bool = False
    """Whether it is left to other processes for a while."""
    replaces: bool = False
    """Whether a cache has something else in its place."""
    is_cleared: bool | None = None
    """Whether it is to be compiled here: True after its claims, False if it was found, None before
    that is known."""

    def raise_if_stopped(self) -> None:
        """Raise `CancelledError` if it was cancelled."""
        if self.stopped:
            raise self.stopped_error()

    def stopped_error(self) -> CancelledError:
        """The error that a cancelled job ends with."""
        return CancelledError(f"{self.request.name}: its compile was stopped")
