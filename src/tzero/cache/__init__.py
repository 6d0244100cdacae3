"""The cache of compiled kernels: on disk, and optionally shared between machines.

::

    stores(settings) ──► Layers ── disk.py ── a private directory
                            └───── remote.py ── redis, or any URL of fsspec
                            └───── claims.py ── who makes what is missing: marks on a board, in a
                                   directory, redis (claims_*.py) or a store of torch (c10d.py)
    place.py    where the processes of a job meet: TZERO_FLEET; fleet.py, what they agree on there
    entry.py    the byte format of one entry
    digest.py   canonical text and toolchain facts, from which backends make the digests of requests

Enters: payloads, by the digest of their request. Leaves: the same payloads, verified, or misses. It
must not know how anything is compiled or loaded. Nothing here is ever unpickled.
"""

from tzero.cache.store import Found, Layers, Store, stores

__all__ = ["Found", "Layers", "Store", "stores"]
