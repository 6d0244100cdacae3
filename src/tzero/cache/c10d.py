"""The store of a torch.distributed job: marks on it, and entries in chunks.

Enters: a c10d store, or the address of the one that torchrun started; names, marks, entries.
Leaves: the same. It must not know what they mean. Imports torch when a store is first used.

Keys that were never set are read by comparing them with nothing and setting them to nothing: one
request, where ``get`` would wait for the key. An entry is a head, which names its chunks; the first
head counts, and the chunks of another are removed.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import os
import secrets
from typing import Any

from tzero import locks
from tzero.cache.place import job
from tzero.cache.reaching import CONNECTING
from tzero.cache.remote import TooLarge, Unavailable

__all__ = ["CHUNK", "LIMIT", "Connection", "Marks", "Values", "connection", "url_of"]

CHUNK = 4 << 20
"""Bytes of one value; the server of a TCPStore takes 8 MiB at most."""

LIMIT = 64 << 20
"""Bytes of one entry. All entries are in the memory of the process that has the store."""


_given: list[Any] = []  # stores that programs have passed, by the number in their URL


def url_of(store: Any) -> str:
    """The URL under which a store of the program's is known in this process.

    ::

        url_of(torch.distributed.HashStore())  # 'c10d:0'
    """
    if not any(store is each for each in _given):
        _given.append(store)
    return f"c10d:{next(k for k, each in enumerate(_given) if each is store)}"


class Connection:
    """A connection to a c10d store, made at the first call, and again in a forked child.

    ::

        Connection("c10d").store().compare_set("key", "", "value")
    """

    def __init__(self, url: str) -> None:
        _, is_given, number = url.partition(":")
        self._given = _given[int(number)] if is_given else None
        # In the caller's thread: imports on others do not go well with forks and the exit.
        self._distributed = importlib.import_module("torch.distributed")
        if not self._distributed.is_available():
            raise Unavailable("this build of torch has no torch.distributed")
        self._lock = locks.lock()  # protects the two below
        self._store: Any = None
        self._pid = 0

    def store(self) -> Any:
        """The store. Raises `Unavailable` if this process is not in a job."""
        with self._lock:
            if self._store is None or self._pid != os.getpid():
                self._store, self._pid = self._connected(), os.getpid()
            return self._store

    def _connected(self) -> Any:
        if self._given is not None:
            return self._given.clone()  # calls of others may block the one that they use
        address = job().address
        if address is None:
            raise Unavailable("MASTER_ADDR and MASTER_PORT are not set, as torchrun sets them")
        # It must not be the server, nor wait for others: it joins what the job has.
        return self._distributed.TCPStore(
            *address,
            is_master=False,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=CONNECTING),
        )


@functools.lru_cache(maxsize=32)
def connection(url: str) -> Connection:
    """The connection of this process: ``c10d`` is to the store of its job, others are from
    `url_of`.

    ::

        connection("c10d").store()
    """
    return Connection(url)


class Marks:
    """A board on a c10d store.

    ::

        Marks(connection("c10d")).read("tzero/1/open/claims/ab12")
    """

    shown = "c10d"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, name: str) -> str:
        """Return the mark of a name; empty: none."""
        return _there(self._connection.store(), name).decode(errors="replace")

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        """Replace the mark that was seen by another; return False if another is there now."""
        store = self._connection.store()
        if not mark:
            return bool(store.compare_set(name, seen, b"") == b"")
        # Of a key that is missing it says that it is as expected, so the answer must be the new.
        return bool(store.compare_set(name, seen, mark) == mark.encode())


class Values:
    """Entries on a c10d store: the transport of a `Remote`.

    ::

        Values(connection("c10d")).send("tzero/1/open/ab/ab12", data)
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._fetched: dict[str, bytes] = {}  # heads by name

    def fetch(self, name: str) -> bytes | None:
        """Return the bytes under this name, or None. Nothing is returned of what is no entry."""
        store = self._connection.store()
        head = _there(store, name)
        if not head:
            return None
        self._fetched[name] = head
        token, _, count = head.decode("ascii", "replace").partition(" ")
        if not (count.isdecimal() and 0 < int(count) <= -(-LIMIT // CHUNK)):
            return b""
        keys = [f"{name}/{token}/{k}" for k in range(int(count))]
        if not store.check(keys):  # else the next call would wait for them
            return b""
        return b"".join(store.multi_get(keys))

    def send(self, name: str, data: bytes) -> None:
        """Store bytes under this name, unless another process has. An entry that was fetched here
        and is sent all the same was damaged: it is replaced."""
        if len(data) > LIMIT:
            raise TooLarge(f"an entry has {len(data)} bytes, and c10d stores take {LIMIT}")
        store, token = self._connection.store(), secrets.token_hex(8)
        parts = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        for k, part in enumerate(parts):
            store.set(f"{name}/{token}/{k}", part)
        head = f"{token} {len(parts)}"
        if store.compare_set(name, self._fetched.pop(name, b""), head) != head.encode():
            for k in range(len(parts)):
                store.delete_key(f"{name}/{token}/{k}")


def _there(store: Any, name: str) -> bytes:
    """The value of a key; empty: none."""
    found: bytes = store.compare_set(name, "", "")
    return found
