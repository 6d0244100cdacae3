"""Compiled kernels, kept by what they were made of: on disk, and where machines share them.

::

    stores(settings) ──► Layers ── disk.py ── a private directory
                            └───── remote.py ── redis, or any URL of fsspec
    entry.py    one entry, as bytes        digest.py   what the keys of entries are made of

Enters: payloads, by the digest of the request that they answer. Leaves: the same payloads,
verified, or misses. It must not know how anything is compiled or loaded. Nothing here is ever
unpickled.
"""

from tzero.cache.store import Found, Layers, Store, stores

__all__ = ["Found", "Layers", "Store", "stores"]
