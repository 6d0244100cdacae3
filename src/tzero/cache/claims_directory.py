"""Marks in a directory, one file each, for processes that share a file system.

::

    root/ab/ab12...              the first mark: it is there, or nobody has claimed ab12...
    root/ab/ab12....<hash>       the mark that took over from the one with this hash, and so on

Enters: names and marks. Leaves: marks. It must not know what a mark means, except that its first
line names its owner and that the second one changes.

Network file systems share no locks that could be relied on. But a link, or an exclusive create, is
made by their server: of two processes one succeeds. So each mark has exactly one place for the mark
that takes over from it, named by the owner of the mark before: whoever comes late with an old mark
in mind finds that place taken, or a mark that nothing leads to, which counts for nothing. An owner
writes its own file only, so one that was stopped and wakes cannot undo a later claim.

A file may be empty: marks are not forced to the disk, and where there are no links one is created
before it is written. Such a file is not "no mark": its place is taken. It reads as a text that
names it, which is no mark, and which can be taken over like one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from contextlib import suppress

from tzero import ownership

__all__ = ["Directory"]

MOST = 1000
"""How many marks may follow each other; each is a claim whose owner was lost."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class Directory:
    """A board in a directory. With ``private``, it must belong to this user alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     board = Directory(root)
    ...     board.swap("ab", "", "one\\n1", 10), board.swap("ab", "", "two\\n1", 10)
    ...     board.swap("ab", "one\\n1", "two\\n1", 10), board.read("ab")
    (True, False)
    (True, 'two\\n1')
    """

    def __init__(self, root: str, *, private: bool = False) -> None:
        self.shown = root
        self._root = root
        self._private = private

    def read(self, name: str) -> str:
        """Return the mark of a name; empty: none."""
        return self._followed(name)[-1][1]

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        """Replace the mark that was seen by another; return False if another is there now."""
        followed = self._followed(name)
        path, found = followed[-1]
        if found != seen:
            return False
        if not mark:
            for each, _ in followed:  # the first one first: from then on, the claim is free
                _remove(each)
            return True
        if seen and _owner(seen) == _owner(mark):
            return _rewrite(path, seen, mark)
        place = path if not seen else self._after(name, seen)
        if not self._create(place, mark):
            return False
        if self.read(name) == mark:
            return True
        _remove(place)  # what came before was removed meanwhile, so nothing leads here
        return False

    def _place(self, name: str) -> str:
        return os.path.join(self._root, name[-2:], name)

    def _after(self, name: str, mark: str) -> str:
        """The place of the mark that takes over from this one."""
        return f"{self._place(name)}.{hashlib.sha256(_owner(mark).encode()).hexdigest()[:32]}"

    def _followed(self, name: str) -> list[tuple[str, str]]:
        """Paths and marks, from the first to the one that counts, which may be empty."""
        path = self._place(name)
        followed = [(path, _content(path))]
        while followed[-1][1] and len(followed) < MOST:
            path = self._after(name, followed[-1][1])
            found = _content(path)
            if not found:
                break
            followed.append((path, found))
        return followed

    def _create(self, path: str, mark: str) -> bool:
        """Create a file with a mark in it; return False if there is one."""
        folder = os.path.dirname(path)
        if self._private:
            with suppress(FileNotFoundError):
                ownership.check(self._root)
        temporary = f"{path}.{secrets.token_hex(16)}.tmp"
        try:
            file = self._opened(temporary)
        except FileNotFoundError:  # the first in this directory
            if self._private:
                ownership.make(folder)
            else:
                os.makedirs(folder, exist_ok=True)
            file = self._opened(temporary)
        try:
            try:
                ownership.write_all(file, mark.encode())
            finally:
                os.close(file)
            return self._linked(temporary, path, mark)
        finally:
            _remove(temporary)

    def _linked(self, temporary: str, path: str, mark: str) -> bool:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # The server's first reply may have been lost, after it had made the link.
            return os.stat(temporary).st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                file = self._opened(path)
            except FileExistsError:
                return False
            try:
                try:
                    ownership.write_all(file, mark.encode())
                finally:
                    os.close(file)
            except BaseException:  # such as a full disk: leave no place without a mark
                _remove(path)
                raise
        return True

    def _opened(self, path: str) -> int:
        if self._private:
            return ownership.create(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _owner(mark: str) -> str:
    return mark.partition("\n")[0]


def _content(path: str) -> str:
    """The mark of a file; empty if there is no file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    try:
        found = os.read(file, 1 << 22).decode(errors="replace")
    finally:
        os.close(file)
    return found or f"(empty: {os.path.basename(path)})"


def _rewrite(path: str, seen: str, mark: str) -> bool:
    """Change a mark in its file; return False if the file is gone or has another mark. It is the
    file that was opened and read, so never that of another owner."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        if os.read(file, 1 << 22).decode(errors="replace") != seen:
            return False
        os.pwrite(file, mark.encode(), 0)
        return os.fstat(file).st_nlink > 0
    finally:
        os.close(file)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):  # another process did
        os.unlink(path)
