"""The layers of the cache combined: the disk first, then the shared cache.

::

    get ── disk ── hit ──► Found(payload, "disk")
             └ miss ── disk, what was fetched before ── hit ──► Found(payload, "disk")
                         └ miss ── remote ── hit ──► also put on disk ──► Found(payload, "remote")
    put ──► disk, and the remote's queue
    publish ──► the same, but what is on disk already counts

Enters: settings, and payloads by digest. Leaves: payloads, and which layer had them. It must not
know what the payloads are.

What was fetched from a remote is on disk under a name of its own, which depends on the key that it
was verified with. So it is used only while this key is set: an entry that was fetched without a key
is not trusted after one was set.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from tzero import scratch
from tzero.cache.claims import Claims
from tzero.cache.claims_directory import Directory
from tzero.cache.disk import Disk
from tzero.cache.place import place_of
from tzero.settings import Settings

if TYPE_CHECKING:
    from tzero.cache.remote import Remote

__all__ = ["Found", "Layers", "Published", "Store", "fetched_as", "location", "stores"]


class Store(Protocol):
    """Keeps payloads by the digest of their request.

    ::

        store.put(request.digest, artifact.encode())
        store.get(request.digest)  # the same bytes, or None
    """

    def get(self, digest: str) -> bytes | None:
        """Return the verified payload; None for a miss. A damaged entry is a miss and an event."""

    def put(self, digest: str, payload: bytes) -> object:
        """Keep a payload. Failures of the environment are events, never exceptions."""


class Published(NamedTuple):
    """The payload that counts, and whether it is on disk.

    >>> Published(b"code", True).payload
    b'code'
    """

    payload: bytes
    is_on_disk: bool


class Found(NamedTuple):
    """A payload, and the layer that had it.

    ::

        found = layers.get(digest)
        assert found.layer == "disk"
    """

    payload: bytes
    layer: Literal["disk", "remote"]
    fetched_as: str = ""
    """The digest under which it is kept, if it was fetched from a remote; else empty."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The stores that the settings configure; each may be absent.

    >>> nothing = Layers(disk=None, remote=None)
    >>> nothing.put("0" * 64, b"code")
    >>> nothing.get("0" * 64) is None
    True
    """

    disk: Disk | None
    remote: Remote | None
    claims: tuple[Claims, ...] = ()
    """Who may make what is missing: first among the processes that share the disk, then in the
    fleet. So of each machine one process asks the fleet."""

    def get(self, digest: str) -> Found | None:
        """Return the payload of this digest. A hit at the remote is also put on disk."""
        if self.disk is not None and (payload := self.disk.get(digest)) is not None:
            return Found(payload, "disk")
        if self.remote is None:
            return None
        fetched = self.remote.fetched_as(digest)
        if self.disk is not None and (payload := self.disk.get(fetched)) is not None:
            return Found(payload, "disk", fetched)
        if (payload := self.remote.get(digest)) is not None:
            if self.disk is not None:
                self.disk.put(fetched, payload)
            return Found(payload, "remote", fetched)
        return None

    def put(self, digest: str, payload: bytes) -> None:
        """Put a payload into every layer; the remote gets it in the background."""
        if self.disk is not None:
            self.disk.put(digest, payload)
        if self.remote is not None:
            self.remote.put(digest, payload)

    def publish(
        self,
        digest: str,
        payload: bytes,
        then: Callable[[bool], None] = lambda sent: None,
        *,
        first: bool = True,
    ) -> Published:
        """As `put`, but what is on disk already stays, if only the ``first`` is to count. ``then``
        is called when the remote has received it, or with False if it does not."""
        counts = None
        if self.disk is not None and first:
            counts = self.disk.keep(digest, payload)
        elif self.disk is not None and self.disk.put(digest, payload):
            counts = payload
        made = Published(payload if counts is None else counts, counts is not None)
        if self.remote is None:
            then(False)
        else:
            self.remote.put(digest, made.payload, then)
        return made

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until the remote has received everything; return False on timeout."""
        return self.remote is None or self.remote.flush(seconds)


def location(settings: Settings) -> str:
    """Return the cache directory of these settings.

    >>> location(Settings(cache_dir="/data/kernels"))
    '/data/kernels'
    """
    chosen = settings.cache_dir or os.path.join(_user_cache(), "kernels")
    return os.path.abspath(os.path.expanduser(chosen))


def _user_cache() -> str:
    import platformdirs  # here, because it is not needed where TZERO_CACHE_DIR is set

    try:
        found = platformdirs.user_cache_dir("tzero")
    except RuntimeError:  # a user without HOME and without an entry in passwd
        found = "~"
    return scratch.at_home("~/.cache/tzero") if found.startswith("~") else found


def stores(settings: Settings) -> Layers:
    """Return the layers of these settings; the same object for equal values.

    >>> stores(Settings(cache=False)).disk is None
    True
    """
    root = location(settings) if settings.cache else None
    limit, place = settings.cache_limit << 20, place_of(settings)
    url = settings.remote_cache or place
    return _layers(root, limit, url, settings.cache_key, settings.lease, place)


def fetched_as(settings: Settings, digest: str) -> str:
    """Return the digest under which an entry is kept that was fetched from the remote of these
    settings; without a remote, the digest itself.

    >>> fetched_as(Settings(), "0" * 64) == "0" * 64
    True
    """
    has_none = settings.remote_cache is None and place_of(settings) is None
    remote = None if has_none else stores(settings).remote
    return digest if remote is None else remote.fetched_as(digest)


@functools.lru_cache(maxsize=32)
def _layers(
    root: str | None, limit: int, url: str | None, key: str | None, lease: int, place: str | None
) -> Layers:
    disk = None if root is None else Disk(root, limit)
    claims: list[Claims] = []
    if root is not None:
        claims.append(Claims(Directory(os.path.join(root, "claims"), private=True), float(lease)))
    if place is not None:
        from tzero.cache.fleet import fleet_at  # here and below, because few have one

        claims.append(fleet_at(place, key, lease).claims)
    if url is None:
        return Layers(disk, None, tuple(claims))
    from tzero.cache.remote import Remote

    return Layers(disk, Remote(url, key), tuple(claims))
