"""tzero's store behind Helion's remote cache of tuned configs.

Enters: Helion's keys and records, both text. Leaves: the same records. It must not know what is in
a record, nor how Helion tunes.

Helion tries the remote cache first, keeps what it finds there locally, and goes on without it if it
fails.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from typing import Any

from tzero import settings
from tzero.cache import stores
from tzero.cache.reaching import PATIENCE

__all__ = ["remote_cache_class"]


@functools.cache
def remote_cache_class() -> Any:
    """The class for HELION_REMOTE_CACHE_BACKEND, a subclass of Helion's.

    ::

        remote_cache_class()().get(key)
    """
    base: Any = importlib.import_module("helion.autotuner").RemoteCacheBackend

    class RemoteCache(base):  # type: ignore[misc]
        """Helion's tuned configs in tzero's shared cache, else in its cache on disk."""

        def get(self, key: str) -> str | None:
            """Return the record of a key, or None."""
            layers, digest = stores(settings.now()), _digest(key)
            store = layers.remote or layers.disk
            found = None if store is None else store.get(digest)
            return None if found is None else found.decode()

        def put(self, key: str, data: str) -> None:
            """Store a record. Waits for the shared cache, but never long."""
            layers = stores(settings.now())
            layers.put(_digest(key), data.encode())
            layers.flush(PATIENCE)

    return RemoteCache


def _digest(key: str) -> str:
    return hashlib.sha256(f"helion 1 {key}".encode("utf-8", "surrogatepass")).hexdigest()
