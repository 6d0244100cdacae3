"""The byte format of one cache entry: a header and the payload.

::

    offset  size  field
         0     8  magic       89 't' 'z' 'e' 'r' 'o' 0d 0a
         8     2  schema      of this format
        10     2  flags       bit 0: authenticated
        12    32  request     the digest of the request
        44     8  length      of the payload
        52    32  sha256      of the payload
        84    32  mac         HMAC-SHA256 of the first 84 bytes and the payload; zero: none
       116        payload

Numbers are big-endian. Enters: a payload and the digest of its request. Leaves: the bytes of an
entry; from such bytes, the payload, or `Damaged` with what is wrong. It must not know where entries
are kept, nor what is in them.

Every byte is checked: a change to any of them makes the entry invalid. An entry is only valid with
the key it was sealed with: a reader without a key rejects entries with a MAC, and a reader with a
key rejects entries without one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from typing import Literal

__all__ = ["SCHEMA", "Damage", "Damaged", "derived", "opened", "seal"]

SCHEMA = 1
"""Incremented when the format changes; entries of other schemas are replaced."""

MAGIC = b"\x89tzero\r\n"
HEADER = struct.Struct(">8sHH32sQ32s32s")
SIGNED = HEADER.size - 32
"""The length of the header before the MAC: the part that the MAC covers."""

AUTHENTICATED = 1
NO_MAC = bytes(32)

Damage = Literal["torn", "extended", "foreign", "older", "newer", "altered", "unauthenticated"]

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Damaged(ValueError):
    """Bytes that are not a valid entry for the request, and why.

    >>> opened(b"\\x89tz", "0" * 64)
    Traceback (most recent call last):
    tzero.cache.entry.Damaged: torn: it ends in its header, after 3 of 116 bytes
    """

    def __init__(self, kind: Damage, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(kind, problem)

    def __str__(self) -> str:
        return f"{self.kind}: {self.problem}"


def derived(secret: str) -> bytes:
    """Derive the MAC key from a secret.

    >>> derived("correct horse") == derived("battery staple")
    False
    """
    # Derived, so that MACs reveal nothing about other uses of the same secret.
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), b"tzero cache entries", "sha256")


def is_digest(text: str) -> bool:
    """Whether a text has the form of a `Request.digest`, which is also safe in file names."""
    return _DIGEST.fullmatch(text) is not None


def request_of(digest: str) -> bytes:
    """Convert a digest to the bytes in a header; raise ValueError if it is not one."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is not a request digest (64 lower-case hex digits)")
    return bytes.fromhex(digest)


def seal(payload: bytes, digest: str, key: bytes | None = None) -> bytes:
    """Make the entry of a payload for the request with this digest; with a key, add a MAC.

    >>> entry = seal(b"code", "0" * 64)
    >>> len(entry), opened(entry, "0" * 64)
    (120, b'code')
    """
    flags = 0 if key is None else AUTHENTICATED
    facts = (MAGIC, SCHEMA, flags, request_of(digest), len(payload))
    header = HEADER.pack(*facts, hashlib.sha256(payload).digest(), NO_MAC)
    mac = NO_MAC if key is None else _mac(key, header, payload)
    return b"".join((header[:SIGNED], mac, payload))


def opened(data: bytes, digest: str, key: bytes | None = None) -> bytes:
    """Verify an entry against the digest of its request, and the key if any; return its payload.

    >>> opened(seal(b"code", "0" * 64), "1" * 64)
    Traceback (most recent call last):
    tzero.cache.entry.Damaged: foreign: it belongs to another request, 0000000000000000...
    """
    request = request_of(digest)
    magic, schema, flags, owner, length, sha256, mac = _header(data)
    if magic != MAGIC:
        raise Damaged("foreign", "it does not begin with the magic bytes")
    if schema != SCHEMA:
        kind: Damage = "older" if schema < SCHEMA else "newer"
        raise Damaged(kind, f"its schema is {schema}, this tzero uses {SCHEMA}")
    if flags & ~AUTHENTICATED:
        raise Damaged("altered", f"it has unknown flags: {flags:#06x}")
    if owner != request:
        raise Damaged("foreign", f"it belongs to another request, {owner.hex()[:16]}...")
    size = len(data) - HEADER.size
    if size != length:
        kind = "torn" if size < length else "extended"
        raise Damaged(kind, f"its payload has {size} bytes, its header says {length}")
    payload = data[HEADER.size :]
    _authenticate(data, payload, flags, mac, key)
    if hashlib.sha256(payload).digest() != sha256:
        raise Damaged("altered", "its payload does not match the SHA-256 in its header")
    return payload


def _header(data: bytes) -> tuple[bytes, int, int, bytes, int, bytes, bytes]:
    if len(data) < HEADER.size:
        if not data.startswith(MAGIC[: len(data)]):
            raise Damaged("foreign", "it does not begin with the magic bytes")
        problem = f"it ends in its header, after {len(data)} of {HEADER.size} bytes"
        raise Damaged("torn", problem)
    magic, schema, flags, owner, length, sha256, mac = HEADER.unpack_from(data)
    return magic, schema, flags, owner, length, sha256, mac


def _authenticate(data: bytes, payload: bytes, flags: int, mac: bytes, key: bytes | None) -> None:
    """Check the MAC, before anything else is done with the payload."""
    signed = bool(flags & AUTHENTICATED)
    if key is None:
        if signed:
            problem = "it was sealed with a key, and none is set here (TZERO_CACHE_KEY)"
            raise Damaged("unauthenticated", problem)
        if mac != NO_MAC:
            raise Damaged("altered", "it has a MAC, but its flags say it has none")
        return
    if not signed:
        raise Damaged("unauthenticated", "it was sealed without a key, and one is set here")
    if not hmac.compare_digest(mac, _mac(key, data, payload)):
        problem = "its MAC does not match the key that is set here (TZERO_CACHE_KEY)"
        raise Damaged("unauthenticated", problem)


def _mac(key: bytes, header: bytes, payload: bytes) -> bytes:
    signing = hmac.new(key, header[:SIGNED], "sha256")
    signing.update(payload)
    return signing.digest()
