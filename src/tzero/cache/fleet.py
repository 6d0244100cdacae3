"""The processes of a job, on one machine or many: who of them makes what, and what they agree on.

::

    TZERO_FLEET or tzero.fleet("c10d" | "redis://..." | "file:///...") ──► Fleet
        claims   one process makes what is missing, the others wait (`claims`)
        agree    the first value under a digest counts, for all

Enters: settings, digests, values. Leaves: a `Fleet`. It must not know what is claimed or agreed on.

What was made travels through the shared cache (`remote`): that of TZERO_REMOTE_CACHE, or without it
through the fleet's own place. Values are sealed like entries of that cache, with its key if there
is one.
"""

from __future__ import annotations

import base64
import functools
import urllib.parse
from collections.abc import Callable

from tzero.cache.claims import Board, Claims
from tzero.cache.entry import SCHEMA, Damaged, derived, opened, seal
from tzero.cache.place import place_of
from tzero.cache.reaching import CONNECTING, Reaching
from tzero.cache.remote import Unavailable, key_name, reason_of, shown
from tzero.events import Event, emit
from tzero.settings import Settings, now

__all__ = ["Fleet", "fleet_at", "fleet_of"]

KEEP = 30 * 24 * 3600.0
"""Seconds for which redis keeps what was agreed on."""

LIMIT = 1 << 20
"""Bytes of a value that is agreed on."""


class Fleet:
    """The claims and the agreements at one place.

    >>> import tempfile
    >>> root = tempfile.TemporaryDirectory()
    >>> one, other = (Fleet(f"file://{root.name}", None, 10.0) for _ in range(2))
    >>> one.agree("0" * 64, b"mine"), other.agree("0" * 64, b"theirs")
    (b'mine', b'mine')
    >>> root.cleanup()
    """

    def __init__(
        self,
        place: str,
        key: str | None,
        lease: float,
        *,
        board: Board | None = None,
        reaching: Reaching | None = None,
    ) -> None:
        self.place = place
        self.shown = shown(place)
        self._key = None if key is None else derived(key)
        self._agreed: dict[str, bytes] = {}
        name = "open" if self._key is None else key_name(self._key)
        self._names = f"tzero-{SCHEMA}-{name}"
        self._board = _board(place) if board is None else board
        self.claims = Claims(
            self._board,
            lease,
            prefix=f"{self._names}-claim-",
            reaching=reaching or Reaching(connecting=CONNECTING),
            why=lambda error: reason_of(error, place),
        )

    def agreed(self, digest: str) -> bytes | None:
        """Return the value that counts under a digest; None if there is none, or no reply."""
        if digest not in self._agreed:
            name = self._name(digest)
            self._take(digest, lambda: self._board.read(name))
        return self._agreed.get(digest)

    def agree(self, digest: str, value: bytes) -> bytes | None:
        """Propose a value, and return the one that counts: the first. None if there is no reply, or
        the value is too large."""
        if len(value) > LIMIT:
            return None
        name = self._name(digest)
        mine = base64.b64encode(seal(value, digest, self._key)).decode()

        def propose() -> str:
            return mine if self._board.swap(name, "", mine, KEEP) else self._board.read(name)

        if self.agreed(digest) is None:
            self._take(digest, propose)
        return self._agreed.get(digest)

    def _name(self, digest: str) -> str:
        return f"{self._names}-agreed-{digest}"

    def _take(self, digest: str, ask: Callable[[], str]) -> None:
        try:
            text = self.claims.reached(ask)
            if text:
                data = base64.b64decode(text, validate=True)
                self._agreed[digest] = opened(data, digest, self._key)
        except (Damaged, ValueError) as problem:
            reason = f"{self.shown}: what was agreed on is not used: {problem}"
            emit(Event("cache", digest[:12], reason, {"layer": "fleet", "url": self.shown}))
        except Exception as error:  # of any board, as in `Claims.claim`
            self.claims.failed(error)


class _Missing:
    """Stands for a board that cannot be used on this machine."""

    def __init__(self, place: str, error: Exception) -> None:
        self.shown = shown(place)
        self._error = error

    def read(self, name: str) -> str:
        raise self._error

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        raise self._error


def _board(place: str) -> Board:
    """The board at a place, which connects at its first call."""
    try:
        return _made(place)
    except Unavailable as error:
        return _Missing(place, error)


def _made(place: str) -> Board:
    scheme = place.partition(":")[0]
    if scheme == "c10d":
        from tzero.cache import c10d  # here and below: each needs a package that few have

        return c10d.Marks(c10d.connection(place))
    if scheme == "file":
        from tzero.cache.claims_directory import Directory

        path = urllib.parse.urlsplit(place).path
        return Directory(f"{urllib.parse.unquote(path).rstrip('/')}/tzero/claims")
    from tzero.cache.claims_redis import Redis

    return Redis(place)


def fleet_of(settings: Settings | None = None) -> Fleet | None:
    """The fleet under these settings, by default those of now; None without one.

    >>> fleet_of(Settings()) is None
    True
    """
    settings = now() if settings is None else settings
    place = place_of(settings)
    return None if place is None else fleet_at(place, settings.cache_key, settings.lease)


@functools.lru_cache(maxsize=32)
def fleet_at(place: str, key: str | None, lease: int) -> Fleet:
    """The fleet at a place; the same object for equal values."""
    return Fleet(place, key, float(lease))
