"""Events that a test sees, and a redis server for one test."""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tzero.cache import Found
from tzero.events import Event, observe


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """The events emitted during the test."""
    seen: list[Event] = []
    with observe(seen.append):
        yield seen


def digest_of(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def where(found: Found | None) -> tuple[bytes, str] | None:
    """A payload and the layer that had it."""
    return None if found is None else (found.payload, found.layer)


@dataclass
class Server:
    """A redis server on loopback."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        self.process.kill()
        self.process.wait(30)


def start_redis(folder: Path, port: int | None = None) -> Server:
    command = shutil.which("redis-server")
    if command is None:
        pytest.skip("needs redis-server, which is not installed (Debian: redis-server)")
    pytest.importorskip(
        "redis", reason="needs the package redis (pip install 'tzero-runtime[redis]')"
    )
    for _ in range(5):
        chosen = port or _free_port()
        options = f"--port {chosen} --bind 127.0.0.1 --save --appendonly no --dir".split()
        options.insert(options.index("--save") + 1, "")
        process = subprocess.Popen(
            [command, *options, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if _answers(process, chosen):
            return Server(process, chosen)
        process.kill()
        process.wait(30)
    raise AssertionError("redis-server does not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except ConnectionRefusedError:
            time.sleep(0.02)  # the server is starting; there is no event to wait for
    return False


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    server = start_redis(tmp_path)
    try:
        yield server
    finally:
        server.stop()
