"""What is under way: the future that callers hold, and the job behind it.

Enters: a request. Leaves: a `Pending`, which all who ask for the same thing share. It must not know
who will compile it.
"""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from tzero.compile.pool import Slot
from tzero.compile.request import Artifact, Request
from tzero.settings import Settings

__all__ = ["Job", "Pending"]


class Pending(Future[Artifact]):
    """An artifact that is to come. It knows its request, and cannot be cancelled: it may be
    somebody else's, too.

    >>> Pending(Request("cpp", "add", "", "")).cancel()
    False
    """

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request
        self._process = os.getpid()
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Artifact:
        """The artifact; waits for it."""
        self.require_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it failed with, if it did; waits for it."""
        self.require_here()
        return super().exception(timeout)

    def require_here(self) -> None:
        """Refuse to wait in a forked child, where nobody would ever answer."""
        if self._process != os.getpid() and not self.done():
            raise CancelledError(
                f"{self.request.name}: process {self._process} compiles it, from which this one "
                "was forked. Submit the request again here."
            )


@dataclass(eq=False, slots=True)
class Job:
    """A request under way, and the settings of the moment it was made.

    ::

        job = Job(request, settings.now(), Pending(request))
    """

    request: Request
    settings: Settings
    future: Pending
    asked: int = 1
    """How often it was asked for; the service's lock protects it."""
    stopped: bool = False
    """Whether nobody wants it any more."""
    slot: Slot | None = None
    """Where it is compiled, if in a worker."""

    def require_wanted(self) -> None:
        """Raise where it is not wanted any more."""
        if self.stopped:
            raise self.as_stopped()

    def as_stopped(self) -> CancelledError:
        """What it ends with when it is stopped."""
        return CancelledError(f"{self.request.name}: its compile was stopped")
