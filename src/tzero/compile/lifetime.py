"""What a process's services do when it ends, and when it forks.

Enters: services, as they are made. Leaves: a call of ``shutdown`` when the interpreter ends, and of
``leave_to_parent`` in a forked child. It must not know what a service is.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Protocol

__all__ = ["Living", "register", "see_to_exit"]


class Living(Protocol):
    """What must be told of ends and forks.

    ::

        register(living)
    """

    def shutdown(self) -> None:
        """The interpreter ends: end, and leave nothing behind."""

    def leave_to_parent(self) -> None:
        """This is a forked child: begin anew, and leave alone what belongs to the parent."""


_lock = threading.Lock()  # protects the two below
_all: dict[int, weakref.ref[Living]] = {}
_is_hooked = False


def register(living: Living) -> None:
    """Tell it of ends and forks, as long as it lives.

    ::

        register(self)
    """
    number = id(living)
    global _is_hooked
    with _lock:
        _all[number] = weakref.ref(living, lambda _: _all.pop(number, None))
        is_first, _is_hooked = not _is_hooked, True
    if is_first:
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_end)


def see_to_exit() -> None:
    """Be asked before loky when the interpreter ends: it waits for what its workers are at. Who was
    registered last is asked first, and loky registers with each executor that begins; so this is
    to be called after each.

    ::

        executor.submit(work)
        see_to_exit()
    """
    with contextlib.suppress(RuntimeError):  # the interpreter ends just now, and has asked
        threading._register_atexit(_end)  # type: ignore[attr-defined]


def _living() -> list[Living]:
    return [one for reference in list(_all.values()) if (one := reference()) is not None]


def _end() -> None:
    for one in _living():
        one.shutdown()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for one in _living():
        one.leave_to_parent()
