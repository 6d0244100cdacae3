"""How many compiles all processes of a user run on this machine at a time: a ticket for each.

::

    process 1 ── Place ── ticket 0 ─┐
    process 1 ── Place ── ticket 1 ─┼─ files in a directory that the processes share; a ticket is
    process 2 ── Place ── ticket 2 ─┘  the lock of a file, which ends with its process

Enters: how many tickets there are. Leaves: a ticket, or none. It must not know what is compiled,
nor how a compile is run.

Every rank of a job on a machine with many cores would otherwise start a worker for each core.
"""

from __future__ import annotations

import fcntl
import os

from tzero import locks, scratch

__all__ = ["Place"]


class Place:
    """What a thread needs to compile: a ticket, while it has one.

    >>> place = Place()
    >>> place.take(1 << 10)
    True
    >>> place.give_back()
    """

    __slots__ = ("_file",)

    def __init__(self) -> None:
        self._file: int | None = None  # a file descriptor, whose lock is the ticket

    def take(self, most: int) -> bool:
        """Take one of ``most`` tickets; return False if all are taken. True also if the processes
        of this user share no directory, or cannot lock files there."""
        if self._file is not None:
            return True
        try:
            with locks.no_fork:  # a child would inherit the ticket with the file
                self._file = _locked(most)
        except OSError:
            return True
        return self._file is not None

    def give_back(self) -> None:
        """Let another process have the ticket."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def disown(self) -> None:
        """In a forked child: leave the ticket to the parent, which has the file open too."""
        self.give_back()


def _locked(most: int) -> int | None:
    """The descriptor of the first file that nobody has locked; None if all are locked. Raises
    OSError if files cannot be locked."""
    root = scratch.shared()
    if root is None:
        raise OSError("the processes of this user share no directory")
    folder = os.path.join(root, "workers")
    os.makedirs(folder, 0o700, exist_ok=True)
    for number in range(most):
        path = os.path.join(folder, str(number))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        except BaseException:
            os.close(file)
            raise
        else:
            return file
    return None
