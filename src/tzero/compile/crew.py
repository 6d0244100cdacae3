"""Threads that take work from one queue; they come with the work, and go when there is none.

::

    give ──► queue ──► a thread, with a hand of its own ──► do(hand, work)

Enters: work, of any kind. Leaves: calls of ``do``, each on a thread of the crew, which has made a
hand with ``hire`` and keeps it as long as it lives. It must not know what the work is; ``do`` must
not raise. Giving is cheap: whoever gives starts at most one thread, which starts others as needed.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Crew"]

H = TypeVar("H")
W = TypeVar("W")


class Crew(Generic[H, W]):
    """Some threads, and the queue that feeds them.

    >>> done = threading.Event()
    >>> crew = Crew("example", hire=list, do=lambda hand, work: work.set(), size=2, idle=60)
    >>> crew.give(done)
    >>> done.wait()
    True
    >>> crew.close()
    []
    >>> crew.join(5)
    True
    """

    def __init__(
        self,
        name: str,
        *,
        hire: Callable[[], H],
        do: Callable[[H, W], None],
        size: int,
        idle: float,
        warm: Callable[[H], None] = lambda hand: None,
        part: Callable[[H], None] = lambda hand: None,
    ) -> None:
        self.name = name
        self.size = size
        """How many threads there may be."""
        self.idle = idle
        """After how many seconds without work a thread ends."""
        self._hire, self._do, self._warm, self._part = hire, do, warm, part
        # Protects all below; a thread waits on it for work, and `wait_warm` for threads.
        self._change = threading.Condition(threading.Lock())
        self._queue: deque[W] = deque()
        self._threads: dict[threading.Thread, H] = {}  # all that live, also those about to end
        self._serving = 0  # those that will come for more work
        self._coming = 0  # those that are promised and not yet there
        self._waiting = 0
        self._warming = 0
        self._dismissed = 0  # raised to make all that wait end
        self._closed = False

    def give(self, work: W, first: bool = False) -> None:
        """Queue some work; ``first``: before all that is there."""
        with self._change:
            if self._closed:
                raise RuntimeError(f"the crew {self.name} is closed")
            if first:
                self._queue.appendleft(work)
            else:
                self._queue.append(work)
            start = self._is_short()
            self._coming += start
            self._change.notify_all()
        if start:
            self._start(warm=False)

    def hurry(self, work: W) -> None:
        """Move work to the front, if it is still queued."""
        with self._change:
            if work in self._queue:
                self._queue.remove(work)
                self._queue.appendleft(work)

    def take_back(self, work: W) -> bool:
        """Remove work that is still queued; whether it was."""
        with self._change:
            if work not in self._queue:
                return False
            self._queue.remove(work)
            return True

    def fill(self) -> None:
        """Start all the threads there may be; each warms its hand before it takes work."""
        with self._change:
            missing = self.size - self._serving - self._coming
            missing = 0 if self._closed else max(missing, 0)
            self._coming += missing
            self._warming += missing
        for _ in range(missing):
            self._start(warm=True)

    def expect(self) -> None:
        """Let `wait_warm` wait for a `fill` that is to come, until `settle`."""
        with self._change:
            self._warming += 1

    def settle(self) -> None:
        """The `fill` that was expected has come."""
        with self._change:
            self._warming -= 1
            self._change.notify_all()

    def wait_warm(self, timeout: float | None) -> bool:
        """Wait until no thread warms its hand; whether that came in time."""
        with self._change:
            return self._change.wait_for(lambda: not self._warming, timeout)

    def hands(self) -> list[H]:
        """The hands of the threads there are."""
        with self._change:
            return list(self._threads.values())

    def dismiss(self) -> None:
        """Let the threads that have no work end now."""
        with self._change:
            self._dismissed += 1
            self._change.notify_all()

    def close(self) -> list[W]:
        """Take no more work, and let threads end after what they are at; the work not begun."""
        with self._change:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._change.notify_all()
        return left

    def join(self, timeout: float) -> bool:
        """Wait until the threads are gone, except the one that calls; whether they are."""
        me = threading.current_thread()
        with self._change:
            gone = self._change.wait_for(
                lambda: not self._coming and not self._threads.keys() - {me}, timeout
            )
        return gone

    def _is_short(self) -> bool:
        """Whether the queue calls for one more thread; the lock is held by the caller."""
        more = len(self._queue) > self._waiting + self._coming
        return more and self._serving + self._coming < self.size

    def _start(self, warm: bool) -> None:
        try:
            threading.Thread(target=self._serve, args=(warm,), name=self.name, daemon=True).start()
        except BaseException:
            with self._change:
                self._coming -= 1
                self._warming -= warm
                self._change.notify_all()
            raise

    def _serve(self, warm: bool) -> None:
        """The life of one thread."""
        # What a thread starts inherits this: no worker process sees Ctrl-C before it ignores it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        me = threading.current_thread()
        hand = self._hire()
        with self._change:
            self._coming -= 1
            self._serving += 1
            self._threads[me] = hand
        try:
            if warm:
                try:
                    self._warm(hand)
                finally:
                    with self._change:
                        self._warming -= 1
                        self._change.notify_all()
            for work in iter(self._next, None):
                self._do(hand, work)
                del work
        finally:
            self._part(hand)
            with self._change:
                del self._threads[me]
                self._change.notify_all()

    def _next(self) -> W | None:
        """Wait for work; ``None``: there is none for this thread, which is to end."""
        with self._change:
            dismissed = self._dismissed
            self._waiting += 1
            try:
                self._change.wait_for(
                    lambda: self._queue or self._closed or self._dismissed != dismissed, self.idle
                )
            finally:
                self._waiting -= 1
            if not self._queue or self._serving > self.size:
                self._serving -= 1  # from here on, what is given starts another
                return None
            work = self._queue.popleft()
            more = self._is_short()
            self._coming += more
        if more:
            self._start(warm=False)
        return work
