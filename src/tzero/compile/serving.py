"""The work of ``tzero worker``: takes requests from a queue, compiles or times, and answers.

Enters: a queue's URL, what is served, and when to end. Leaves: how many requests were answered. It
must not know how a request is compiled, nor how configs are timed.

One thread takes requests; the compile service compiles several at a time. A search waits until
these are done, and nothing else runs beside it. Another thread renews the leases.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import FrameType
from typing import NamedTuple

from tzero import settings
from tzero.cache import stores
from tzero.cache.remote import reason_of, shown
from tzero.compile.backend import for_this_machine
from tzero.compile.executor_task import Answer, failed, place
from tzero.compile.pool import cores
from tzero.compile.redis_queue import COMPILE, Desk, Taken, read_request, redis_errors, warn_open
from tzero.compile.request import Artifact, Malformed
from tzero.compile.service import service
from tzero.events import Event, emit

__all__ = ["Searcher", "Served", "serve"]

FLUSH = 10.0
"""Seconds in which what was compiled may reach the shared cache at the end."""

_WAIT = 0.5  # seconds that one look into the queue takes, if nothing is there

Searcher = Callable[[bytes, int, bytes], Answer]
"""Makes a search from the parts of its message."""


class Served(NamedTuple):
    """How many requests a worker has answered.

    >>> Served(compiled=3, searched=1)
    Served(compiled=3, searched=1)
    """

    compiled: int
    searched: int


class _Stopped(BaseException):
    """The process was asked to end during a search."""


def serve(
    url: str,
    *,
    key: str | None,
    compiles: bool,
    search: tuple[str, Searcher] | None,
    lease: float,
    idle: float | None,
) -> Served:
    """Serve a queue; raises OSError if it cannot be reached. It ends at SIGTERM or
    SIGINT, and when nothing has come for ``idle`` seconds. ``search`` has the name of the queue of
    searches, and what makes them.

    ::

        serve("redis://host:6379/0", key=None, compiles=True, search=None, lease=30, idle=60)
    """
    names = [COMPILE] * compiles + ([] if search is None else [search[0]])
    if key is None:
        warn_open(url)
    try:
        desk = Desk(url, key, names, lease)
        return _Worker(desk, compiles, search, lease, idle).run()
    except redis_errors() as error:
        raise OSError(f"the queue {shown(url)}: {reason_of(error, url)}") from None


class _Worker:
    def __init__(
        self,
        desk: Desk,
        compiles: bool,
        search: tuple[str, Searcher] | None,
        lease: float,
        idle: float | None,
    ) -> None:
        self._desk, self._compiles, self._search = desk, compiles, search
        self._lease, self._idle = lease, idle
        self._most = settings.now().compile_workers or cores()
        self._running: dict[Future[Artifact], tuple[Taken, float]] = {}
        self._compiled = self._searched = 0
        self._is_searching = self._is_stopped = False
        self._ended = threading.Event()

    def run(self) -> Served:
        with self._signals():
            renewing = threading.Thread(target=self._renew, name="tzero-lease", daemon=True)
            self._desk.renew()
            renewing.start()
            try:
                self._loop()
            except _Stopped:
                pass  # its search goes back
            finally:
                self._ended.set()
                renewing.join()
                service().stop(list(self._running))
                with contextlib.suppress(*redis_errors()):  # then the leases end by themselves
                    self._desk.close()
        stores(settings.now()).flush(FLUSH)
        return Served(self._compiled, self._searched)

    def _loop(self) -> None:
        last = time.monotonic()
        while not self._is_stopped:
            came = self._step()
            now = time.monotonic()
            if came or self._running:
                last = now
            elif self._idle is not None and now - last >= self._idle:
                return

    def _step(self) -> bool:
        """Answer what is done, and take what comes; return whether anything came."""
        self._answer_done(0.0)
        if self._search is not None:
            block = 0.0 if self._compiles else _WAIT
            for taken in self._desk.take(self._search[0], 1, block):
                while self._running:
                    self._answer_done(None)
                self._make_search(taken)
                return True
        if not self._compiles:
            return False
        free = self._most - len(self._running)
        if not free:
            self._answer_done(_WAIT)
            return True
        came = self._desk.take(COMPILE, free, 0.02 if self._running else _WAIT)
        for taken in came:
            self._start(taken)
        return bool(came)

    def _start(self, taken: Taken) -> None:
        start = time.perf_counter()
        try:
            future = service().submit(for_this_machine(read_request(taken.message)))
        except Exception as error:  # other tools, no such backend, another tzero
            self._desk.answer(taken, failed(error, start))
            return
        while future in self._running:  # the same request of another client
            self._answer_done(None)
        self._running[future] = taken, start

    def _answer_done(self, seconds: float | None) -> None:
        """Answer the requests that are compiled; wait for one, if ``seconds`` is not 0."""
        done = wait(self._running, seconds, return_when=FIRST_COMPLETED).done
        for future in done:
            taken, start = self._running.pop(future)
            error = future.exception()
            if error is not None:
                answer = failed(error, start)
            else:
                seconds_taken = time.perf_counter() - start
                payload = future.result().encode()
                answer = Answer(payload, None, False, place(), os.getpid(), seconds_taken)
                self._compiled += 1
            self._desk.answer(taken, answer)

    def _make_search(self, taken: Taken) -> None:
        assert self._search is not None
        start = time.perf_counter()
        try:
            files, length = taken.message.files, taken.message.facts.get("length")
            if type(length) is not int or files.keys() != {"parcel", "task"}:
                raise Malformed("it is no search")
            self._is_searching = True
            try:
                answer = self._search[1](files["parcel"], length, files["task"])
            finally:
                self._is_searching = False
        except Exception as error:
            answer = failed(error, start)
        self._searched += answer.payload is not None
        self._desk.answer(taken, answer)

    def _renew(self) -> None:
        while not self._ended.wait(self._lease / 3):
            try:
                self._desk.renew()
            except redis_errors() as error:  # the thread that takes requests meets it too
                emit(Event("fallback", "worker", f"its leases could not be renewed: {error}"))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """End at SIGTERM and SIGINT: at once during a search, else after the present look."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._is_stopped = True
            if self._is_searching:
                raise _Stopped

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
