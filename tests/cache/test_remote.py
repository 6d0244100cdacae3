"""A remote that is slow, down or malicious: calls return, one event, used again when it works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cache.conftest import digest_of
from tzero.cache import reaching
from tzero.cache import remote as remote_module
from tzero.cache.entry import derived, seal
from tzero.cache.remote import Remote, shown
from tzero.events import Event

pytest.importorskip(
    "fsspec", reason="needs the package fsspec (pip install 'tzero-runtime[fsspec]')"
)

MINE, OTHER = digest_of("mine"), digest_of("other")


class Fake:
    """A transport that the test controls."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.calls = 0
        self.gate = threading.Event()  # calls wait for it
        self.gate.set()
        self.arrived = threading.Semaphore(0)

    def _called(self) -> None:
        self.calls += 1
        self.arrived.release()
        self.gate.wait()  # without limit: a caller that waits for this hangs
        if self.error is not None:
            raise self.error

    def fetch(self, name: str) -> bytes | None:
        self._called()
        return self.kept.get(name)

    def send(self, name: str, data: bytes) -> None:
        self._called()
        self.kept[name] = data


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.error = None
    fake.gate.set()  # ends the threads that were abandoned


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(fake: Fake, clock: Clock) -> Callable[..., Remote]:
    def made(key: str | None = "key", patience: float = 30.0) -> Remote:
        return Remote("fake://host", key, patience=patience, connect=lambda url: fake, clock=clock)

    return made


def reasons(events: list[Event]) -> str:
    assert all(event.kind == "cache" for event in events)
    return "\n".join(event.reason for event in events)


# Transports.


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("key", [None, "a secret"])
def test_get_returns_what_another_put(tmp_path: Path, kind: str, key: str | None) -> None:
    url = f"file://{tmp_path}/sharéd cache" if kind == "file" else f"memory://{tmp_path}"
    here, there = Remote(url, key), Remote(url, key)
    assert there.get(MINE) is None
    here.put(MINE, b"code")
    here.put(MINE, b"new code")
    here.put(OTHER, b"")
    assert here.flush(60)
    assert there.get(MINE) == b"new code"
    assert there.get(OTHER) == b""
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_plain_path_is_a_url(tmp_path: Path) -> None:
    store = Remote(str(tmp_path), "key")
    store.put(MINE, b"code")
    assert store.flush(60)
    assert store.get(MINE) == b"code"


def test_a_damaged_file_is_a_miss_and_is_replaced(tmp_path: Path, events: list[Event]) -> None:
    store = Remote(f"file://{tmp_path}", "key")
    store.put(MINE, b"code")
    assert store.flush(60)
    path = tmp_path / store.name_of(MINE)
    path.write_bytes(path.read_bytes()[:-1])
    assert store.get(MINE) is None
    assert events[0].facts["damage"] == "torn"
    store.put(MINE, b"code")
    assert store.flush(60)
    assert store.get(MINE) == b"code"
    assert len(events) == 1


@pytest.mark.parametrize("url", ["what://is/this", "redis://host:port/x"])
def test_an_invalid_url_is_one_event(url: str, events: list[Event]) -> None:
    store = Remote(url, "key")
    for _ in range(3):
        assert store.get(MINE) is None
        store.put(MINE, b"code")
    assert store.flush(60)
    assert len(events) == 1 and "is not used for 5 s" in events[0].reason


@pytest.mark.parametrize(("url", "package"), [("redis://h", "redis"), ("file:///x", "fsspec")])
def test_a_missing_package_is_an_event_that_says_what_to_install(
    url: str, package: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert Remote(url, "key").get(MINE) is None
    assert f"pip install 'tzero-runtime[{package}]'" in reasons(events)


# Authentication.


@pytest.mark.parametrize(
    ("entry", "damage"),
    [
        (seal(b"evil", MINE, derived("wrong")), "unauthenticated"),
        (seal(b"evil", MINE), "unauthenticated"),
        (seal(b"evil", OTHER, derived("key")), "foreign"),
        (b"garbage", "foreign"),
        (b"", "torn"),
    ],
    ids=["wrong key", "no key", "another request's", "garbage", "nothing"],
)
def test_an_invalid_entry_is_a_miss(
    make: Callable[..., Remote], fake: Fake, entry: bytes, damage: str, events: list[Event]
) -> None:
    store = make()
    fake.kept[store.name_of(MINE)] = entry
    assert store.get(MINE) is None
    (event,) = events
    assert event.facts["damage"] == damage
    store.put(MINE, b"code")
    assert store.flush(60)
    assert store.get(MINE) == b"code"


def test_a_missing_key_is_one_event(make: Callable[..., Remote], events: list[Event]) -> None:
    store = make(key=None)
    store.put(MINE, b"code")
    assert store.flush(60)
    assert store.get(MINE) == b"code"
    assert len(events) == 1 and "TZERO_CACHE_KEY" in reasons(events)
    make(key="key").get(MINE)
    assert len(events) == 1


def test_different_keys_do_not_replace_each_others_entries(make: Callable[..., Remote]) -> None:
    one, two, three = make("one"), make("two"), make(None)
    for store in (one, two, three):
        store.put(MINE, repr(store.authenticated).encode() + store.name_of(MINE).encode())
        assert store.flush(60)
    for store in (one, two, three):
        assert (store.get(MINE) or b"").endswith(store.name_of(MINE).encode())


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host:6379/0",
        "redis://me:hunter2@host/0?password=hunter2",
        "redis://me:hun/ter2@host/0",
        "simplecache::s3://key:hunter2@bucket/path#hunter2",
        "rediss://me:hunter2?hunter2@host",
        "redis://me:hun#ter2@host",
        "redis://host/0?password=hun@ter2",
        "redis:me:hunter2@host//",
        "me:hunter2@x://host",
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, events: list[Event]) -> None:
    assert "ter2" not in shown(url) and "//" in shown(url)
    assert "ter2" not in repr(Remote(url, "hunter2"))


@pytest.mark.parametrize(
    "mark", ["#", "/", "?", "@", ":", "[", "%", "%23", "::", "/?#", "\t?", "\u202e?", ";[é", "'#"]
)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "memory", "s3", "nosuch", "s3://x::redis"])
def test_a_password_is_in_no_event_and_no_log(
    scheme: str, mark: str, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = "swordfish", "x7"
    for password in (f"{first}{mark}{second}", f"{second}{mark}{first}"):
        store = Remote(f"{scheme}://me:{password}@host.invalid:6379/0", "key", patience=0.5)
        with caplog.at_level("DEBUG", logger="tzero"):
            assert store.get(MINE) is None
            said = store.probe() or ""
        store.put(MINE, b"code")
        store.flush(30)
        for text in (said, caplog.text, repr(events), repr(store)):
            assert first not in text and second not in text, text


def test_an_error_about_a_short_password_is_shown_if_it_is_not_in_it() -> None:
    def fails(url: str) -> None:
        raise ConnectionError("the host is unreachable")

    store = Remote("fake://me:h@host", "key", connect=fails)  # type: ignore[arg-type]
    assert store.probe() == "ConnectionError: the host is unreachable"


# Failures and backoff.


def test_after_a_failure_the_remote_is_not_used_and_there_is_one_event(
    make: Callable[..., Remote], fake: Fake, clock: Clock, events: list[Event]
) -> None:
    store = make()
    fake.error = ConnectionError("refused")
    for _ in range(5):
        assert store.get(MINE) is None
        store.put(MINE, b"code")
    assert store.flush(60)
    assert fake.calls == 1
    assert len(events) == 1 and "ConnectionError: refused" in reasons(events)

    delays = []
    for _ in range(8):  # the backoff doubles
        before = fake.calls
        start = clock.now
        while fake.calls == before:
            clock.now += 1.0
            store.get(MINE)
        delays.append(clock.now - start)
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300]
    assert len(events) == 1

    fake.error = None
    clock.now += 300
    store.put(MINE, b"code")
    assert store.flush(60)
    assert store.get(MINE) == b"code"
    fake.error = OSError("down again")
    store.get(MINE)
    assert len(events) == 2


def test_after_the_backoff_one_caller_at_a_time_tries(
    make: Callable[..., Remote], fake: Fake, clock: Clock
) -> None:
    store = make()
    fake.error = ConnectionError("refused")
    store.get(MINE)
    fake.error = None
    fake.gate.clear()
    clock.now += 5
    trying = threading.Thread(target=store.get, args=(MINE,))
    trying.start()
    assert fake.arrived.acquire(timeout=60) and fake.arrived.acquire(timeout=60)
    for _ in range(3):
        assert store.get(MINE) is None  # without a call of the transport
    assert fake.calls == 2
    fake.gate.set()
    trying.join(60)
    store.get(MINE)
    assert fake.calls == 3


def test_callers_do_not_wait_for_a_remote_that_hangs(
    make: Callable[..., Remote], fake: Fake, events: list[Event]
) -> None:
    store = make(patience=0.2)
    fake.gate.clear()  # no call of the transport returns before the test ends
    results: list[object] = []
    callers = [
        threading.Thread(target=lambda: results.append(store.get(MINE)))
        for _ in range(reaching.THREADS * 3)
    ]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert results == [None] * len(callers)
    assert fake.calls <= reaching.THREADS
    # Whoever is first to find it says so: one that waited, or one that nobody has time for.
    words = ("no reply", "have not returned")
    assert len(events) == 1 and any(each in reasons(events) for each in words)


def test_put_does_not_wait_for_the_transport(
    make: Callable[..., Remote], fake: Fake, events: list[Event]
) -> None:
    store = make()
    fake.gate.clear()
    for each in range(20):
        store.put(digest_of(each), b"code")
    assert not store.flush(0.01)
    assert fake.arrived.acquire(timeout=60)
    assert fake.calls == 1  # one thread sends
    fake.gate.set()
    assert store.flush(60)
    assert len(fake.kept) == 20
    assert events == []


def test_the_queue_is_bounded_and_dropping_is_one_event(
    make: Callable[..., Remote], fake: Fake, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "QUEUE_LIMIT", (4, 1000))
    store = make()
    fake.gate.clear()
    store.put(MINE, b"code")
    assert fake.arrived.acquire(timeout=60)  # no longer in the queue
    for each in range(10):
        store.put(digest_of(each), bytes(10))
    store.put(OTHER, bytes(2000))
    assert len(events) == 1 and "not sent" in reasons(events)
    fake.gate.set()
    assert store.flush(60)
    assert len(fake.kept) == 5
    store.put(OTHER, bytes(900))
    assert store.flush(60)
    assert len(fake.kept) == 6


def test_no_thread_is_left_when_the_queue_is_empty(make: Callable[..., Remote]) -> None:
    before = set(threading.enumerate())
    store = make()
    store.put(MINE, b"code")
    store.get(MINE)
    assert store.flush(60)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_probe_returns_why_there_is_no_reply(make: Callable[..., Remote], fake: Fake) -> None:
    store = make()
    assert store.probe() is None
    fake.error = ConnectionError("refused")
    assert store.probe() == "ConnectionError: refused"


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64])
def test_an_invalid_digest_raises(make: Callable[..., Remote], digest: str) -> None:
    store = make()
    with pytest.raises(ValueError, match="not a request digest"):
        store.get(digest)
    with pytest.raises(ValueError, match="not a request digest"):
        store.put(digest, b"code")


# Fork and exit.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_sends_only_its_own_entries(tmp_path: Path) -> None:
    code = """
import os, sys, threading
from tzero.cache.remote import Remote
url = "file://" + sys.argv[1]
gate = threading.Event()
class Slow:
    def __init__(self, real): self.real = real
    def fetch(self, name): return self.real.fetch(name)
    def send(self, name, data):
        gate.wait(60)
        self.real.send(name, data)
from tzero.cache import remote
store = Remote(url, "key", connect=lambda url: Slow(remote._transport(url)))
store.put("0" * 64, b"parent")
store.put("1" * 64, b"parent too")
pid = os.fork()
if pid == 0:
    gate = threading.Event(); gate.set()
    assert store.flush(0), "the child has nothing to send yet"
    store.put("2" * 64, b"child")
    ok = store.flush(60) and store.get("2" * 64) == b"child" and store.get("0" * 64) is None
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
gate.set()
assert store.flush(60)
assert [store.get(c * 64) for c in "012"] == [b"parent", b"parent too", b"child"]
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr


EXIT = """
import sys, threading
from tzero.cache import remote
remote.EXIT_TIMEOUT = 0.3
class Hanging:
    def fetch(self, name): return None
    def send(self, name, data): threading.Event().wait()
store = remote.Remote("file:///" + "x", "key", connect=lambda url: Hanging())
for c in "012":
    store.put(c * 64, b"code")
"""


def test_the_exit_sends_what_is_queued(tmp_path: Path) -> None:
    code = (
        "import sys; from tzero.cache.remote import Remote\n"
        "store = Remote('file://' + sys.argv[1], 'key')\n"
        "for c in '0123456789': store.put(c * 64, b'code')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    store = Remote(f"file://{tmp_path}", "key")
    assert [store.get(each * 64) for each in "0123456789"] == [b"code"] * 10


def test_the_exit_does_not_wait_for_a_remote_that_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,  # an exit that waits for the transport hangs
    )
    assert done.returncode == 0
    assert "did not receive all entries before the exit" in done.stderr
