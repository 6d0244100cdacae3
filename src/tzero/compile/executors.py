"""`on`: compile requests are sent to an executor of the user's, such as a cluster.

::

    a job that no cache has ── Sending.send ── Executor.submit(compile_there, Request) ──► anywhere
      ▲                          │    ▲                                                       │
      │ store, finish, fail      │    └──────────────── Future: an Answer ◄───────────────────┘
      └──────────────────────────┤
      ┌──────────────────────────┘ no answer: another attempt, then this machine
      ▼
    Compilers: workers and threads of this process

Enters: an executor, and jobs. Leaves: for each job the answer, or why this process has to compile
it. It must not know how an executor works, nor what is compiled.

A lost executor fails no compile. One that refuses work, or finishes nothing for as long as one
compile may take, is not asked again for `AGAIN` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from tzero import locks
from tzero.compile.backend import find
from tzero.compile.executor_task import Answer, compile_there, this_process
from tzero.compile.pending import Job
from tzero.compile.request import Artifact, Malformed
from tzero.events import Event, emit

__all__ = ["On", "Owner", "Sending", "current", "on"]

ATTEMPTS = 3
"""How often a request is sent before this process compiles it."""

AGAIN = 60.0
"""Seconds for which a lost executor is not asked."""


class Owner(Protocol):
    """What is done with jobs when an executor has answered, or cannot.

    ::

        sending.send(job, owner)
    """

    def answered(self, job: Job, answer: Answer) -> None:
        """The job is compiled, or its compiler has failed."""

    def unanswered(self, job: Job, why: str) -> None:
        """The executor cannot compile it."""

    def relayed(self, job: Job | None) -> AbstractContextManager[None]:
        """The state in which a thread of the service works on a job."""


@dataclass(eq=False, slots=True)
class _Sent:
    """A job at the executor."""

    job: Job
    owner: Owner
    future: Future[Any] | None = None
    attempts: int = 0
    why: str = ""  # the latest attempt failed


class Sending:
    """The jobs that are at one executor, and the thread that takes their answers.

    ::

        Sending(executor).send(job, owner)
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._changed = locks.condition()  # protects everything below
        self._sent: set[_Sent] = set()
        self._answers: deque[tuple[_Sent, Future[Any]]] = deque()
        self._is_running = False
        self._progress = 0.0  # when something was last sent to an idle executor, or answered
        self._limit = 0  # seconds without progress after which the executor is lost; 0: none
        self._lost, self._lost_until = "", 0.0

    def send(self, job: Job, owner: Owner) -> None:
        """Send a job. Where the executor does not take it, ``owner`` is told at once."""
        sent = _Sent(job, owner)
        if not hasattr(find(job.request.backend), "for_this_machine"):
            sent.why = (
                f"its backend {job.request.backend!r} does not say whether another machine has the "
                "same tools"
            )
            self._give_up(sent)
            return
        with self._changed:
            self._limit = job.settings.compile_timeout
            if time.monotonic() < self._lost_until:
                sent.why = self._lost
        if sent.why:
            self._give_up(sent, logging.INFO)  # its loss was reported
        else:
            self._try(sent)

    def stop(self, job: Job) -> None:
        """Forget a job that was stopped."""
        with self._changed:
            found = [sent for sent in self._sent if sent.job is job]
            self._sent.difference_update(found)
            self._changed.notify_all()
        for sent in found:
            if sent.future is not None:
                sent.future.cancel()

    def _try(self, sent: _Sent) -> None:
        request, limit = sent.job.request, sent.job.settings.compile_timeout
        if sent.job.stopped:
            return
        while sent.attempts < ATTEMPTS:
            sent.attempts += 1
            try:
                future = self.executor.submit(compile_there, request, this_process(), limit)
            except Exception as error:  # of any executor: broken, shut down, unreachable
                sent.why = _words(error)
                continue
            sent.future = future
            if self._enter(sent):
                future.add_done_callback(lambda done: self._done(sent, done))
                return
            break
        else:
            if sent.future is None:  # it has taken nothing
                self._lose(sent.why)
        self._give_up(sent)

    def _enter(self, sent: _Sent) -> bool:
        """Note that a job is at the executor, and start the thread; False where none starts."""
        with self._changed:
            if not self._sent:
                self._progress = time.monotonic()
            self._sent.add(sent)
            self._changed.notify_all()
            if self._is_running:
                return True
            # A daemon thread: an executor that never answers must not keep the process from ending.
            thread = threading.Thread(target=self._work, name="tzero-executor", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._sent.discard(sent)
                sent.why = f"no thread can be started: {error}"
                return False
            self._is_running = True
            return True

    def _done(self, sent: _Sent, future: Future[Any]) -> None:
        # On a thread of the executor: nothing of ours may run here.
        with self._changed:
            self._answers.append((sent, future))
            self._changed.notify_all()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            for sent, future in found:
                with sent.owner.relayed(sent.job):
                    self._take(sent, future)

    def _next(self) -> list[tuple[_Sent, Future[Any] | None]] | None:
        """Wait for the next answer, or for the loss of the executor: then all jobs that it has,
        without answers. None: nothing is left."""
        with self._changed:
            while not self._answers:
                if not self._sent:
                    self._is_running = False
                    return None
                left = self._progress + self._limit - time.monotonic() if self._limit else None
                if left is not None and left <= 0:
                    stalled, self._sent = self._sent, set()
                    self._lose(f"it has finished nothing for {self._limit} s")
                    return [(sent, None) for sent in stalled]
                self._changed.wait(left)
            sent, future = self._answers.popleft()
            self._progress = time.monotonic()
            if sent not in self._sent:  # stopped, or its executor was lost
                return []
            self._sent.remove(sent)
            return [(sent, future)]

    def _take(self, sent: _Sent, future: Future[Any] | None) -> None:
        job, name = sent.job, sent.job.request.name
        if job.stopped:
            return
        if future is None:
            assert sent.future is not None
            sent.future.cancel()
            sent.why = self._lost
            self._give_up(sent)
            return
        try:
            answer = _answer_of(future)
        except BaseException as error:  # of any executor; CancelledError too
            sent.why = _words(error)
        else:
            if not answer.passing:
                sent.owner.answered(job, answer)
                return
            assert answer.failure is not None
            sent.why = f"{answer.where}: {answer.failure.problem}".partition("\n")[0]
        if sent.attempts < ATTEMPTS:
            reason = f"attempt {sent.attempts} failed, it is sent again: {sent.why}"
            emit(Event("fallback", name, reason))
        self._try(sent)

    def _lose(self, why: str) -> None:
        with self._changed:
            self._lost = f"the executor is lost: {why}"
            self._lost_until = time.monotonic() + AGAIN

    def _give_up(self, sent: _Sent, level: int | None = None) -> None:
        reason = f"this process compiles it, not the executor: {sent.why}"
        emit(Event("fallback", sent.job.request.name, reason), level)
        sent.owner.unanswered(sent.job, sent.why)


def _answer_of(future: Future[Any]) -> Answer:
    answer = future.result()
    if not isinstance(answer, Answer):
        raise TypeError(f"the executor returned a {type(answer).__name__}, not an Answer")
    if answer.payload is not None:
        Artifact.decode(answer.payload)
    elif answer.failure is None:
        raise Malformed("the answer has neither an artifact nor a failure")
    return answer


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")


_lock = locks.lock()  # protects writes to `_active`
_active: tuple[Sending, ...] = ()


def current() -> Sending | None:
    """The executor that was chosen last and is in force; None: this process compiles.

    >>> current() is None
    True
    """
    return _active[-1] if _active else None


class On:
    """Requests go to an executor, until `end`. `on` makes it; a ``with`` block ends it.

    ::

        with tzero.compile.on(executor):
            tzero.precompile([(scale, x, 2.0)])
    """

    def __init__(self, executor: Executor) -> None:
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(
                f"tzero.compile.on takes an executor, which has a method submit, and not a "
                f"{type(executor).__name__}"
            )
        global _active
        self._sending = Sending(executor)
        with _lock:
            _active = (*_active, self._sending)

    @property
    def executor(self) -> Executor:
        """The executor."""
        return self._sending.executor

    def end(self) -> None:
        """Send nothing more. What was sent is still waited for; the executor is left as it is."""
        global _active
        with _lock:
            _active = tuple(each for each in _active if each is not self._sending)

    def __enter__(self) -> On:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def on(executor: Executor) -> On:
    """Send compile requests to an executor from now on, in all threads; in a ``with`` block, until
    it ends.

    Any `concurrent.futures.Executor` will do. A request is text, and its result an `Artifact`;
    nothing else is pickled. Where the executor fails, this process compiles, and an event says why.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as threads, on(threads) as sending:
    ...     sending.executor is threads
    True
    """
    return On(executor)


def _after_fork() -> None:
    """In a forked child: the executor and its threads are the parent's."""
    global _active
    _active = ()


locks.after_fork(_after_fork)
