"""A store in memory, for tests of the service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from tzero.cache.store import Published
from tzero.settings import Settings


class Found(NamedTuple):
    payload: bytes
    layer: str
    fetched_as: str = ""


class Memory:
    """Entries by digest. Calling it returns itself, so it also serves as the `stores` function."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, settings: Settings) -> Memory:
        return self

    def get(self, digest: str) -> Found | None:
        self.reads.append(digest)
        self.threads.add(threading.get_ident())
        payload = self.entries.get(digest)
        return None if payload is None else Found(payload, "disk")

    claims = ()

    def publish(
        self, digest: str, payload: bytes, then: Callable[[bool], None], first: bool = True
    ) -> Published:
        then(False)
        if not first:
            self.entries.pop(digest, None)
        return Published(self.entries.setdefault(digest, payload), True)
