"""A store in memory, for tests of the service."""

from __future__ import annotations

import threading
from typing import NamedTuple

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

    def put(self, digest: str, payload: bytes) -> None:
        self.entries[digest] = payload
