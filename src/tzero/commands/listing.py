"""`tzero cache ls`: what is in the cache on disk, in words.

Enters: a store. Leaves: an `Entry` for each of its files. It must not change the store: looking at
an entry does not count as a use of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tzero.cache.disk import Disk
from tzero.compile.request import Artifact, Malformed
from tzero.events import one_line

__all__ = ["Entry", "entries"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a cache.

    >>> Entry("add", "cuda:90", 4096, 0.0, "0" * 64).kernel
    'add'
    """

    kernel: str
    """The kernel's name; of what is no kernel, what it is."""
    target: str
    bytes: int
    used: float
    digest: str


def entries(store: Disk) -> Iterator[Entry]:
    """The entries of a store, the one used last first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     list(entries(Disk(root)))
    []
    """
    for kept in store.kept():
        kernel, target = ("(damaged)", "") if kept.payload is None else _described(kept.payload)
        yield Entry(one_line(kernel), one_line(target), kept.size, kept.used, kept.digest)


def _described(payload: bytes) -> tuple[str, str]:
    try:
        artifact = Artifact.decode(payload)
    except Malformed:
        return "(a tuned result)", ""
    facts = artifact.facts
    name = facts.get("kernel") or facts.get("name") or ", ".join(sorted(artifact.files))
    metadata = facts.get("metadata")
    target = metadata.get("target") if isinstance(metadata, dict) else None
    if not isinstance(target, dict):
        return str(name), ""
    return str(name), f"{target.get('backend')}:{target.get('arch')}"
