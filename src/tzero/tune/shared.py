"""One choice for all: one process of a job searches, and the others read what it has found.

::

    turn ── claimed ──────────────────────────► search, remember, agree
       └─── another process searches: wait ───► its record

Enters: the key of a record. Leaves: the right to search, or the news that another process has. It
must not know what is searched for.

With a fleet the record itself is agreed on: the first one counts, for all processes, and each of
them makes the same choice from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tzero import settings
from tzero.cache import stores
from tzero.cache.claims import FOUND, Lease
from tzero.tune.records import digest_of

__all__ = ["turn"]

LIMIT = 3600.0
"""Seconds for which a process waits for another one's search; then it searches itself."""


@contextmanager
def turn(key: str, has_found: Callable[[], bool]) -> Iterator[bool]:
    """Wait for the turn to search under a key. Yields whether this process has waited for another
    one, whose record it then reads. ``has_found`` says whether there is such a record.

    ::

        with turn(facts.strict, lambda: Memory.of(settings.now()).record(facts.strict)) as waited:
            choice = read() if waited else search()
    """
    leases: list[Lease] = []
    waited = False
    try:
        for claims in stores(settings.now()).claims:
            digest = digest_of(key)
            while (claim := claims.claim(digest, LIMIT, has_found)) is None:
                waited = True
                time.sleep(claims.pause(digest))
            if claim == FOUND:
                break
            assert isinstance(claim, Lease)
            leases.append(claim)
        yield waited
    finally:
        for lease in reversed(leases):
            lease.release()
