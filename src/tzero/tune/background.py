"""Searches in the background, one after the other, while calls go on.

::

    a call with a new shape ── the nearest config ──► goes on at once
          └── Job: copies of its arguments ──► queue ──► one thread ──► a process that times configs
                                                            └── before each config: `ready`

Enters: jobs, each under the key of what it searches for. Leaves: jobs done, or dropped with an
event. It must not know configs or kernels.

A job does not disturb: before each config it waits while searching is paused, and a while for a
search that a call waits for. It ends when the process is sealed, and before the interpreter ends:
that would stop the thread wherever it is, and inside torch's C++ code this aborts the process. What
a job works on is copied, and copies of more than `MOST_BYTES` are not kept.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tzero import locks, sealed
from tzero.events import Event, emit
from tzero.tune.turn import TURN

__all__ = [
    *("MOST_BYTES", "Background", "Job", "Paused", "Stopped", "background", "pause_tuning"),
    "wait_for_tuning",
]

MOST_BYTES = 1 << 30
"""The most memory of all copies that wait."""

PATIENCE = 10.0
"""Seconds that a job waits for searches in calls, before it goes on: these may wait for it."""

_LAST = 5.0  # seconds that the end of the process waits for the thread
_LOOK = 0.05  # seconds between looks at what does not wake this thread


class Stopped(Exception):
    """A job ends, because it is not wanted any more; the message says why."""


@dataclass
class Job:
    """A search: `run` is called with `Background.ready`, which it calls before each config."""

    key: str
    kernel: str
    run: Callable[[Callable[[], None]], Any]
    size: int
    """Bytes of the copies that it holds until it runs."""
    wanted: list[Callable[[Any], None]] | None = field(default_factory=list)
    """Called with its result; None once it has one."""


class Paused:
    """Searching in the background is paused: until the block ends, or `resume` is called."""

    def __init__(self, owner: Background) -> None:
        self._owner: Background | None = owner

    def resume(self) -> None:
        """Let searching go on, unless another pause is in force."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner._pause(-1)

    def __enter__(self) -> Paused:
        return self

    def __exit__(self, *error: object) -> None:
        self.resume()


class Background:
    """The queue of jobs, and the thread that runs them.

    >>> done = []
    >>> queue = Background()
    >>> queue.submit(Job("key", "add", lambda ready: done.append(ready()), 0))
    ''
    >>> queue.wait(10), done
    (True, [None])
    """

    def __init__(self) -> None:
        self._changed = locks.condition()  # protects the fields below
        self._jobs: deque[Job] = deque()
        self._running: Job | None = None
        self._dropped: Job | None = None  # the one that runs, when it is to end
        self._pauses = 0
        self._thread: threading.Thread | None = None
        self._ends = False

    def submit(self, job: Job) -> str:
        """Run a job later; returns why it is not, or ""."""
        with self._changed:
            if self._ends:
                return "the process ends"
            if sum(each.size for each in self._jobs) + job.size > MOST_BYTES:
                return f"copies of its arguments take {job.size >> 20} MiB, too much with others"
            why_not = self._start()
            if not why_not:
                self._jobs.append(job)
                self._changed.notify_all()
        return why_not

    def _start(self) -> str:
        """Start the thread, unless it runs; returns why that failed, or "". The caller holds the
        lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="tzero-tune", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # at exit, or there are too many threads
                return str(error)
            self._thread = thread
        return ""

    def join(self, key: str, use: Callable[[Any], None]) -> bool:
        """Let a job that waits or runs call this with its result too; False if there is none."""
        with self._changed:
            for each in (*self._jobs, self._running):
                if each is None or each.key != key or each is self._dropped:
                    continue
                if each.wanted is not None:
                    each.wanted.append(use)
                    return True
        return False

    def drop(self, key: str) -> None:
        """Run the job with this key no longer: someone searches for the same, and waits."""
        with self._changed:
            self._jobs = deque(each for each in self._jobs if each.key != key)
            if self._running is not None and self._running.key == key:
                self._dropped = self._running
            self._changed.notify_all()

    def pause(self) -> Paused:
        """Time nothing until the pause ends. The config that is being timed is finished."""
        self._pause(1)
        return Paused(self)

    def _pause(self, step: int) -> None:
        with self._changed:
            self._pauses += step
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no job waits or runs; False if the time is up before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def end(self) -> None:
        """Start no more jobs, end the one that runs, and wait until it has ended."""
        with self._changed:
            self._ends = True
            self._jobs.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST)

    def check(self) -> None:
        """Raise `Stopped` if the job that runs is to end."""
        with self._changed:
            if self._ends or self._running is self._dropped is not None:
                raise Stopped("a call searches for the same" if self._dropped else "it ends")
            if sealed.is_sealed():
                raise Stopped("the process is sealed")

    def ready(self) -> None:
        """Wait until the next config may be timed; `Stopped` if the job is to end."""
        patient = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                self.check()
                if not self._pauses and (_is_free() or time.monotonic() >= patient):
                    return
                self._changed.wait(_LOOK)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._ends)
                if self._ends:
                    return
                self._running = self._jobs.popleft()
            try:
                self._do(self._running)
            except BaseException:  # of an observer of events; threading prints it
                self._done()
                with self._changed:
                    self._thread = None
                    if self._jobs and self._start():
                        self._jobs.clear()
                raise
            self._done()

    def _done(self) -> None:
        with self._changed:
            self._running = self._dropped = None
            self._changed.notify_all()

    def _do(self, job: Job) -> None:
        try:
            self.ready()
            result = job.run(self.ready)
            with self._changed:
                wanted, job.wanted = job.wanted, None
            for use in wanted or ():
                use(result)
        except Stopped as why:
            emit(Event("tune", job.kernel, f"not tuned in the background any more: {why}"))
        except Exception as error:  # of any kernel; its calls go on with what they have
            if self._ends:  # what it needs may be gone already
                return
            words = f"{type(error).__name__}: {error}"
            emit(Event("tune", job.kernel, f"not tuned in the background: {words}"))

    def _forget(self) -> None:
        """In a forked child: there is no thread, and the parent does the jobs."""
        self._jobs.clear()
        self._running = self._dropped = self._thread = None


def _is_free() -> bool:
    """Whether no call waits for a search of its own."""
    if not TURN.acquire(blocking=False):
        return False
    TURN.release()
    return True


background = Background()
"""That of this process."""


def pause_tuning() -> Paused:
    """Time no configs in the background until the pause ends.

    >>> with pause_tuning():
    ...     pass  # what must not be disturbed

    The config that is being timed is finished. `Paused.resume` ends the pause too.
    """
    return background.pause()


def wait_for_tuning(timeout: float | None = None) -> bool:
    """Wait until nothing is tuned in the background any more; False if the time, in seconds, is up
    before.

    >>> wait_for_tuning(60)
    True
    """
    return background.wait(timeout)


locks.after_fork(background._forget)
atexit.register(background.end)
