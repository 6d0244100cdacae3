"""An LRU table of artifacts in memory, limited in bytes.

Enters: artifacts by digest. Leaves: the same. It must not know where they came from. It has no
lock: its owner protects it.
"""

from __future__ import annotations

from collections import OrderedDict

from tzero.compile.request import Artifact

__all__ = ["Recent"]


class Recent:
    """Artifacts by digest; drops the least recently used when it is full.

    >>> recent = Recent(limit=10)
    >>> for name in "ab":
    ...     recent.put(name, Artifact({}), size=8)
    >>> recent.get("a") is None, recent.get("b")
    (True, Artifact(files={}, facts={}))
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[str, tuple[Artifact, int]] = OrderedDict()
        self._bytes = 0

    def get(self, digest: str) -> Artifact | None:
        """Return the artifact of this digest, and mark it as used."""
        found = self._entries.get(digest)
        if found is None:
            return None
        self._entries.move_to_end(digest)
        return found[0]

    def put(self, digest: str, artifact: Artifact, size: int) -> None:
        """Keep an artifact of ``size`` bytes."""
        _, before = self._entries.pop(digest, (None, 0))
        self._entries[digest] = artifact, size
        self._bytes += size - before
        while self._bytes > self.limit:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped
