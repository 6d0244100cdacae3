"""Shut services down at interpreter exit, and reset them in forked children.

Enters: services, when they are made. Leaves: a call of ``shutdown`` at interpreter exit, and of
``reset_after_fork`` in a forked child. It must not know what a service is.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import threading
import weakref
from typing import Protocol

from tzero import locks

__all__ = ["ProcessBound", "register", "register_exit_hook"]


class ProcessBound(Protocol):
    """An object with threads or processes, which must react to exits and forks.

    ::

        register(service)
    """

    def shutdown(self) -> None:
        """The interpreter exits: end all threads and processes."""

    def reset_after_fork(self) -> None:
        """In a forked child: start empty, and leave alone what belongs to the parent."""


_lock = locks.lock()  # protects the two below
_objects: dict[int, weakref.ref[ProcessBound]] = {}
_is_hooked = False
_finalized_in = 0  # the process whose end multiprocessing tells us


def register(bound: ProcessBound) -> None:
    """Call its methods at exits and forks, for as long as it lives.

    ::

        register(self)
    """
    number = id(bound)
    global _is_hooked
    with _lock:
        _objects[number] = weakref.ref(bound, lambda _: _objects.pop(number, None))
        is_first, _is_hooked = not _is_hooked, True
    if is_first:
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_at_exit)


def register_exit_hook() -> None:
    """Run our shutdown before loky's exit hook, which waits for its workers to finish.

    Exit hooks run in reverse order of registration, and loky registers one with each executor it
    starts. So call this after each start.

    ::

        executor.submit(work)
        register_exit_hook()
    """
    global _finalized_in
    with contextlib.suppress(RuntimeError):  # the interpreter is exiting; the hooks have run
        threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
    if _finalized_in != os.getpid():
        _finalized_in = os.getpid()
        # A process of multiprocessing waits for its children, our workers, before those hooks.
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=0)


def _alive() -> list[ProcessBound]:
    return [bound for reference in list(_objects.values()) if (bound := reference()) is not None]


def _at_exit() -> None:
    for bound in _alive():
        bound.shutdown()


def _after_fork() -> None:
    for bound in _alive():
        bound.reset_after_fork()
