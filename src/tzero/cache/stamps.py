"""Digests of many or large files, remembered on disk by what `stat` says about the files.

Enters: paths, and a function that computes their digest. Leaves: the digest. It must not know what
the files are, nor how the digest is computed.

A digest is used again only while each file has the same path, device, inode, size, modification
time and change time. A program can set the modification time, but not the change time: the system
sets it at each write, rename and replacement. Digests are not remembered while a file is younger
than `SETTLED`, because two writes at one tick of the clock have the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable

from tzero.cache.digest import canonical
from tzero.cache.disk import Disk
from tzero.cache.store import location
from tzero.settings import Settings

__all__ = ["remembered", "store"]

SETTLED = 2.0
"""Seconds after which a write to a file changes its times for certain."""

_LIMIT = 1 << 20  # bytes; a digest is a short text


def store(settings: Settings) -> Disk | None:
    """The store of digests in the cache directory of these settings; None if the cache is off.

    >>> store(Settings(cache=False)) is None
    True
    """
    return Disk(os.path.join(location(settings), "stamps"), _LIMIT) if settings.cache else None


def remembered(
    what: str, paths: Iterable[str], compute: Callable[[], str], disk: Disk | None
) -> str:
    """Return the digest of these files. It is computed only if the store does not have it; `what`
    names the function that computes it.

    ::

        remembered("triton", paths, triton_key, store(settings.now()))
    """
    if disk is None:
        return compute()
    names = sorted(paths)
    before, newest = _stamp(what, names)
    known = disk.get(before)
    if known is not None:
        return known.decode()
    found = compute()
    settled = time.time() - newest > SETTLED  # also False if a file is from the future
    if settled and _stamp(what, names)[0] == before:
        disk.put(before, found.encode())
    return found


def _stamp(what: str, names: list[str]) -> tuple[str, float]:
    """A digest of the facts about the files, and the latest of their times."""
    rows: list[tuple[object, ...]] = []
    newest = 0.0
    for name in names:
        try:
            found = os.stat(name)
        except FileNotFoundError:
            rows.append((name, None))
            continue
        identity = (found.st_dev, found.st_ino, found.st_size)
        rows.append((name, *identity, found.st_mtime_ns, found.st_ctime_ns))
        newest = max(newest, found.st_mtime, found.st_ctime)
    text = canonical([what, rows])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), newest
