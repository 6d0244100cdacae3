"""Temporary files: one private directory for each process, removed also after a process is killed.

::

    TMPDIR or /tmp ── tzero-1000/ (of one user) ─┬─ p-x1y2/ (of one process, which holds its lock)
                                                 └─ p-z3w4/ (nobody holds its lock: it is swept)

Enters: a prefix. Leaves: a directory that only this user can read. It must not know what is put
there.

The kernel drops a process's locks when it ends, however it ends. So a directory whose lock can be
taken belongs to nobody any more. If the usual place is gone, full or not writable, another one is
used, with an event.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tzero import locks
from tzero.events import Event, emit

__all__ = ["at_home", "directory", "folder", "shared", "sweep"]

_OTHER_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Where temporary files go if the usual place cannot be used."""

_PREFIX = "p-"

PATIENCE = 5.0
"""Seconds to wait for a process that sweeps."""


class _Own:
    """The directory of this process; all None before it is needed."""

    path: str | None = None
    lock: int | None = None  # a file descriptor; the lock ends with the process
    said: str | None = None  # the last problem that an event reported


_lock = locks.lock()  # protects `_Own`


@contextmanager
def folder(prefix: str = "tzero-") -> Iterator[str]:
    """A new directory, removed with its files when the block ends.

    >>> with folder() as made:
    ...     os.path.isdir(made)
    True
    """
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=directory(), ignore_cleanup_errors=True
    ) as made:
        yield made


def directory() -> str:
    """The directory of this process. It is removed when the process ends; if the process is killed,
    the next one removes it.

    >>> directory() == directory()
    True
    """
    # A child that is forked meanwhile would inherit files that are open, with their locks.
    with locks.no_fork, _lock:
        path = _Own.path
        if path is None or not os.path.isdir(path):
            if _Own.lock is not None:
                os.close(_Own.lock)
            path, _Own.lock = _made()
            _Own.path = path
            _at_exit(_remove, os.getpid(), path)
        return path


def shared() -> str | None:
    """The directory that all processes of this user share on this machine; None if there is none.

    ::

        os.open(os.path.join(shared(), "lock"), os.O_CREAT | os.O_RDWR)
    """
    for place in _places():
        path = os.path.join(place, f"tzero-{os.getuid()}")
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)
        if _is_private(path):
            return path
    return None


def at_home(path: str) -> str:
    """A path below ``~`` for a user who has no home: below the directory that this user's processes
    share, which lasts until the machine clears its temporary files.

    ::

        at_home("~/.cache/tzero")  # "/tmp/tzero-1000/home/.cache/tzero"
    """
    home = os.path.join(shared() or directory(), "home")
    _say(
        OSError(
            f"there is no home directory for {path}: HOME is not set, and the user has no "
            "entry in passwd"
        ),
        home,
        "Set HOME, or TZERO_CACHE_DIR.",
    )
    return os.path.join(home, *path.split("/")[1:])


def sweep() -> None:
    """Remove the directories of processes that have ended without doing so.

    >>> sweep()
    """
    root = shared()
    if root is None:
        return
    with contextlib.suppress(OSError), locks.no_fork:  # such as a file system without locks
        _sweep(root)


def _sweep(root: str) -> None:
    with _opened(root) as all_of_them:
        fcntl.flock(all_of_them, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody makes one meanwhile
        for name in os.listdir(root):
            if not name.startswith(_PREFIX):
                continue
            path = os.path.join(root, name)
            with contextlib.suppress(OSError), _opened(path) as one:
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield number
    finally:
        # Another process may have the file open, too, if something forked without Python.
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_UN)
        os.close(number)


def _made() -> tuple[str, int | None]:
    """Make a directory for this process; return its path and the descriptor of its lock."""
    sweep()
    problem: OSError | None = None
    lock: int | None
    for place in _places():
        root = os.path.join(place, f"tzero-{os.getuid()}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(root, 0o700)
            if not _is_private(root):
                # Not shared, so nobody sweeps it; but nobody else can write to it either.
                path, lock = tempfile.mkdtemp(prefix=f"tzero-{os.getuid()}-", dir=place), None
            else:
                path, lock = _make_in(root)
        except OSError as error:
            problem = problem or error
            continue
        try:
            _probe(path)
        except OSError as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(path, ignore_errors=True)
            problem = problem or error
            continue
        _say(problem, path, "Set TMPDIR to a directory that can be written.")
        return path, lock
    raise OSError(
        problem.errno if problem else None,
        f"no directory for temporary files can be used ({problem}; also tried "
        f"{', '.join(_OTHER_PLACES)}). Set TMPDIR to a directory that this user can write.",
    )


def _make_in(root: str) -> tuple[str, int | None]:
    with _opened(root) as all_of_them:
        _wait_for_sweep(all_of_them)
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def _wait_for_sweep(all_of_them: int) -> None:
    """Keep others from sweeping until this file is closed. They do so for a moment only; if that
    takes longer, go on: `directory` makes another one if this one is removed."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.flock(all_of_them, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a file system without locks: nobody sweeps there
            return
        else:
            return


def _probe(path: str) -> None:
    """Raise OSError if files cannot be written here, as on a full disk."""
    name = os.path.join(path, "probe")
    try:
        with open(name, "wb") as file:
            file.write(bytes(4096))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _places() -> Iterator[str]:
    """Where temporary files may go, the usual place first."""
    try:
        usual = tempfile.gettempdir()
    except FileNotFoundError:  # nothing can be written, not even the working directory
        usual = _OTHER_PLACES[0]
    yield usual
    yield from (place for place in _OTHER_PLACES if place != usual)


def _is_private(path: str) -> bool:
    """Whether this is a directory of this user that nobody else can write to."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    mode = found.st_mode
    return stat.S_ISDIR(mode) and found.st_uid == os.getuid() and not mode & 0o022


def _say(problem: OSError | None, path: str, advice: str) -> None:
    if problem is not None and _Own.said != str(problem):
        _Own.said = str(problem)
        emit(Event("cache", "directories", f"{problem}; {path} is used. {advice}"))


def _at_exit(function: Callable[..., None], *args: Any) -> None:
    """Call a function when this process ends. Children of `multiprocessing` do not run `atexit`,
    but run its finalizers."""
    finalize = sys.modules.get("multiprocessing.util")
    if finalize is not None:
        finalize.Finalize(None, function, args=args, exitpriority=0)
    else:
        atexit.register(function, *args)


def _remove(owner: int, path: str) -> None:
    if os.getpid() == owner:  # a child that was forked later runs this too
        shutil.rmtree(path, ignore_errors=True)


def _forget() -> None:
    """In a forked child: the directory and its lock are the parent's."""
    _Own.path = None
    if _Own.lock is not None:
        os.close(_Own.lock)  # the parent has it open, so this does not unlock it
        _Own.lock = None


locks.after_fork(_forget)
