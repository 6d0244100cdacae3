"""The remote on a real redis server, of the test's own, on loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cache.conftest import Server, digest_of, start_redis
from tzero.cache.disk import Disk
from tzero.cache.entry import derived, seal
from tzero.cache.remote import Remote
from tzero.cache.store import Found, Layers
from tzero.events import Event

MINE, OTHER = digest_of("mine"), digest_of("other")
SOON = 30.0  # far above any wait that is promised, far below hanging


def at(server: Server, key: str | None = "key", **more: object) -> Remote:
    return Remote(server.url, key, alone=(0.01, 0.01), **more)  # type: ignore[arg-type]


def client(server: Server):
    import redis

    return redis.Redis(port=server.port)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def again(question: Callable[[], object]) -> object:
    """Ask until the remote is asked again, which it is left alone for a moment before."""
    until = time.monotonic() + SOON
    while (answer := question()) is None and time.monotonic() < until:
        threading.Event().wait(0.02)
    return answer


@pytest.mark.parametrize("key", [None, "a secret"])
def test_what_is_put_is_got_by_others(redis_server: Server, key: str | None) -> None:
    here, there = at(redis_server, key), at(redis_server, key)
    payload = os.urandom(300_000)
    assert there.get(MINE) is None
    here.put(MINE, payload)
    assert here.flush(SOON)
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
def test_what_is_not_ours_is_a_miss_and_is_replaced(
    redis_server: Server, entry: bytes, damage: str, told: list[Event]
) -> None:
    store = at(redis_server)
    client(redis_server).set(store.name_of(MINE), entry)
    assert store.get(MINE) is None
    assert [event.facts["damage"] for event in told] == [damage]
    store.put(MINE, b"code")
    assert store.flush(SOON)
    assert store.get(MINE) == b"code"
    assert len(told) == 1


def test_a_value_of_another_type_is_a_miss(redis_server: Server, told: list[Event]) -> None:
    store = at(redis_server)
    client(redis_server).lpush(store.name_of(MINE), "a list")
    assert store.get(MINE) is None
    assert len(told) == 1 and "WRONGTYPE" in told[0].reason


def test_an_entry_is_written_to_the_disk_and_served_from_there(
    redis_server: Server, tmp_path: Path
) -> None:
    other = at(redis_server)
    other.put(MINE, b"code")
    assert other.flush(SOON)
    layers = Layers(Disk(tmp_path / "cache"), at(redis_server))
    assert layers.get(MINE) == Found(b"code", "remote")
    redis_server.stop()
    assert layers.get(MINE) == Found(b"code", "disk")


def test_a_server_stopped_in_the_middle_is_missed_once_and_used_again(
    redis_server: Server, tmp_path: Path, told: list[Event]
) -> None:
    store = at(redis_server)
    store.put(MINE, b"code")
    assert store.flush(SOON) and store.get(MINE) == b"code"
    redis_server.stop()
    with within(SOON):
        for _ in range(20):
            assert store.get(MINE) is None
            store.put(OTHER, b"code")
        assert store.flush(SOON)
    assert len(told) == 1 and "goes on without it" in told[0].reason
    back = start_redis(tmp_path, redis_server.port)
    try:

        def put_and_got() -> bytes | None:
            store.put(OTHER, b"code")
            assert store.flush(SOON)
            return store.get(OTHER)

        assert again(put_and_got) == b"code"
    finally:
        back.stop()


def test_a_server_that_hangs_costs_a_bounded_time(redis_server: Server, told: list[Event]) -> None:
    store = at(redis_server, patience=0.3)
    store.put(MINE, b"code")
    assert store.flush(SOON)
    redis_server.pause()
    try:
        with within(SOON):
            assert store.get(MINE) is None
            store.put(OTHER, b"code")
        assert len(told) == 1 and "no answer within 0.3 s" in told[0].reason
    finally:
        redis_server.resume()
    assert again(lambda: store.get(MINE)) == b"code"


def test_a_server_that_is_paused_while_it_takes_an_entry_holds_nobody(
    redis_server: Server,
) -> None:
    store = at(redis_server, patience=0.3)
    assert store.get(MINE) is None
    redis_server.pause()
    try:
        with within(SOON):
            for each in range(50):
                store.put(digest_of(each), bytes(100_000))
            assert not store.flush(0.05)
    finally:
        redis_server.resume()
    assert store.flush(SOON)
    assert store.get(digest_of(49)) == bytes(100_000)


class Liar:
    """A server that answers every question in its own way."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
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
                self._answer(connection)
            except OSError:
                return  # the other side has had enough
            self._ended.wait(SOON)

    def close(self) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SOON)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"$1000000\r\n")
    for _ in range(2000):
        connection.sendall(b"x")
        threading.Event().wait(0.01)


LIES: dict[str, Callable[[socket.socket], None]] = {
    "not the protocol": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 50),
    "binary": lambda connection: connection.sendall(bytes(range(256)) * 50),
    "nothing": lambda connection: None,
    "hangs up": lambda connection: connection.shutdown(socket.SHUT_RDWR),
    "a size that never ends": lambda connection: connection.sendall(b"$99999999999\r\nxx"),
    "a byte at a time": trickle,
    "an error": lambda connection: connection.sendall(b"-OOM out of memory\r\n" * 20),
    "a number": lambda connection: connection.sendall(b":1\r\n" * 20),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_a_miss_in_bounded_time(lie: str, told: list[Event]) -> None:
    pytest.importorskip(
        "redis", reason="needs the package redis (pip install 'tzero-runtime[redis]')"
    )
    server = Liar(LIES[lie])
    try:
        store = Remote(server.url, "key", patience=0.5)
        with within(SOON):
            assert store.get(MINE) is None
            store.put(MINE, b"code")
        assert len(told) == 1 and "goes on without it" in told[0].reason
    finally:
        server.close()
