"""Who may have written a file: only what belongs to this user, and to nobody else, is trusted.

Enters: paths of directories, and names of files in them. Leaves: bytes that only this user can have
written, `CacheRefused` for a directory that others can write to, and `Foreign` for such a file. It
must not know what the files contain.

A file is checked after it was opened, and read through the same descriptor: nobody can replace it
between the check and the read.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from tzero.errors import CacheRefused

__all__ = [
    "Foreign",
    "check",
    "create",
    "identity",
    "make",
    "not_private",
    "open_private",
    "read_all",
    "read_private",
    "write_all",
    "write_private",
]


class Foreign(Exception):
    """A file that another user may have written, and why.

    >>> str(Foreign("it is a symbolic link"))
    'it is a symbolic link'
    """


def not_private(found: os.stat_result) -> str | None:
    """Why another user may have written this file or directory; None if only this user can have."""
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, and you are user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):04o})"
    return None


def identity(path: str) -> tuple[int, ...]:
    """What the system says about a file, or the target of a link: it changes when the contents do.
    A program can set the modification time, but not the change time.

    >>> import sys
    >>> identity(sys.executable) == identity(sys.executable)
    True
    """
    found = os.stat(path)
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_dev, found.st_ino, found.st_size, *times)


def check(path: str, setting: str = "TZERO_CACHE_DIR") -> None:
    """Raise `CacheRefused` if this directory, or the target of this link, is not private; `setting`
    is the variable that chooses another."""
    _check(path, os.stat(path), setting)


def _check(path: str, found: os.stat_result, setting: str) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if problem := not_private(found):
        mine = found.st_uid == os.geteuid()
        cure = f"chmod go-w {path}" if mine else f"chown -R {os.geteuid()} {path}, if you trust it"
        raise CacheRefused(path=path, problem=problem, cure=cure, setting=setting)


def make(folder: str) -> None:
    """Create a directory and its missing parents, each with mode 0700 from the start."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # another writer created it
    except FileNotFoundError:
        above = os.path.dirname(folder)
        if above == folder:
            raise
        make(above)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def open_private(path: str, directory: int | None = None) -> tuple[int, os.stat_result]:
    """Open a file for reading, and check who may have written it; raise `Foreign` if another user.
    The caller closes the descriptor."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Foreign("it is a symbolic link") from error
        raise
    try:
        found = os.fstat(file)
        problem = not_private(found)
        if problem is None and not stat.S_ISREG(found.st_mode):
            problem = "it is not a regular file"
        if problem is not None:
            raise Foreign(problem)
    except BaseException:
        os.close(file)
        raise
    return file, found


def create(path: str, directory: int | None = None) -> int:
    """Create a file that only this user can read and write; it must not exist."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600, dir_fd=directory)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def read_all(file: int, size: int) -> bytes:
    """Read the whole file. It may have grown since ``size``, and one read may return less."""
    data = os.read(file, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def read_private(
    directory: str, name: str, setting: str = "TZERO_CACHE_DIR", *, secret: bool = False
) -> bytes | None:
    """The contents of a file in a private directory; None if there is none, or if another user may
    have written it, or read it if it is a `secret`. Raises `CacheRefused` if the directory is not
    private."""
    try:
        folder = _opened(directory, setting)
    except FileNotFoundError:
        return None
    try:
        file, found = open_private(name, folder)
    except (FileNotFoundError, Foreign):
        return None
    finally:
        os.close(folder)
    try:
        if secret and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
        return read_all(file, found.st_size)
    finally:
        os.close(file)


def write_private(directory: str, name: str, data: bytes, setting: str = "TZERO_CACHE_DIR") -> None:
    """Write a file in a private directory, which is created if needed; the directories above it get
    the usual mode, because users may share them. Other processes see the whole file or none. Raises
    `CacheRefused` if the directory is not private."""
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    make(directory)
    folder = _opened(directory, setting)
    temporary = f".{name}.{secrets.token_hex(16)}.tmp"
    try:
        file = create(temporary, folder)
        try:
            try:
                write_all(file, data)
            finally:
                os.close(file)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):  # the first error is the one to raise
                os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def _opened(directory: str, setting: str) -> int:
    """A private directory's descriptor. Files are opened relative to it, so that a directory that
    takes its place afterwards is not entered."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(directory, os.fstat(folder), setting)
    except BaseException:
        os.close(folder)
        raise
    return folder
