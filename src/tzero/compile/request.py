"""The two values that cross process boundaries: `Request` goes out, `Artifact` comes back.

::

    a backend ── Request ──► service ── worker ── backend.compile ──► Artifact ──► cache, loader

Enters: plain text and bytes. Leaves: two frozen records that can be pickled. A request is complete:
a worker needs nothing from the process that made it, not even an importable module. They must not
know what is compiled, or how. Caches hold the encoded bytes of an artifact, and decoding never
unpickles.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tzero import locks

__all__ = ["SCHEMA", "Artifact", "Malformed", "Request"]

SCHEMA = 1
"""Incremented when the meaning of requests or artifacts changes; older cache entries then miss."""

_LENGTH = struct.Struct(">I")


class Malformed(ValueError):
    """The bytes are not an encoded artifact.

    >>> Artifact.decode(b"torn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tzero.compile.request.Malformed: not an artifact...
    """


@dataclass(frozen=True)
class Request:
    """Everything needed to compile one kernel.

    >>> request = Request(backend="cpp", name="add", program="int main() {}", toolchain="gcc 12")
    >>> request.digest == Request("cpp", "add", "int main() {}", "gcc 13").digest
    False
    """

    backend: str
    """The backend that compiles it: an entry point in the group ``tzero.backends``, or an import
    path ``package.module:object``."""

    name: str
    """The kernel's name, for messages."""

    program: str
    """Source, constants, options and target, in a canonical text that the backend defines: equal
    programs must have equal texts."""

    toolchain: str
    """The versions of everything that affects the result, and the CPU features if they do."""

    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables for the compiler. They say where things are, and are not part of the
    digest; whatever affects the result belongs in ``program``."""

    schema: int = SCHEMA

    @locks.cached_property
    def digest(self) -> str:
        """SHA-256 over all fields but ``environment``: the cache key of the artifact."""
        fields = (str(self.schema), self.backend, self.name, self.program, self.toolchain)
        texts = [each.encode("utf-8", "surrogatepass") for each in fields]
        lengths = [_LENGTH.pack(len(text)) for text in texts]
        return hashlib.sha256(b"".join([*lengths, *texts])).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.backend, self.name, self.program, self.toolchain, dict(self.environment))
        return Request, (*facts, self.schema)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The output of a compiler: files by name, and JSON facts about them.

    >>> made = Artifact({"add.so": b"..."}, {"entry": "add"})
    >>> Artifact.decode(made.encode()) == made
    True
    """

    files: Mapping[str, bytes]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.files:
            if not _is_plain(name):
                raise Malformed(f"{name!r} is not a valid file name")

    def encode(self) -> bytes:
        """Encode as bytes: a length, then facts and file names as JSON, then the files."""
        names = sorted(self.files)
        head = {"facts": self.facts, "files": [[name, len(self.files[name])] for name in names]}
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(text)), text, *(self.files[name] for name in names)])

    @staticmethod
    def decode(data: bytes) -> Artifact:
        """Decode bytes made by `encode`; raise `Malformed` for anything else."""
        try:
            (size,) = _LENGTH.unpack_from(data)
            head = json.loads(data[_LENGTH.size : _LENGTH.size + size])
            facts, table = head["facts"], [(name, n) for name, n in head["files"]]
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Malformed(f"not an artifact: {error}") from error
        if any(type(name) is not str or type(n) is not int for name, n in table):
            raise Malformed("not an artifact: its files are not names and sizes")
        at = _LENGTH.size + size
        sizes = [n for _, n in table]
        if min(sizes, default=0) < 0 or at + sum(sizes) != len(data) or type(facts) is not dict:
            raise Malformed("not an artifact: the sizes of its parts do not match its length")
        files = {}
        for name, n in table:
            files[name] = data[at : at + n]
            at += n
        if len(files) != len(table):
            raise Malformed("not an artifact: a file name occurs twice")
        return Artifact(files, facts)


def _is_plain(name: str) -> bool:
    """Whether a file of this name stays in its directory."""
    return 0 < len(name) <= 255 and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}
