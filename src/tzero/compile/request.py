"""What crosses the border between processes: a `Request` goes out, an `Artifact` comes back.

::

    a backend ── Request ──► service ── worker ── backend.compile ──► Artifact ──► cache, loader

Enters: plain text and bytes. Leaves: two frozen records that pickle, and that stand alone: a worker
that has a request needs nothing of the process that made it, not even an importable module. They
must not know what is compiled, or how. The bytes of an artifact are what caches hold; they are
read without ever being unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["SCHEMA", "Artifact", "Malformed", "Request"]

SCHEMA = 1
"""Raised whenever requests or artifacts change their meaning: older ones are then unknown."""

_LENGTH = struct.Struct(">I")


class Malformed(ValueError):
    """Bytes that are no artifact.

    >>> Artifact.decode(b"torn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tzero.compile.request.Malformed: no artifact...
    """


@dataclass(frozen=True)
class Request:
    """One thing to compile, whole.

    >>> request = Request(backend="cpp", name="add", program="int main() {}", toolchain="gcc 12")
    >>> request.digest == Request("cpp", "add", "int main() {}", "gcc 13").digest
    False
    """

    backend: str
    """The entry point, in the group ``tzero.backends``, of what compiles it."""

    name: str
    """The kernel's name, for people."""

    program: str
    """Source, constants, options and target, as the backend writes them: in one way only, so that
    equal programs are equal texts."""

    toolchain: str
    """The versions of all that has a say in the result, and the CPU's features where they do."""

    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables the compiler is to see: where things are, not what comes out, which would belong
    to the program. They are not part of the digest."""

    schema: int = SCHEMA

    @functools.cached_property
    def digest(self) -> str:
        """The content address of what this asks for."""
        fields = (str(self.schema), self.backend, self.name, self.program, self.toolchain)
        texts = [each.encode("utf-8", "surrogatepass") for each in fields]
        lengths = [_LENGTH.pack(len(text)) for text in texts]
        return hashlib.sha256(b"".join([*lengths, *texts])).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.backend, self.name, self.program, self.toolchain, dict(self.environment))
        return Request, (*facts, self.schema)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a compiler made: files by name, and facts about them as JSON has them.

    >>> made = Artifact({"add.so": b"..."}, {"entry": "add"})
    >>> Artifact.decode(made.encode()) == made
    True
    """

    files: Mapping[str, bytes]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.files:
            if not _is_plain(name):
                raise Malformed(f"{name!r} is no name for a file")

    def encode(self) -> bytes:
        """The artifact as bytes: a length, the facts and names as JSON, and the files."""
        names = sorted(self.files)
        head = {"facts": self.facts, "files": [[name, len(self.files[name])] for name in names]}
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(text)), text, *(self.files[name] for name in names)])

    @staticmethod
    def decode(data: bytes) -> Artifact:
        """The artifact of these bytes; `Malformed` where they are none."""
        try:
            (size,) = _LENGTH.unpack_from(data)
            head = json.loads(data[_LENGTH.size : _LENGTH.size + size])
            facts, table = head["facts"], [(str(name), int(n)) for name, n in head["files"]]
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Malformed(f"no artifact: {error}") from error
        at = _LENGTH.size + size
        sizes = [n for _, n in table]
        if min(sizes, default=0) < 0 or at + sum(sizes) != len(data) or type(facts) is not dict:
            raise Malformed("no artifact: its parts do not add up")
        files = {}
        for name, n in table:
            files[name] = data[at : at + n]
            at += n
        if len(files) != len(table):
            raise Malformed("no artifact: a name comes twice")
        return Artifact(files, facts)


def _is_plain(name: str) -> bool:
    """Whether a name stays in the directory it is put in."""
    return 0 < len(name) <= 255 and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}
