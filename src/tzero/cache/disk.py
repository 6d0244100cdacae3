"""Entries in a directory of one's own, each under the digest of the request that it answers.

::

    root/                      0700, ours, nobody else may write
      ab/                      likewise
        ab12...                an entry, whole: entry.py has its format
        .ab12....tmp           one that is being written; its name cannot be guessed
      ledger                   what there was when it was last counted, and what came since
      lock                     held by the process that evicts

    put ── temporary file ── rename ──► entry ── ledger says: too much ──► evict, unless others do
    get ── open, read, verify ──► payload     └─ damaged: event, removed, a miss

Enters: payloads by digest. Leaves: the same payloads, or misses. It must not know what the payloads
are, nor any other layer.

Correctness rests on renaming alone, which replaces a file as a whole, on network file systems too,
and on verifying what is read; no reader ever waits, and the lock only keeps two processes from
evicting at once. Nothing is synced to the disk: after a power failure an entry may be torn, which
is found when it is read, and costs one compile.

What the environment does (full, read-only, deleted, broken) is an event of kind ``cache``, never an
exception. So is a directory that others may write to: `CacheRefused` is what the event says; only
`Disk.check` and who looks after the store (`usage`, `clear`, `verify`) raise it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tzero.cache.entry import HEADER, Damaged, is_digest, opened, request_of, seal
from tzero.errors import CacheRefused
from tzero.events import Event, emit

__all__ = ["Disk", "Removed", "Usage", "Verdict"]

FRESH = 3600
"""Seconds within which an entry's use is not noted again, nor a temporary file taken for one that
its writer left behind."""

COUNTED = 24 * 3600
"""Seconds after which the store is counted again even if little was written."""

ROOM = 0.9
"""How full the store is left by an eviction, so that the next one is many writes away."""

_LEDGER = re.compile(rb"tzero ledger 1 (\d+) (\d+) *\n")
_LEDGER_SIZE = 64
_UNIT = 1024  # one byte at the ledger's end stands for so many that were written
_SHARD = re.compile(r"[0-9a-f]{2}", re.ASCII)
_TEMPORARY = re.compile(r"\.(?:[0-9a-f]{64}|ledger)\.[0-9a-f]{32}\.tmp", re.ASCII)
_GONE = (errno.ENOENT, errno.ESTALE)  # ESTALE: another machine replaced it while it was read


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store holds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Disk(root).usage().entries
    0
    """

    entries: int
    bytes: int
    oldest: float | None
    """When the least recently used entry was used, in seconds since 1970; `FRESH` is how exact."""
    newest: float | None
    temporary: int
    """Files that are being written, or were when their writer died."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What clearing a store removed, and what it could not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Disk(root).clear()
    Removed(entries=0, bytes=0, problems=())
    """

    entries: int
    bytes: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with one entry.

    >>> Verdict("0" * 64, "torn: it ends within its header").problem
    'torn: it ends within its header'
    """

    digest: str
    problem: str | None
    """None where nothing is."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    name: str
    size: int
    used: float


class Disk:
    """A store in a directory, made when something is first put there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     store = Disk(root)
    ...     store.put("0" * 64, b"code")
    ...     store.get("0" * 64), store.get("1" * 64)
    (b'code', None)
    """

    def __init__(self, root: str | os.PathLike[str], limit: int = 4 << 30) -> None:
        # Absolute, because the program may change its directory.
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self.limit = limit
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"Disk({self.root!r}, limit={self.limit})"

    def get(self, digest: str) -> bytes | None:
        """The payload of this digest, verified; None where there is none that can be used."""
        path = self._path(digest)
        try:
            if not self._trusted(os.path.dirname(path)):
                return None
            return opened(self._read(path), digest)
        except Damaged as damage:
            self._discard(path, digest, damage)
        except OSError as error:
            if error.errno not in _GONE:
                self._tell(digest, f"reading {path} failed", error)
        return None

    def put(self, digest: str, payload: bytes) -> None:
        """Keep a payload, in place of what may be there."""
        path, data = self._path(digest), seal(payload, digest)
        if len(data) > self.limit:
            words = f"it has {len(data)} bytes, and the whole cache may hold {self.limit}"
            self._say(digest, f"not kept: {words}. Set TZERO_CACHE_LIMIT to more MiB.")
            return
        try:
            if not self._trusted(os.path.dirname(path)):
                return
            self._write(path, data)
        except OSError as error:
            self._tell(digest, f"writing {path} failed", error)
            return
        try:
            if self._grown(len(data)) > self.limit:
                self.evict()
        except OSError as error:
            self._tell(digest, f"evicting from {self.root} failed", error)

    def check(self) -> None:
        """Raise `CacheRefused` if someone else could write what is read here."""
        for path in (self.root, *self._shards()):
            with suppress(FileNotFoundError):  # removed meanwhile, or not made yet: nobody's
                _check(path)

    # Reading.

    def _path(self, digest: str) -> str:
        request_of(digest)  # refuses what is no digest, before it becomes a name
        return os.path.join(self.root, digest[:2], digest)

    def _read(self, path: str, in_use: bool = True) -> bytes:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Damaged("foreign", "it is a symbolic link") from error
            raise
        try:
            found = os.fstat(file)
            if problem := _not_private(found) or _no_file(found):
                raise Damaged("foreign", problem)
            data = _all_of(file, found.st_size)
            if in_use and abs(time.time() - found.st_mtime) > FRESH:
                self._note_use(file, path)
            return data
        finally:
            os.close(file)

    def _note_use(self, file: int, path: str) -> None:
        """The time of change says when an entry was last used: the time of access is often not
        kept, and nothing else changes an entry."""
        try:
            os.utime(file)
        except OSError as error:
            self._tell(os.path.basename(path), "its use could not be noted", error, logging.DEBUG)

    def _discard(self, path: str, digest: str, damage: Damaged) -> None:
        facts = {"layer": "disk", "digest": digest, "path": path, "damage": damage.kind}
        after = "It is removed, and made anew."
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # someone else saw it too
        except OSError as error:
            after = f"It could not be removed ({error.strerror}); it is made anew each time."
        emit(Event("cache", digest[:12], f"{path} is not used: {damage}. {after}", facts))

    # Writing.

    def _write(self, path: str, data: bytes) -> None:
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(16)}.tmp")
        try:
            file = _created(temporary)
        except FileNotFoundError:  # the first entry of its shard, or the store was deleted
            _make(folder)
            file = _created(temporary)
        try:
            try:
                _write_all(file, data)
            finally:
                os.close(file)
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to tell
                os.unlink(temporary)
            raise

    # Trust.

    def _trusted(self, shard: str) -> bool:
        """Whether nobody else can write here; asked each time, so that a cure works at once."""
        try:
            for path in (self.root, shard):
                _check(path)
        except FileNotFoundError:
            return True  # there is nothing yet; what is made is made private
        except CacheRefused as refusal:
            self._say("cache", str(refusal), once=f"refused {refusal.path}")
            return False
        if self._told:  # cured: should it happen again, it is told again
            self._told -= {f"refused {self.root}", f"refused {shard}"}
        return True

    # Telling.

    def _tell(self, digest: str, doing: str, error: OSError, level: int = logging.WARNING) -> None:
        """One event for each failure; in the log, a warning for the first of its kind only."""
        why = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "")
        kind = f"{doing.split()[0]} {error.errno}"
        if kind in self._told:
            level = logging.DEBUG
        self._told.add(kind)
        facts = {"layer": "disk", "digest": digest, "errno": error.errno}
        emit(Event("cache", digest[:12], f"{doing}: {why}. {advice}".rstrip(), facts), level)

    def _say(self, subject: str, words: str, once: str | None = None) -> None:
        if once is not None:
            if once in self._told:
                return
            self._told.add(once)
        emit(Event("cache", subject[:12], words, {"layer": "disk", "root": self.root}))

    # How much there is.

    def _grown(self, size: int) -> float:
        """Note in the ledger that so many bytes were written, and estimate what there is; more than
        anything where nobody knows."""
        path = os.path.join(self.root, "ledger")
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return float("inf")
        try:
            os.write(file, b"+" * -(-size // _UNIT))
            found = _LEDGER.fullmatch(os.pread(file, _LEDGER_SIZE, 0))
            since = os.fstat(file).st_size - _LEDGER_SIZE
        finally:
            os.close(file)
        if found is None or abs(time.time() - int(found[2])) > COUNTED:
            return float("inf")
        return int(found[1]) + since * _UNIT

    def _settle(self, total: int) -> None:
        """Begin the ledger anew from what was counted."""
        text = f"tzero ledger 1 {total} {int(time.time())}"
        self._write(
            os.path.join(self.root, "ledger"), text.encode().ljust(_LEDGER_SIZE - 1) + b"\n"
        )

    def evict(self) -> int:
        """Count the store, and remove the least recently used until it is within its limit, with
        some room; how many went. Nothing where another process is at it."""
        with self._turn() as ours:
            if not ours:
                return 0
            files = sorted(self._sweep(), key=lambda file: file.used)
            total, gone = sum(file.size for file in files), 0
            goal = self.limit * ROOM if total > self.limit else self.limit
            for file in files:
                # The newest stays if it fits at all: it is what was just put here.
                if total <= (self.limit if file is files[-1] else goal):
                    break
                if _unused_since(file):
                    total -= file.size
                    gone += _removed(file.path)
            self._settle(total)
            return gone

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        path = os.path.join(self.root, "lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                # No locks on this file system. Two that evict at once remove too much, at worst.
                self._tell("cache", f"locking {path} failed", error, logging.DEBUG)
            yield True
        finally:
            os.close(file)

    def _sweep(self) -> list[_File]:
        """The entries, after removing what dead writers left."""
        entries, temporary = self._files()
        for file in temporary:
            if time.time() - file.used > FRESH:
                _removed(file.path)
        return entries

    def _shards(self) -> list[str]:
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        return sorted(os.path.join(self.root, name) for name in names if _SHARD.fullmatch(name))

    def _files(self) -> tuple[list[_File], list[_File]]:
        """The entries and the temporary files; what else lies about is not ours."""
        entries: list[_File] = []
        temporary: list[_File] = []
        for folder in (self.root, *self._shards()):
            try:
                with os.scandir(folder) as found:
                    for each in found:
                        kept = entries if is_digest(each.name) else temporary
                        if kept is entries or _TEMPORARY.fullmatch(each.name):
                            with suppress(FileNotFoundError):  # removed while we look
                                facts = each.stat(follow_symlinks=False)
                                use = facts.st_mtime
                                kept.append(_File(each.path, each.name, facts.st_size, use))
            except (FileNotFoundError, NotADirectoryError):
                continue
        return entries, temporary

    # For who looks after the store.

    def usage(self) -> Usage:
        """What there is; `CacheRefused` where it is not private, OSError where it is unreadable."""
        self.check()
        entries, temporary = self._files()
        used = [file.used for file in entries]
        return Usage(
            entries=len(entries),
            bytes=sum(file.size for file in entries),
            oldest=min(used, default=None),
            newest=max(used, default=None),
            temporary=len(temporary),
        )

    def clear(self) -> Removed:
        """Remove every entry and what belongs to the store; files of others stay."""
        self.check()
        entries, temporary = self._files()
        problems: list[str] = []
        count = size = 0
        for file in [*entries, *temporary]:
            try:
                gone = _removed(file.path)
            except OSError as error:
                problems.append(f"{file.path}: {error.strerror}")
                continue
            if gone and is_digest(file.name):
                count, size = count + 1, size + file.size
        for path in self._shards():
            with suppress(OSError):  # not empty: a file of someone else's, or a new entry
                os.rmdir(path)
        for name in ("ledger", "lock"):
            try:
                _removed(os.path.join(self.root, name))
            except OSError as error:
                problems.append(f"{name}: {error.strerror}")
        return Removed(count, size, tuple(problems))

    def verify(self, remove: bool = False) -> Iterator[Verdict]:
        """Open every entry, and say what is wrong with it; remove those with which something is,
        if that is asked for."""
        self.check()
        for file in self._files()[0]:
            problem: str | None = None
            try:
                opened(self._read(file.path, in_use=False), file.name)
            except Damaged as damage:
                problem = str(damage)
            except FileNotFoundError:
                continue  # evicted, or replaced, meanwhile
            except OSError as error:
                problem = f"unreadable: {error.strerror}"
            if problem is not None and remove:
                _removed(file.path)
            yield Verdict(file.name, problem)


_ADVICE = {
    errno.ENOSPC: "The disk is full; compiling goes on without keeping. Make room, or set "
    "TZERO_CACHE_DIR to another disk.",
    errno.EDQUOT: "The quota is used up; compiling goes on without keeping. Make room, or set "
    "TZERO_CACHE_DIR to another disk.",
    errno.EROFS: "Compiling goes on without keeping. Set TZERO_CACHE_DIR to a directory that can "
    "be written to.",
    errno.EACCES: "Compiling goes on without it. Set TZERO_CACHE_DIR to a directory of your own.",
    errno.ENOTDIR: "Compiling goes on without it. Set TZERO_CACHE_DIR to a directory.",
    errno.EIO: "The disk or its network fails; compiling goes on without it.",
}


def _check(path: str) -> None:
    """Raise `CacheRefused` where this directory, or what it links to, is not private."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if problem := _not_private(found):
        mine = found.st_uid == os.geteuid()
        cure = f"chmod go-w {path}" if mine else f"chown -R {os.geteuid()} {path}, if you trust it"
        raise CacheRefused(path=path, problem=problem, cure=cure)


def _not_private(found: os.stat_result) -> str | None:
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, and you are user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):04o})"
    return None


def _no_file(found: os.stat_result) -> str | None:
    return None if stat.S_ISREG(found.st_mode) else "it is no regular file"


def _make(folder: str) -> None:
    """Make a directory and what is missing above it, each private from its first moment."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # another writer was faster
    except FileNotFoundError:
        above = os.path.dirname(folder)
        if above == folder:
            raise
        _make(above)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _created(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _all_of(file: int, size: int) -> bytes:
    """The whole file: it may be longer than it was, and one read may bring less than is there."""
    data = os.read(file, max(size, HEADER.size) + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _unused_since(file: _File) -> bool:
    """Whether nobody used or replaced an entry since it was counted."""
    try:
        return os.lstat(file.path).st_mtime == file.used
    except FileNotFoundError:
        return True


def _removed(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False  # someone else did
    return True
