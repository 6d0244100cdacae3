"""One entry of a cache, as bytes: a header that says what it is, and the payload.

::

    offset  size  field
         0     8  magic       89 't' 'z' 'e' 'r' 'o' 0d 0a
         8     2  schema      of this format
        10     2  flags       bit 0: authenticated
        12    32  request     the digest of the request that it answers
        44     8  length      of the payload
        52    32  sha256      of the payload
        84    32  mac         HMAC-SHA256 of the 84 bytes before it and the payload; zero: none
       116        payload

Numbers are big-endian. Enters: a payload and the digest of its request. Leaves: bytes; and, of
bytes, the payload, or `Damaged` with what is wrong. It must not know where entries are kept, nor
what is in them. Every byte is accounted for: whichever of them changes, the entry is not opened.
An entry is opened with exactly the key that it was sealed with: one that has a MAC is as damaged
to a reader without a key as one without a MAC is to a reader that has one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from typing import Literal

__all__ = ["SCHEMA", "Damage", "Damaged", "derived", "opened", "seal"]

SCHEMA = 1
"""Raised whenever the format changes: entries of other schemas are told apart and replaced."""

MAGIC = b"\x89tzero\r\n"
HEADER = struct.Struct(">8sHH32sQ32s32s")
SIGNED = HEADER.size - 32
"""Where the MAC begins, which is what it covers of the header."""

AUTHENTICATED = 1
NO_MAC = bytes(32)

Damage = Literal["torn", "extended", "foreign", "older", "newer", "altered", "unauthenticated"]

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Damaged(ValueError):
    """Bytes that are not the entry that was asked for, and why.

    >>> opened(b"\\x89tz", "0" * 64)
    Traceback (most recent call last):
    tzero.cache.entry.Damaged: torn: it ends within its header, after 3 of 116 bytes
    """

    def __init__(self, kind: Damage, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(kind, problem)

    def __str__(self) -> str:
        return f"{self.kind}: {self.problem}"


def derived(secret: str) -> bytes:
    """The key that a secret stands for.

    >>> derived("correct horse") == derived("battery staple")
    False
    """
    # What a secret signs for tzero's caches says nothing about what else it is used for.
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), b"tzero cache entries", "sha256")


def is_digest(text: str) -> bool:
    """Whether a text is what `Request.digest` gives, which is also safe in names of files."""
    return _DIGEST.fullmatch(text) is not None


def request_of(digest: str) -> bytes:
    """The digest of a request in the bytes that headers hold."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest of a request: 64 lower-case hex digits are")
    return bytes.fromhex(digest)


def seal(payload: bytes, digest: str, key: bytes | None = None) -> bytes:
    """The entry that answers the request of this digest.

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
    """The payload of an entry, if it answers the request of this digest and is whole; with a key,
    if it was sealed with that key.

    >>> opened(seal(b"code", "0" * 64), "1" * 64)
    Traceback (most recent call last):
    tzero.cache.entry.Damaged: foreign: it answers another request, 0000000000000000...
    """
    request = request_of(digest)
    magic, schema, flags, answers, length, sha256, mac = _header(data)
    if magic != MAGIC:
        raise Damaged("foreign", "it does not begin as an entry does")
    if schema != SCHEMA:
        kind: Damage = "older" if schema < SCHEMA else "newer"
        raise Damaged(kind, f"its schema is {schema}, and this tzero's is {SCHEMA}")
    if flags & ~AUTHENTICATED:
        raise Damaged("altered", f"its flags are {flags:#06x}, which nothing sets")
    if answers != request:
        raise Damaged("foreign", f"it answers another request, {answers.hex()[:16]}...")
    size = len(data) - HEADER.size
    if size != length:
        kind = "torn" if size < length else "extended"
        raise Damaged(kind, f"its payload has {size} bytes, and its header says {length}")
    payload = data[HEADER.size :]
    _authenticate(data, payload, flags, mac, key)
    if hashlib.sha256(payload).digest() != sha256:
        raise Damaged("altered", "its payload does not have the digest that its header says")
    return payload


def _header(data: bytes) -> tuple[bytes, int, int, bytes, int, bytes, bytes]:
    if len(data) < HEADER.size:
        if not data.startswith(MAGIC[: len(data)]):
            raise Damaged("foreign", "it does not begin as an entry does")
        words = f"it ends within its header, after {len(data)} of {HEADER.size} bytes"
        raise Damaged("torn", words)
    magic, schema, flags, answers, length, sha256, mac = HEADER.unpack_from(data)
    return magic, schema, flags, answers, length, sha256, mac


def _authenticate(data: bytes, payload: bytes, flags: int, mac: bytes, key: bytes | None) -> None:
    """Before anything else is made of the payload: whether its sender is one of us."""
    signed = bool(flags & AUTHENTICATED)
    if key is None:
        if signed:
            words = "it was sealed with a key, and none is set here (TZERO_CACHE_KEY)"
            raise Damaged("unauthenticated", words)
        if mac != NO_MAC:
            raise Damaged("altered", "it has a MAC, and its flags say that it has none")
        return
    if not signed:
        raise Damaged("unauthenticated", "it was sealed without a key, and one is set here")
    if not hmac.compare_digest(mac, _mac(key, data, payload)):
        words = "its MAC is not one of the key that is set here (TZERO_CACHE_KEY)"
        raise Damaged("unauthenticated", words)


def _mac(key: bytes, header: bytes, payload: bytes) -> bytes:
    signing = hmac.new(key, header[:SIGNED], "sha256")
    signing.update(payload)
    return signing.digest()
