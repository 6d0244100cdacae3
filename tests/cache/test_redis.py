"""The remote on a real redis server on loopback, one for each test."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cache.conftest import Server, digest_of, start_redis, where
from tzero.cache.disk import Disk
from tzero.cache.entry import derived, seal
from tzero.cache.remote import Remote
from tzero.cache.store import Layers
from tzero.events import Event

MINE, OTHER = digest_of("mine"), digest_of("other")
HANG = 60.0  # seconds after which a wait is given up, so that a failing test does not hang


def at(server: Server, key: str | None = "key", **more: object) -> Remote:
    return Remote(server.url, key, backoff=(0.01, 0.01), **more)  # type: ignore[arg-type]


def client(server: Server):
    import redis

    return redis.Redis(port=server.port)


def retried(call: Callable[[], object]) -> object:
    """Repeat a call until the backoff is over and it returns something."""
    end = time.monotonic() + HANG
    while (result := call()) is None and time.monotonic() < end:
        time.sleep(0.02)
    return result


@pytest.mark.parametrize("key", [None, "a secret"])
def test_get_returns_what_another_put(redis_server: Server, key: str | None) -> None:
    here, there = at(redis_server, key), at(redis_server, key)
    payload = os.urandom(300_000)
    assert there.get(MINE) is None
    here.put(MINE, payload)
    assert here.flush(HANG)
    assert there.get(MINE) == payload
    assert there.probe() is None


@pytest.mark.parametrize(
    ("entry", "damage"),
    [
        (b"garbage", "foreign"),
        (b"", "torn"),
        (seal(b"evil", MINE, derived("wrong")), "unauthenticated"),
        (seal(b"evil", MINE), "unauthenticated"),
        (seal(b"code", OTHER, derived("key")), "foreign"),
        (seal(b"code", MINE, derived("key"))[:-1], "torn"),
    ],
    ids=["garbage", "nothing", "wrong key", "no key", "another request's", "torn"],
)
def test_an_invalid_entry_is_a_miss_and_is_replaced(
    redis_server: Server, entry: bytes, damage: str, events: list[Event]
) -> None:
    store = at(redis_server)
    client(redis_server).set(store.name_of(MINE), entry)
    assert store.get(MINE) is None
    assert [event.facts["damage"] for event in events] == [damage]
    store.put(MINE, b"code")
    assert store.flush(HANG)
    assert store.get(MINE) == b"code"
    assert len(events) == 1


def test_a_value_of_another_type_is_a_miss(redis_server: Server, events: list[Event]) -> None:
    store = at(redis_server)
    client(redis_server).lpush(store.name_of(MINE), "a list")
    assert store.get(MINE) is None
    assert len(events) == 1 and "WRONGTYPE" in events[0].reason


def test_a_remote_hit_is_put_on_disk(redis_server: Server, tmp_path: Path) -> None:
    other = at(redis_server)
    other.put(MINE, b"code")
    assert other.flush(HANG)
    layers = Layers(Disk(tmp_path / "cache"), at(redis_server))
    assert where(layers.get(MINE)) == (b"code", "remote")
    redis_server.stop()
    assert where(layers.get(MINE)) == (b"code", "disk")


def test_a_server_that_stops_is_one_event_and_is_used_again(
    redis_server: Server, tmp_path: Path, events: list[Event]
) -> None:
    store = at(redis_server)
    store.put(MINE, b"code")
    assert store.flush(HANG) and store.get(MINE) == b"code"
    redis_server.stop()
    for _ in range(20):
        assert store.get(MINE) is None
        store.put(OTHER, b"code")
    assert store.flush(HANG)
    assert len(events) == 1 and "goes on without it" in events[0].reason
    back = start_redis(tmp_path, redis_server.port)
    try:

        def put_and_get() -> bytes | None:
            store.put(OTHER, b"code")
            assert store.flush(HANG)
            return store.get(OTHER)

        assert retried(put_and_get) == b"code"
    finally:
        back.stop()


def test_callers_do_not_wait_for_a_server_that_hangs(
    redis_server: Server, events: list[Event]
) -> None:
    store = at(redis_server, patience=0.3)
    store.put(MINE, b"code")
    assert store.flush(HANG)
    redis_server.pause()
    try:
        assert store.get(MINE) is None
        store.put(OTHER, b"code")
        assert len(events) == 1 and "no reply within 0.3 s" in events[0].reason
    finally:
        redis_server.resume()
    assert retried(lambda: store.get(MINE)) == b"code"


def test_put_does_not_wait_for_a_server_that_hangs(
    redis_server: Server,
) -> None:
    store = at(redis_server, patience=0.3)
    assert store.get(MINE) is None
    redis_server.pause()
    try:
        for each in range(50):
            store.put(digest_of(each), bytes(100_000))
        assert not store.flush(0.05)
    finally:
        redis_server.resume()
    assert store.flush(HANG)
    assert store.get(digest_of(49)) == bytes(100_000)


class FakeServer:
    """A server that replies to every request with ``reply``."""

    def __init__(self, reply: Callable[[socket.socket], None]) -> None:
        self._reply = reply
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(4096)
                self._reply(connection)
            except OSError:
                return  # the client closed the connection
            self._ended.wait(HANG)

    def close(self) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(HANG)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"$1000000\r\n")
    for _ in range(2000):
        connection.sendall(b"x")
        threading.Event().wait(0.01)


REPLIES: dict[str, Callable[[socket.socket], None]] = {
    "not the protocol": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 50),
    "binary": lambda connection: connection.sendall(bytes(range(256)) * 50),
    "nothing": lambda connection: None,
    "hangs up": lambda connection: connection.shutdown(socket.SHUT_RDWR),
    "a size that never ends": lambda connection: connection.sendall(b"$99999999999\r\nxx"),
    "a byte at a time": trickle,
    "an error": lambda connection: connection.sendall(b"-OOM out of memory\r\n" * 20),
    "a number": lambda connection: connection.sendall(b":1\r\n" * 20),
}


@pytest.mark.parametrize("reply", REPLIES)
def test_a_server_with_invalid_replies_is_a_miss(reply: str, events: list[Event]) -> None:
    pytest.importorskip(
        "redis", reason="needs the package redis (pip install 'tzero-runtime[redis]')"
    )
    server = FakeServer(REPLIES[reply])
    try:
        store = Remote(server.url, "key", patience=0.1)
        assert store.get(MINE) is None
        store.put(MINE, b"code")
        assert len(events) == 1 and "goes on without it" in events[0].reason
    finally:
        server.close()
