"""Calls to something that may be down or slow: none takes longer than its patience.

::

    call ── another thread ── in time ──► result
                        └── too late ──► TimeoutError; the thread is abandoned

Enters: calls that may raise anything and take any time. Leaves: their results, or an exception
within `Reaching.patience`, and whether it is worth trying at all. It must not know what is called.

After a failure nothing is tried for a while, twice as long each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tzero import locks

__all__ = ["BACKOFF", "CONNECTING", "PATIENCE", "Reaching"]

PATIENCE = 2.0
"""Maximum seconds that a caller waits for a reply."""

CONNECTING = 10.0
"""The same for the first reply from what takes long to connect: c10d stores ask for host names,
which takes 5 s if a name server does not answer."""

BACKOFF = (5.0, 300.0)
"""Seconds without use after the first failure, and the maximum."""

THREADS = 8
"""Maximum number of threads that make calls, including abandoned ones."""

_T = TypeVar("_T")


class Reaching:
    """Makes calls with limited patience, and backs off after failures.

    >>> reaching = Reaching()
    >>> reaching.may_try() and reaching.call(lambda: 2 + 2)
    4
    >>> reaching.failed(), reaching.may_try(), reaching.failed()
    (5.0, False, None)
    """

    def __init__(
        self,
        patience: float = PATIENCE,
        backoff: tuple[float, float] = BACKOFF,
        clock: Callable[[], float] = time.monotonic,
        connecting: float = 0.0,
    ) -> None:
        self.patience = max(patience, connecting)
        self._later = patience  # once it has worked
        self._first, self._maximum = backoff
        self._clock = clock
        self._slots = locks.register(threading.BoundedSemaphore(THREADS))
        self._lock = locks.lock()  # protects the three below
        self._delay = 0.0  # the current backoff in seconds; 0: it works
        self._until = 0.0
        self._trying = False  # whether one caller tries if it works again

    def call(self, call: Callable[[], _T]) -> _T:
        """Run a call on another thread, and wait for at most `patience`. A thread that takes longer
        is abandoned. It keeps its slot until it ends, so there are at most `THREADS`."""
        patience = self.patience
        until = self._clock() + patience
        if not self._slots.acquire(timeout=patience):
            raise TimeoutError(f"{THREADS} earlier calls have not returned")
        running = _Call(call, self._slots)
        try:
            # A daemon thread, because the interpreter waits for all others without limit.
            threading.Thread(target=running.run, name="tzero-remote", daemon=True).start()
        except RuntimeError:
            self._slots.release()  # no thread can be started: at exit, or there are too many
            raise
        if not running.done.wait(max(0.0, until - self._clock())):
            raise TimeoutError(f"no reply within {patience:g} s")
        if running.error is not None:
            raise running.error
        return running.result  # type: ignore[no-any-return]

    def is_backing_off(self) -> bool:
        """Whether a failure was so recent that nothing is tried."""
        return self._delay > 0.0 and self._clock() < self._until

    def may_try(self) -> bool:
        """Whether to try; if so, the caller must call `worked` or `failed`. After a backoff one
        caller tries, until that call has succeeded or failed."""
        if self._delay == 0.0:
            return True
        with self._lock:
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self.patience
            self._trying = True
            return True

    def worked(self) -> None:
        """A call has succeeded."""
        self.patience = self._later
        if self._delay:
            with self._lock:
                self._delay, self._trying = 0.0, False

    def failed(self) -> float | None:
        """Begin or extend the backoff; return its length if this is the first failure, which is
        to be reported."""
        with self._lock:
            first = self._delay == 0.0
            # Concurrent calls fail together: that counts as one failure.
            if first or self._trying:
                self._delay = self._first if first else min(2 * self._delay, self._maximum)
                self._until = self._clock() + self._delay
                self._trying = False
            return self._delay if first else None


class _Call:
    """One call, on a thread of its own."""

    def __init__(self, call: Callable[[], Any], slots: threading.BoundedSemaphore) -> None:
        self._call = call
        self._slots = slots
        self.done = locks.register(threading.Event())
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # raised by the waiting caller, unless it has given up
            self.error = error
        finally:
            self._slots.release()
            self.done.set()
