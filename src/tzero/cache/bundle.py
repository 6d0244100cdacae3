"""The format of bundles: files of compiled kernels and tuned configs, shipped with a program.

::

    offset  size  field
         0     8  magic       89 't' 'z' 'b' 'n' 'd' 0d 0a
         8     2  schema      of this format
        10     2  flags       bit 0: authenticated
        12     8  length      of the index
        20    32  sha256      of the index
        52    32  mac         HMAC-SHA256 of the first 52 bytes and the index; zero: none
        84        index       JSON: for each entry its kind, digest, name, facts and length
                  entries     each as `entry` writes it, one after the other

Enters: payloads with their kinds, digests and facts. Leaves: a file; from a file, the payloads,
each verified when it is read. It must not know what the payloads are, nor who uses a bundle.
Nothing is unpickled.

A file is opened once and read through that descriptor, so that a bundle which is replaced on disk
stays the one that was checked. Without a key, only a file is used that belongs to this user or to
root, and that nobody else may write to.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tzero import ownership
from tzero.cache import entry
from tzero.errors import BundleRefused
from tzero.events import Event, emit

__all__ = ["MAGIC", "SCHEMA", "Bundle", "Item", "Listed", "write"]

SCHEMA = 1
"""Incremented when the format changes."""

MAGIC = b"\x89tzbnd\r\n"
HEADER = struct.Struct(">8sHHQ32s32s")
SIGNED = HEADER.size - 32
"""The length of the header before the MAC: the part that the MAC covers."""

LONGEST_INDEX = 1 << 30
"""Bytes; a longer index is damage."""

_NO_MAC = bytes(32)


class Item(NamedTuple):
    """A payload that goes into a bundle.

    >>> Item("kernel", "0" * 64, "add", {"target": "cuda:90"}, b"code").name
    'add'
    """

    kind: str
    digest: str
    name: str
    facts: Mapping[str, str]
    """What it is for, such as its target and the versions of compilers: for people and messages."""
    payload: bytes


class Listed(NamedTuple):
    """An entry as the index of a bundle has it.

    >>> Listed("kernel", "0" * 64, "add", {"target": "cuda:90"}, 84, 120).size
    120
    """

    kind: str
    digest: str
    name: str
    facts: Mapping[str, str]
    start: int
    size: int


def write(path: str | os.PathLike[str], items: Iterable[Item], key: str | None = None) -> None:
    """Write a bundle; with a secret, it and each entry have a MAC. The file appears at once and
    whole. Equal items make equal files.

    ::

        write("app.tzb", [Item("kernel", digest, "add", {"target": "cuda:90"}, code)])
    """
    secret = None if key is None else entry.derived(key)
    rows, sealed = [], []
    for item in sorted({(each.kind, each.digest): each for each in items}.values(), key=_order):
        sealed.append(entry.seal(item.payload, item.digest, secret))
        facts = dict(sorted(item.facts.items()))
        rows.append([item.kind, item.digest, item.name, facts, len(sealed[-1])])
    index = json.dumps({"entries": rows}, separators=(",", ":")).encode()
    flags = 0 if secret is None else entry.AUTHENTICATED
    facts_of_index = (MAGIC, SCHEMA, flags, len(index), hashlib.sha256(index).digest())
    header = HEADER.pack(*facts_of_index, _NO_MAC)
    mac = _NO_MAC if secret is None else _mac(secret, header, index)
    _replace(os.path.realpath(path), [header[:SIGNED] + mac, index, *sealed])


def _order(item: Item) -> tuple[str, str, str]:
    return item.kind, item.name, item.digest


def _replace(path: str, parts: Iterable[bytes]) -> None:
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    # As other files of a build: the umask decides who may read it. Group and others may not write.
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            for part in parts:
                ownership.write_all(file, part)
        finally:
            os.close(file)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to raise
            os.unlink(temporary)
        raise


def _mac(secret: bytes, header: bytes, index: bytes) -> bytes:
    return hmac.digest(secret, b"tzero bundle" + header[:SIGNED] + index, "sha256")


class Bundle:
    """An open bundle. Its index is verified; entries are verified when they are read.

    ::

        with Bundle("app.tzb") as bundle:
            bundle.get("kernel", digest)
    """

    def __init__(self, path: str | os.PathLike[str], key: str | None = None) -> None:
        """Open a bundle; `BundleRefused` says why it cannot be used."""
        self.path = os.path.abspath(path)
        self._secret = None if key is None else entry.derived(key)
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._refused(f"it cannot be read: {error.strerror}", _READABLE) from error
        try:
            found = os.fstat(self._file)
            self._check_owner(found)
            try:
                self.entries = self._index(found.st_size)
            except OSError as error:
                raise self._refused(f"it cannot be read: {error.strerror}", _READABLE) from error
        except BaseException:
            os.close(self._file)
            raise
        self._places = {(each.kind, each.digest): each for each in self.entries}

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"<Bundle {self.path!r}: {len(self)} entries>"

    @property
    def authenticated(self) -> bool:
        """Whether it was opened with a key."""
        return self._secret is not None

    def close(self) -> None:
        """Close the file; entries can no longer be read."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def get(self, kind: str, digest: str) -> bytes | None:
        """The verified payload; None for a miss. A damaged entry is a miss and an event."""
        listed = self._places.get((kind, digest))
        if listed is None:
            return None
        try:
            return self.read(listed)
        except entry.Damaged as damage:
            emit(Event("cache", listed.name, f"not used: its entry in {self.path} is {damage}"))
        return None

    def read(self, listed: Listed) -> bytes:
        """The verified payload of an entry; raises `entry.Damaged`."""
        try:
            data = os.pread(self._file, listed.size, listed.start)
        except OSError as error:
            raise entry.Damaged("torn", f"it cannot be read: {error.strerror}") from error
        if len(data) != listed.size:
            words = f"it has {len(data)} bytes, and the index says {listed.size}"
            raise entry.Damaged("torn", words)
        return entry.opened(data, listed.digest, self._secret)

    # -- opening -----------------------------------------------------------------------------------

    def _check_owner(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._refused("it is not a regular file", "Give the path of a bundle.")
        if self._secret is not None:
            return  # a MAC tells who wrote it
        if found.st_uid not in (os.geteuid(), 0):
            problem = f"it belongs to user {found.st_uid}, and you are user {os.geteuid()}"
            cure = f"chown {os.geteuid()} {self.path}, if you trust it, or set TZERO_CACHE_KEY."
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):04o})"
            cure = f"chmod go-w {self.path}, or set TZERO_CACHE_KEY."
        else:
            return
        raise self._refused(problem, cure)

    def _index(self, size: int) -> tuple[Listed, ...]:
        header = os.pread(self._file, HEADER.size, 0)
        if not header.startswith(MAGIC[: len(header)]) or not header:
            raise self._refused("it is no bundle: it does not begin with the magic bytes", _BUILD)
        if len(header) < HEADER.size:
            raise self._refused(f"it is cut off after {len(header)} bytes", _BUILD)
        _, schema, flags, length, sha256, mac = HEADER.unpack(header)
        if schema != SCHEMA:
            problem = f"its format is {schema}, and this tzero reads {SCHEMA}"
            raise self._refused(problem, _BUILD)
        if length > min(size, LONGEST_INDEX):
            raise self._refused(f"it is cut off: it has {size} bytes", _BUILD)
        index = os.pread(self._file, length, HEADER.size)
        self._authenticate(header, index, flags, mac)
        if hashlib.sha256(index).digest() != sha256:
            raise self._refused("its index does not match its SHA-256", _BUILD)
        return self._listed(index, HEADER.size + length, size)

    def _authenticate(self, header: bytes, index: bytes, flags: int, mac: bytes) -> None:
        if flags & ~entry.AUTHENTICATED:
            raise self._refused(f"it has unknown flags: {flags:#06x}", _BUILD)
        is_signed = bool(flags & entry.AUTHENTICATED)
        if self._secret is None:
            if is_signed:
                problem = "it was built with a key, and none is set here"
                raise self._refused(problem, "Set TZERO_CACHE_KEY.")
            if mac != _NO_MAC:
                raise self._refused("it has a MAC, but its flags say that it has none", _BUILD)
        elif not is_signed:
            problem = "it was built without a key, and one is set here"
            raise self._refused(problem, "Build it with TZERO_CACHE_KEY, or unset that.")
        elif not hmac.compare_digest(mac, _mac(self._secret, header, index)):
            problem = "its MAC does not match the key that is set here"
            raise self._refused(problem, "Set TZERO_CACHE_KEY to the key that it was built with.")

    def _listed(self, index: bytes, start: int, size: int) -> tuple[Listed, ...]:
        found: list[Listed] = []
        try:
            for kind, digest, name, facts, length in json.loads(index)["entries"]:
                row = Listed(kind, digest, name, facts, start, length)
                if not _is_listed(row):
                    raise ValueError(f"entry {len(found) + 1} is malformed")
                found.append(row)
                start += length
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._refused(f"its index cannot be read: {error}", _BUILD) from error
        if start != size:
            words = "cut off" if size < start else "longer than its index says"
            problem = f"it is {words}: it has {size} bytes, and should have {start}"
            raise self._refused(problem, _BUILD)
        return tuple(found)

    def _refused(self, problem: str, advice: str) -> BundleRefused:
        return BundleRefused(path=self.path, problem=problem, advice=advice)


_BUILD = "Build it again: tzero bundle build."
_READABLE = "Give the path of a bundle that this user can read."


def _is_listed(row: Listed) -> bool:
    texts: tuple[Any, ...] = (row.kind, row.digest, row.name)
    if not (type(row.facts) is dict and type(row.size) is int and row.size >= 0):
        return False
    pairs = (each for pair in row.facts.items() for each in pair)
    return all(type(each) is str for each in (*texts, *pairs)) and entry.is_digest(row.digest)
