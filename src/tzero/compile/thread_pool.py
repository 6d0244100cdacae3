"""A thread pool whose threads start on demand, each with a resource of its own, and end when idle.

::

    put ──► queue ──► a thread and its resource ──► run(resource, work)

Enters: work of any kind. Leaves: calls of ``run`` on the pool's threads. Each thread makes its
resource with ``make`` when it starts, and passes it to ``release`` when it ends; for a compile
worker the resource is a `pool.Slot`. If ``admit`` refuses it, the thread ends at once, unless it is
the only one. It must not know what the work is; ``run`` must not raise.
`ThreadPool.put` is cheap: it starts at most one thread, and that one starts more if needed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tzero import locks

__all__ = ["ThreadPool"]

REFUSED = 1.0
"""Seconds after which a pool tries again to have one more thread, if that was refused."""

R = TypeVar("R")  # the resource of a thread
W = TypeVar("W")  # work


class ThreadPool(Generic[R, W]):
    """Threads, and the queue they take work from.

    >>> done = threading.Event()
    >>> pool = ThreadPool("example", make=list, run=lambda _, work: work.set(), size=2, idle=60)
    >>> pool.put(done)
    >>> done.wait()
    True
    >>> pool.close()
    []
    >>> pool.join(60)
    True
    """

    def __init__(
        self,
        name: str,
        *,
        make: Callable[[], R],
        run: Callable[[R, W], None],
        size: int,
        idle: float,
        admit: Callable[[R], bool] = lambda resource: True,
        warm: Callable[[R], None] = lambda resource: None,
        release: Callable[[R], None] = lambda resource: None,
    ) -> None:
        self.name = name
        self.size = size
        """The maximum number of threads."""
        self.idle = idle
        """Seconds without work after which a thread ends."""
        self._make, self._run, self._warm, self._release = make, run, warm, release
        self._admit = admit
        # Protects everything below; notified whenever any of it changes.
        self._changed = locks.condition()
        self._queue: deque[W] = deque()
        self._threads: dict[threading.Thread, R] = {}  # all that are alive, also those ending
        self._serving = 0  # threads that will take more work
        self._starting = 0  # threads that are started and not yet in `_threads`
        self._waiting = 0
        self._warming = 0
        self._refused_until = 0.0  # until then no thread beside those that serve is started
        self._idle_stops = 0  # counts calls of `stop_idle`; threads without work end at a new one
        self._closed = False

    def put(self, work: W, first: bool = False) -> None:
        """Queue work; ``first``: at the front."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the thread pool {self.name} is closed")
            if first:
                self._queue.appendleft(work)
            else:
                self._queue.append(work)
            start = self._needs_thread()
            self._starting += start
            self._changed.notify_all()
        if start:
            self._start(warm=False)

    def move_to_front(self, work: W) -> None:
        """Move work to the front of the queue, if it is still queued."""
        with self._changed:
            if work in self._queue:
                self._queue.remove(work)
                self._queue.appendleft(work)

    def remove(self, work: W) -> bool:
        """Remove work from the queue; return whether it was still there."""
        with self._changed:
            if work not in self._queue:
                return False
            self._queue.remove(work)
            return True

    def start_all(self) -> None:
        """Start threads up to the maximum; each warms its resource before it takes work."""
        with self._changed:
            missing = self.size - self._serving - self._starting
            missing = 0 if self._closed else max(missing, 0)
            self._starting += missing
            self._warming += missing
        for _ in range(missing):
            self._start(warm=True)

    def announce_warming(self) -> None:
        """Make `wait_warm` wait for a `start_all` that comes later, until `end_announcement`."""
        with self._changed:
            self._warming += 1

    def end_announcement(self) -> None:
        """The announced `start_all` was called, or failed."""
        with self._changed:
            self._warming -= 1
            self._changed.notify_all()

    def wait_warm(self, timeout: float | None) -> bool:
        """Wait until no thread is warming its resource; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._warming, timeout)

    def resources(self) -> list[R]:
        """Return the resources of all threads."""
        with self._changed:
            return list(self._threads.values())

    def resources_without_lock(self) -> list[R]:
        """The same in a forked child, where the lock may be held by a thread that is gone."""
        return list(self._threads.values())

    def stop_idle(self) -> None:
        """End the threads that have no work, and the others once they have none."""
        with self._changed:
            self._idle_stops += 1
            self._changed.notify_all()

    def close(self) -> list[W]:
        """Accept no more work, and end each thread after its current work; return what was
        queued."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        return left

    def join(self, timeout: float) -> bool:
        """Wait until all threads but the calling one have ended; return False on timeout."""
        me = threading.current_thread()
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._starting and not self._threads.keys() - {me}, timeout
            )

    def _needs_thread(self) -> bool:
        """Whether the queue needs one more thread; the caller holds the lock."""
        more = len(self._queue) > self._waiting + self._starting
        if not more or self._serving + self._starting >= self.size:
            return False
        return not self._serving or time.monotonic() >= self._refused_until

    def _start(self, warm: bool) -> None:
        try:
            threading.Thread(target=self._serve, args=(warm,), name=self.name, daemon=True).start()
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._warming -= warm
                self._changed.notify_all()
            raise

    def _serve(self, warm: bool) -> None:
        """The main function of a thread."""
        # Processes started by this thread inherit the mask. So a worker process cannot be
        # interrupted by Ctrl-C before it ignores the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        me = threading.current_thread()
        resource = self._make()
        is_admitted = self._admit(resource)
        with self._changed:
            self._starting -= 1
            if not is_admitted and self._serving:
                self._refused_until = time.monotonic() + REFUSED
                self._warming -= warm
                self._changed.notify_all()
                return
            self._serving += 1
            self._threads[me] = resource
            idle_stops = self._idle_stops
        try:
            if warm:
                try:
                    self._warm(resource)
                finally:
                    with self._changed:
                        self._warming -= 1
                        self._changed.notify_all()
            while (taken := self._next(idle_stops)) is not None:
                work, idle_stops = taken
                self._run(resource, work)
                del work, taken
        finally:
            self._release(resource)
            with self._changed:
                del self._threads[me]
                self._changed.notify_all()

    def _next(self, idle_stops: int) -> tuple[W, int] | None:
        """Wait for work; return it with the count of `stop_idle` when it was taken. ``None``: this
        thread must end, for example because that count has changed since its last work. A caller
        who has the result of that work may call `stop_idle` before this thread waits."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self._queue or self._closed or self._idle_stops != idle_stops,
                    self.idle,
                )
            finally:
                self._waiting -= 1
            if not self._queue or self._serving > self.size:
                self._serving -= 1  # from here on, new work starts another thread
                return None
            work = self._queue.popleft()
            idle_stops = self._idle_stops
            more = self._needs_thread()
            self._starting += more
        if more:
            self._start(warm=False)
        return work, idle_stops
