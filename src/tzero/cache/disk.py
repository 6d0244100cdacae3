"""Cache entries in a private directory, one file per entry, named by the digest of its request.

::

    root/                      mode 0700, owned by us, not writable for others
      ab/                      likewise
        ab12...                one entry; entry.py has its format
        .ab12....tmp           an entry being written, under a random name
      ledger                   the size at the last count, and what was written since
      lock                     held by the process that evicts

    put ── temporary file ── rename ──► entry ── ledger over the limit ──► evict
    get ── open, read, verify ──► payload     └─ damaged: event, removed, a miss

Enters: payloads by digest. Leaves: the same payloads, or misses. It must not know what the payloads
are, nor any other layer.

Correctness depends only on atomic renames, which network file systems have too, and on verifying
what is read. Readers never wait; the lock only keeps two processes from evicting at once. There is
no fsync: after a power failure an entry may be torn, which its next read detects; that costs one
compile.

Failures of the environment (disk full, read-only, deleted, broken) are events of kind ``cache``,
never exceptions. So is a directory that others may write to: the event has the message of
`CacheRefused`. Only `Disk.check` and the maintenance methods (`usage`, `clear`, `verify`) raise it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tzero import ownership
from tzero.cache.entry import HEADER, Damaged, is_digest, opened, request_of, seal
from tzero.errors import CacheRefused
from tzero.events import Event, emit

__all__ = ["Disk", "Kept", "Removed", "Usage", "Verdict"]

FRESH = 3600
"""Seconds within which another use of an entry is not recorded, and a temporary file is taken to be
still in use by its writer."""

RECOUNT_AFTER = 24 * 3600
"""Seconds after which the size is counted again even if little was written."""

EVICT_TO = 0.9
"""Fraction of the limit that an eviction goes down to, so that the next one is many writes away."""

_LEDGER = re.compile(rb"tzero ledger 1 (\d+) (\d+) *\n")
_LEDGER_SIZE = 64
_UNIT = 1024  # each byte appended to the ledger stands for this many bytes written
_SHARD = re.compile(r"[0-9a-f]{2}", re.ASCII)
_TEMPORARY = re.compile(r"\.(?:[0-9a-f]{64}|ledger)\.[0-9a-f]{32}\.tmp", re.ASCII)
_GONE = (errno.ENOENT, errno.ESTALE)  # ESTALE: replaced by another machine during the read


class Usage(NamedTuple):
    """Number, size and age of the entries of a store.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Disk(root).usage().entries
    0
    """

    entries: int
    bytes: int
    oldest: float | None
    """When the least recently used entry was used, in seconds since 1970; accurate to `FRESH`."""
    newest: float | None
    temporary: int
    """Temporary files, of writers at work or dead."""


class Kept(NamedTuple):
    """One entry: its digest, its size, when it was last used, and its payload.

    ::

        [kept.digest for kept in store.kept() if kept.size > 1 << 20]
    """

    digest: str
    size: int
    used: float
    """In seconds since 1970; accurate to `FRESH`."""
    payload: bytes | None
    """None if it is damaged or cannot be read."""


class Removed(NamedTuple):
    """What `Disk.clear` or `Disk.prune` removed, and a message for each file it could not remove.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Disk(root).clear()
    Removed(entries=0, bytes=0, problems=())
    """

    entries: int
    bytes: int
    problems: tuple[str, ...]


class Verdict(NamedTuple):
    """The result of verifying one entry.

    ::

        [verdict.digest for verdict in store.verify() if verdict.problem is not None]
    """

    digest: str
    problem: str | None
    """What is wrong with it; None if it is intact."""


class _File(NamedTuple):
    path: str
    name: str
    size: int
    used: float


class Disk:
    """A store in a directory, which is created at the first `put`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     store = Disk(root)
    ...     store.put("0" * 64, b"code"), store.get("0" * 64), store.get("1" * 64)
    (True, b'code', None)
    """

    def __init__(self, root: str | os.PathLike[str], limit: int = 4 << 30) -> None:
        # Absolute, because the program may change its working directory.
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self.limit = limit
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"Disk({self.root!r}, limit={self.limit})"

    def get(self, digest: str) -> bytes | None:
        """Return the verified payload of this digest; None if there is no valid entry."""
        path = self._path(digest)
        try:
            if not self._trusted(os.path.dirname(path)):
                return None
            return opened(self._read(path), digest)
        except Damaged as damage:
            self._discard(path, digest, damage)
        except OSError as error:
            if error.errno not in _GONE:
                self._report(digest, f"reading {path} failed", error)
        except MemoryError:
            self._report(digest, f"reading {path} failed", OSError(errno.ENOMEM, "no memory"))
        return None

    def put(self, digest: str, payload: bytes, *, first: bool = False) -> bool:
        """Store a payload; return whether it was stored. An existing entry is replaced, or stays if
        this one is only to be the ``first``."""
        path, data = self._path(digest), seal(payload, digest)
        if len(data) > self.limit:
            problem = f"the entry has {len(data)} bytes, the limit of the cache is {self.limit}"
            self._emit(digest, f"not cached: {problem}. Set TZERO_CACHE_LIMIT to more MiB.")
            return False
        try:
            if not self._trusted(os.path.dirname(path)):
                return False
            if not self._write(path, data, first):
                return False
        except OSError as error:
            self._report(digest, f"writing {path} failed", error)
            return False
        try:
            if self._add_to_ledger(len(data)) > self.limit:
                self.evict()
        except OSError as error:
            self._report(digest, f"evicting from {self.root} failed", error)
        return True

    def keep(self, digest: str, payload: bytes) -> bytes | None:
        """Store a payload unless there is one; return the one that is there then, or None if none
        could be stored. So of two processes that made the same, the first one's counts."""
        for _ in range(2):
            if self.put(digest, payload, first=True):
                return payload
            found = self.get(digest)  # removes it if it is damaged
            if found is not None:
                return found
        return None

    def check(self) -> None:
        """Raise `CacheRefused` if another user could have written the entries."""
        for path in (self.root, *_shards(self.root)):
            with suppress(FileNotFoundError):  # not created yet, or removed meanwhile
                ownership.check(path)

    # Reading.

    def _path(self, digest: str) -> str:
        request_of(digest)  # raises ValueError for anything that is not safe as a file name
        return os.path.join(self.root, digest[:2], digest)

    def _read(self, path: str, record_use: bool = True) -> bytes:
        try:
            file, found = ownership.open_private(path)
        except ownership.Foreign as problem:
            raise Damaged("foreign", str(problem)) from problem
        try:
            if found.st_size > self.limit + HEADER.size:  # a sparse file may be larger than memory
                size = f"it has {found.st_size} bytes, the limit of the cache is {self.limit}"
                raise Damaged("extended", size)
            data = ownership.read_all(file, found.st_size)
            if record_use and abs(time.time() - found.st_mtime) > FRESH:
                self._record_use(file, path)
            return data
        finally:
            os.close(file)

    def _record_use(self, file: int, path: str) -> None:
        """Set the modification time, which says when an entry was last used: access times are often
        disabled, and entries are never modified."""
        try:
            os.utime(file)
        except OSError as error:
            self._report(
                os.path.basename(path),
                "recording the use of the entry failed",
                error,
                logging.DEBUG,
            )

    def _discard(self, path: str, digest: str, damage: Damaged) -> None:
        facts = {"layer": "disk", "digest": digest, "path": path, "damage": damage.kind}
        after = "It was removed; the next compile writes it again."
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # another process removed it
        except OSError as error:
            after = (
                f"It could not be removed ({error.strerror}), so each request compiles it again."
            )
        emit(Event("cache", digest[:12], f"{path} is not used: {damage}. {after}", facts))

    # Writing.

    def _write(self, path: str, data: bytes, first: bool = False) -> bool:
        """Write a file, and return whether it is the one that is there: not if it was to be the
        ``first`` one and another is there."""
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(16)}.tmp")
        try:
            file = ownership.create(temporary)
        except FileNotFoundError:  # the first entry of its subdirectory, or the store was deleted
            ownership.make(folder)
            file = ownership.create(temporary)
        try:
            try:
                ownership.write_all(file, data)
            finally:
                os.close(file)
            if first:
                return _placed_first(temporary, path)
            os.rename(temporary, path)
            return True
        except BaseException:
            with suppress(OSError):  # the first error is the one to raise
                os.unlink(temporary)
            raise

    # Permissions.

    def _trusted(self, shard: str) -> bool:
        """Whether no other user can write here. Checked each time, so that a fix works at once."""
        try:
            for path in (self.root, shard):
                ownership.check(path)
        except FileNotFoundError:
            return True  # nothing is there yet; it will be created private
        except CacheRefused as error:
            self._emit("cache", str(error), once=f"refused {error.path}")
            return False
        if self._reported:  # fixed: if it happens again, it is reported again
            self._reported -= {f"refused {self.root}", f"refused {shard}"}
        return True

    # Events.

    def _report(
        self, digest: str, doing: str, error: OSError, level: int = logging.WARNING
    ) -> None:
        """Emit an event for a failure; it is logged as a warning only the first time."""
        why = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "")
        kind = f"{doing.split()[0]} {error.errno}"
        if kind in self._reported:
            level = logging.DEBUG
        self._reported.add(kind)
        facts = {"layer": "disk", "digest": digest, "errno": error.errno}
        emit(Event("cache", digest[:12], f"{doing}: {why}. {advice}".rstrip(), facts), level)

    def _emit(self, subject: str, reason: str, once: str | None = None) -> None:
        if once is not None:
            if once in self._reported:
                return
            self._reported.add(once)
        emit(Event("cache", subject[:12], reason, {"layer": "disk", "root": self.root}))

    # Size and eviction.

    def _add_to_ledger(self, size: int) -> float:
        """Record in the ledger that this many bytes were written; return the estimated size of the
        store, or infinity if it must be counted."""
        path = os.path.join(self.root, "ledger")
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, IsADirectoryError):
            return float("inf")
        try:
            os.write(file, b"+" * -(-size // _UNIT))
            found = _LEDGER.fullmatch(os.pread(file, _LEDGER_SIZE, 0))
            since = os.fstat(file).st_size - _LEDGER_SIZE
        finally:
            os.close(file)
        if found is None or abs(time.time() - int(found[2])) > RECOUNT_AFTER:
            return float("inf")
        return int(found[1]) + since * _UNIT

    def _start_ledger(self, total: int) -> None:
        """Write a new ledger with the counted size."""
        text = f"tzero ledger 1 {total} {int(time.time())}"
        self._write(
            os.path.join(self.root, "ledger"), text.encode().ljust(_LEDGER_SIZE - 1) + b"\n"
        )

    def evict(self) -> int:
        """Count the store. If it exceeds the limit, remove the least recently used entries down to
        `EVICT_TO`. Return how many were removed. Does nothing while another process evicts."""
        with self._evict_lock() as ours:
            if not ours:
                return 0
            files = sorted(self._sweep(), key=lambda file: file.used)
            total, gone = sum(file.size for file in files), 0
            goal = self.limit * EVICT_TO if total > self.limit else self.limit
            for file in files:
                # The newest stays if it fits within the limit: it was just put here.
                if total <= (self.limit if file is files[-1] else goal):
                    break
                if _is_unchanged(file) and (removed := self._evicted(file)) is not None:
                    total -= file.size
                    gone += removed
            self._start_ledger(total)
            return gone

    def _evicted(self, file: _File) -> bool | None:
        """Remove a file; return whether this process did, or None if it cannot be removed. Eviction
        goes on then: one such file must not let the store grow without limit."""
        try:
            return _remove(file.path)
        except OSError as error:
            self._report(file.name, f"evicting {file.path} failed", error)
            return None

    @contextmanager
    def _evict_lock(self) -> Iterator[bool]:
        path = os.path.join(self.root, "lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(path, flags, 0o600)
        except IsADirectoryError as error:  # an accident, after which the store must not grow
            self._report("cache", f"locking {path} failed", error)
            yield True
            return
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                # No locks on this file system: at worst, two processes evict too much at once.
                self._report("cache", f"locking {path} failed", error, logging.DEBUG)
            yield True
        finally:
            os.close(file)

    def _sweep(self) -> list[_File]:
        """Remove temporary files of dead writers; return the entries."""
        entries, temporary = _files(self.root)
        for file in temporary:
            if time.time() - file.used > FRESH:
                self._evicted(file)
        return entries

    # Maintenance.

    def usage(self) -> Usage:
        """Count the entries. Raises `CacheRefused` if the store is not private, OSError if it is
        unreadable."""
        self.check()
        entries, temporary = _files(self.root)
        used = [file.used for file in entries]
        return Usage(
            entries=len(entries),
            bytes=sum(file.size for file in entries),
            oldest=min(used, default=None),
            newest=max(used, default=None),
            temporary=len(temporary),
        )

    def kept(self) -> Iterator[Kept]:
        """Read the entries, the one used last first. That does not count as a use."""
        self.check()
        for file in sorted(_files(self.root)[0], key=lambda file: -file.used):
            try:
                payload = opened(self._read(file.path, record_use=False), file.name)
            except FileNotFoundError:
                continue  # evicted or replaced meanwhile
            except (Damaged, OSError):
                yield Kept(file.name, file.size, file.used, None)
            else:
                yield Kept(file.name, file.size, file.used, payload)

    def prune(self, before: float | None = None, limit: int | None = None) -> Removed:
        """Remove the entries that were last used before a time, in seconds since 1970; then the
        least recently used ones until at most `limit` bytes are left."""
        self.check()
        left = sorted(_files(self.root)[0], key=lambda file: file.used)
        total, gone = sum(file.size for file in left), []
        for file in left:
            is_old = before is not None and file.used < before
            if is_old or (limit is not None and total > limit):
                gone.append(file)
                total -= file.size
        return _removed(gone)

    def clear(self) -> Removed:
        """Remove every entry and the store's own files; any other file stays."""
        self.check()
        entries, temporary = _files(self.root)
        removed = _removed([*entries, *temporary])
        problems = list(removed.problems)
        for path in _shards(self.root):
            with suppress(OSError):  # not empty: a foreign file, or a new entry
                os.rmdir(path)
        for name in ("ledger", "lock"):
            try:
                _remove(os.path.join(self.root, name))
            except OSError as error:
                problems.append(f"{name}: {error.strerror}")
        return removed._replace(problems=tuple(problems))

    def verify(self, remove: bool = False) -> Iterator[Verdict]:
        """Read and verify every entry; with ``remove``, remove the damaged ones."""
        self.check()
        for file in _files(self.root)[0]:
            problem: str | None = None
            try:
                opened(self._read(file.path, record_use=False), file.name)
            except Damaged as damage:
                problem = str(damage)
            except FileNotFoundError:
                continue  # evicted or replaced meanwhile
            except OSError as error:
                problem = f"unreadable: {error.strerror}"
            if problem is not None and remove:
                try:
                    _remove(file.path)
                except OSError as error:
                    problem += f"; it could not be removed: {error.strerror}"
            yield Verdict(file.name, problem)


_ADVICE = {
    errno.ENOSPC: "The disk is full; compiling goes on without caching. Free space, or set "
    "TZERO_CACHE_DIR to another disk.",
    errno.EDQUOT: "The quota is exceeded; compiling goes on without caching. Free space, or set "
    "TZERO_CACHE_DIR to another disk.",
    errno.EROFS: "Compiling goes on without caching. Set TZERO_CACHE_DIR to a directory that is "
    "writable.",
    errno.EACCES: "Compiling goes on without it. Set TZERO_CACHE_DIR to a directory that you own.",
    errno.ENOTDIR: "Compiling goes on without it. Set TZERO_CACHE_DIR to a directory.",
    errno.EIO: "The disk or its network connection fails; compiling goes on without it.",
}


def _shards(root: str) -> list[str]:
    """The directories that have the entries."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    return sorted(os.path.join(root, name) for name in names if _SHARD.fullmatch(name))


def _placed_first(temporary: str, path: str) -> bool:
    """Move a file to its place; return False, and remove it, if another is there. File systems
    without links may let it take the place of one that comes at the same moment."""
    try:
        os.link(temporary, path)
        placed = True
    except FileExistsError:
        # A network file system may have lost the reply, after it had made the link.
        placed = os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        placed = not os.path.lexists(path)
        if placed:
            os.rename(temporary, path)
            return True
    os.unlink(temporary)
    return placed


def _files(root: str) -> tuple[list[_File], list[_File]]:
    """The entries and the temporary files. Any other file is not ours."""
    entries: list[_File] = []
    temporary: list[_File] = []
    for folder in (root, *_shards(root)):
        try:
            with os.scandir(folder) as found:
                for each in found:
                    kept = entries if is_digest(each.name) else temporary
                    if kept is entries or _TEMPORARY.fullmatch(each.name):
                        with suppress(FileNotFoundError):  # removed meanwhile
                            facts = each.stat(follow_symlinks=False)
                            use = facts.st_mtime
                            kept.append(_File(each.path, each.name, facts.st_size, use))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return entries, temporary


def _is_unchanged(file: _File) -> bool:
    """Whether the entry was neither used nor replaced since it was counted."""
    try:
        return os.lstat(file.path).st_mtime == file.used
    except FileNotFoundError:
        return True


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False  # another process did
    return True


def _removed(files: list[_File]) -> Removed:
    problems: list[str] = []
    count = size = 0
    for file in files:
        try:
            removed = _remove(file.path)
        except OSError as error:
            problems.append(f"{file.path}: {error.strerror}")
            continue
        if removed and is_digest(file.name):
            count, size = count + 1, size + file.size
    return Removed(count, size, tuple(problems))
