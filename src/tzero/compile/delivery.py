"""Run users' code for the service: observers of events, log handlers, callbacks of futures.

::

    threads of the service ── put ──► queue ──► one thread after the other ──► observers, futures

Enters: calls, from threads that the service needs. Leaves: these calls, in order, on other threads.
It must not know what they do.

One thread makes the calls, so that they keep their order. A call may wait for anything, also for a
compile whose own events are behind it in the queue. So a thread that is not back in time is left
alone with its call, and the next one goes on.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

from tzero import locks

__all__ = ["Delivery"]

PATIENCE = 0.05
"""Seconds that a call may take before the calls behind it are made on another thread."""

IDLE = 5.0
"""Seconds without calls after which a thread ends."""


class Delivery:
    """The queue, and its threads, which start on demand.

    >>> delivery = Delivery()
    >>> done = threading.Event()
    >>> delivery.put(done.set)
    >>> done.wait(60), delivery.drain(60)
    (True, True)
    """

    def __init__(self) -> None:
        self._changed = locks.condition()  # protects everything below
        self._queue: deque[Callable[[], None]] = deque()
        self._turn: object | None = None  # of the thread that makes calls now
        self._begun = 0.0  # when that thread began its call
        self._waiting = 0  # threads that wait for a turn, also those that are starting
        self._calling: set[int] = set()  # threads that make a call

    def put(self, call: Callable[[], None]) -> None:
        """Make a call on another thread. What it raises is logged."""
        with self._changed:
            self._queue.append(call)
            self._changed.notify_all()
            start = self._needs_thread()
        if start:
            self._start()

    def drain(self, timeout: float) -> bool:
        """Wait until all calls are made, but for one that the calling thread makes itself; return
        False on timeout."""
        me = {threading.get_ident()}
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._queue and not self._calling - me, timeout
            )

    def is_calling(self) -> bool:
        """Whether this runs in a call that `put` has queued."""
        return threading.get_ident() in self._calling

    def _needs_thread(self) -> bool:
        """Whether to start a thread, which counts as waiting; the caller holds the lock."""
        needed = bool(self._queue) and not self._waiting
        self._waiting += needed
        return needed

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="tzero-delivery", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: late is better than never
            self._serve(idle=0.0)

    def _serve(self, idle: float = IDLE) -> None:
        """The main function of a thread."""
        # The thread that started this one blocks SIGINT (see `thread_pool`), and what a user's code
        # starts would inherit that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        turn = object()
        try:
            while (call := self._next(turn, idle)) is not None:
                try:
                    call()
                except BaseException:  # of a user's code: the calls behind it are made all the same
                    logging.getLogger("tzero").exception("A callback failed")
                finally:
                    self._end(turn)
                del call
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _next(self, turn: object, idle: float) -> Callable[[], None] | None:
        """Wait for a turn and for a call; None: this thread must end."""
        with self._changed:
            end = time.monotonic() + idle
            while not self._queue or not self._is_free():
                now = time.monotonic()
                if not self._queue and now >= end:
                    self._waiting -= 1
                    return None
                self._changed.wait(self._begun + PATIENCE - now if self._queue else end - now)
            self._turn, self._begun = turn, time.monotonic()
            self._waiting -= 1
            self._calling.add(threading.get_ident())
            call = self._queue.popleft()
            start = self._needs_thread()
        if start:
            self._start()
        return call

    def _is_free(self) -> bool:
        """Whether it is the next thread's turn; the caller holds the lock."""
        return self._turn is None or time.monotonic() >= self._begun + PATIENCE

    def _end(self, turn: object) -> None:
        with self._changed:
            if self._turn is turn:
                self._turn = None
            self._calling.discard(threading.get_ident())
            self._waiting += 1
            self._changed.notify_all()
