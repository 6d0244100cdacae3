"""A cache shared between machines: the same entries, on redis or at any URL of fsspec.

::

    get ── in backoff? ──► a miss, immediately
      └─── another thread fetches ── in time ── verify ──► payload, or a miss
                                └── too late, or an error ──► a miss; backoff begins

    put ──► queue (bounded) ── one thread, while there is work ──► seal, send

Enters: payloads by digest, and a URL. Leaves: the same payloads, or misses. It must not know what
the payloads are, nor any other layer.

A remote may be down, slow, or malicious. No call here waits longer than `PATIENCE`, whatever the
transport does: another thread talks to the remote, and is abandoned if it takes too long. After a
failure the remote is not used for a while, twice as long each time. That is one event, not one per
kernel. A fetched entry is verified like any other, with the key if there is one; if that fails, it
is a miss. Entry names contain the schema and a hash of the key, so that machines with different
keys do not replace each other's entries.

A forked child starts with an empty queue and new connections. The parent sends what it had queued.
"""

from __future__ import annotations

import atexit
import collections
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tzero import locks
from tzero.cache.entry import SCHEMA, Damaged, derived, opened, request_of, seal
from tzero.cache.reaching import BACKOFF, CONNECTING, PATIENCE, Reaching
from tzero.events import Event, emit

__all__ = ["Remote", "TooLarge", "Unavailable", "connected", "key_name", "reason_of", "shown"]

SOCKET_TIMEOUT = 15.0
"""Socket timeout of redis connections in seconds; they are used in the background only."""

EXIT_TIMEOUT = 3.0
"""Maximum seconds that the interpreter's exit waits for the queue to be sent."""

QUEUE_LIMIT = (256, 128 << 20)
"""Maximum number of entries, and of bytes, in the queue."""


class Unavailable(Exception):
    """A transport cannot be used on this machine; the message says what to install."""


class TooLarge(Exception):
    """An entry that a transport does not take; the message has both sizes."""


class Transport(Protocol):
    """Fetches and sends bytes. May raise anything, and take any time."""

    def fetch(self, name: str) -> bytes | None:
        """Return the bytes under this name, or None."""

    def send(self, name: str, data: bytes) -> None:
        """Store bytes under this name, replacing existing ones."""


class Remote:
    """A store at a URL.

    >>> store = Remote("memory://docs", key="a secret")
    >>> store.put("0" * 64, b"code")
    >>> store.flush()
    True
    >>> store.get("0" * 64)
    b'code'
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        patience: float = PATIENCE,
        backoff: tuple[float, float] = BACKOFF,
        connect: Callable[[str], Transport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.shown = shown(url)
        self.authenticated = key is not None
        self.patience = patience
        self._key = None if key is None else derived(key)
        self._backoff = backoff
        self._connect = connect or _transport
        self._clock = clock
        self._warned_open = False
        self.reset()
        _remotes.add(self)

    def __repr__(self) -> str:
        return f"Remote({self.shown!r})"

    def reset(self) -> None:
        """Drop connections, threads and the queue, as a forked child must."""
        connecting = CONNECTING if self.url.startswith("c10d") else 0.0
        self._reaching = Reaching(self.patience, self._backoff, self._clock, connecting)
        self._open_lock = locks.lock()  # held while `_opened` is made
        self._opened: Transport | None = None
        self._outbox = _Outbox(self._send, self._dropped)

    def get(self, digest: str) -> bytes | None:
        """Return the verified payload of this digest; None if there is no valid entry, or no reply
        in time."""
        name = self.name_of(digest)
        self._warn_if_open()
        if not self._reaching.may_try():
            return None
        try:
            transport = self._transport()
            data = self._reaching.call(lambda: transport.fetch(name))
        except Exception as error:  # of any transport: a remote never fails a compile
            self._failed(error)
            return None
        self._reaching.worked()
        if data is None:
            return None
        try:
            return opened(data, digest, self._key)
        except Damaged as damage:
            reason = f"{self.shown}: the entry {name} is not used: {damage}. It will be replaced."
            facts = {"layer": "remote", "digest": digest, "damage": damage.kind}
            emit(Event("cache", digest[:12], reason, facts))
            return None

    def put(
        self, digest: str, payload: bytes, then: Callable[[bool], None] = lambda sent: None
    ) -> None:
        """Queue a payload to be sent in the background. ``then`` is called when it was sent, or
        with False if it is not."""
        request_of(digest)
        self._warn_if_open()
        if self._reaching.is_backing_off():
            then(False)
            return
        try:
            self._transport()
        except Exception as error:  # as in `get`
            self._failed(error)
            then(False)
            return
        self._outbox.add(digest, payload, then)

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until the queue is sent or dropped; return False on timeout."""
        return self._outbox.wait(seconds)

    def probe(self) -> str | None:
        """Return why the remote does not reply, or None if it does. Ignores the backoff."""
        try:
            transport, name = self._transport(), self.name_of("0" * 64)
            self._reaching.call(lambda: transport.fetch(name))
        except Exception as error:
            return reason_of(error, self.url)
        return None

    def name_of(self, digest: str) -> str:
        """Return the name of an entry at the remote."""
        request_of(digest)
        key = "open" if self._key is None else key_name(self._key)
        return f"tzero/{SCHEMA}/{key}/{digest[:2]}/{digest}"

    def fetched_as(self, digest: str) -> str:
        """Return the digest under which the disk keeps what was fetched from here: another one for
        each key, and without a key for each URL."""
        key = f"open {self.url}" if self._key is None else f"key {key_name(self._key)}"
        text = f"fetched {SCHEMA} {digest} {key}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _transport(self) -> Transport:
        """Return the transport; made in the caller's thread, because that imports packages. A fork
        during an import by another thread would leave the child with a half-imported module, and at
        interpreter exit imports fail."""
        with self._open_lock:
            if self._opened is None:
                self._opened = self._connect(self.url)
            return self._opened

    def _send(self, digest: str, payload: bytes) -> bool:
        """Send one entry; return whether it was. Runs on the thread of the outbox."""
        if not self._reaching.may_try():
            return False  # it failed since this was put, which was reported then
        try:
            data = seal(payload, digest, self._key)
            self._transport().send(self.name_of(digest), data)
        except TooLarge as error:
            self._reaching.worked()
            self._dropped(digest, str(error))
            return False
        except Exception as error:  # as in `get`
            self._failed(error)
            return False
        self._reaching.worked()
        return True

    def _failed(self, error: Exception) -> None:
        delay = self._reaching.failed()
        if delay is not None:
            reason = (
                f"the shared cache {self.shown} is not used for {delay:g} s, and longer if it "
                f"fails again: {reason_of(error, self.url)}. Compiling goes on without it."
            )
            self._emit(reason, {"error": type(error).__name__})

    def _dropped(self, digest: str, why: str) -> None:
        reason = f"some entries are not sent to the shared cache {self.shown}: {why}"
        self._emit(reason, {"digest": digest})

    def _warn_if_open(self) -> None:
        if self._key is None and not self._warned_open:
            self._warned_open = True
            reason = (
                f"the shared cache {self.shown} is used without a key: whoever can write to it "
                "decides what code runs here. Set TZERO_CACHE_KEY to the same secret on each "
                "machine that you trust."
            )
            self._emit(reason, {})

    def _emit(self, reason: str, facts: dict[str, Any]) -> None:
        emit(Event("cache", "remote", reason, {"layer": "remote", "url": self.shown, **facts}))


class _Outgoing(NamedTuple):
    digest: str
    payload: bytes
    then: Callable[[bool], None]


class _Outbox:
    """The queue of entries to send, and the thread that sends them and ends when it is empty."""

    def __init__(
        self, send: Callable[[str, bytes], bool], dropped: Callable[[str, str], None]
    ) -> None:
        self._send = send
        self._dropped = dropped
        self._changed = locks.condition()  # protects all below
        self._waiting: collections.deque[_Outgoing] = collections.deque()
        self._bytes = 0
        self._is_running = False
        self._reported = False  # a dropped entry, since the queue was last empty

    def add(self, digest: str, payload: bytes, then: Callable[[bool], None]) -> None:
        max_entries, max_bytes = QUEUE_LIMIT
        with self._changed:
            if len(self._waiting) >= max_entries or self._bytes + len(payload) > max_bytes:
                why = "the queue is full"
            else:
                self._waiting.append(_Outgoing(digest, payload, then))
                self._bytes += len(payload)
                why = self._start()
            report = bool(why) and not self._reported
            self._reported = self._reported or report
        if why:
            then(False)
        if report:
            self._dropped(digest, why)

    def _start(self) -> str:
        """Start the thread if needed; return why that failed, or "". The caller holds the lock."""
        if self._is_running:
            return ""
        # A daemon thread, because the interpreter waits for others without limit; `_at_exit` waits.
        thread = threading.Thread(target=self._work, name="tzero-remote-put", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # at interpreter exit, or there are too many threads
            self._waiting.clear()
            self._bytes = 0
            return str(error)
        self._is_running = True
        return ""

    def _work(self) -> None:
        try:
            while job := self._next():
                is_sent = False
                try:
                    is_sent = self._send(job.digest, job.payload)
                finally:
                    job.then(is_sent)
        except BaseException:  # of an observer of events; threading prints it
            with self._changed:
                self._stop()
            raise

    def _next(self) -> _Outgoing | None:
        with self._changed:
            if not self._waiting:
                self._stop()
                return None
            job = self._waiting.popleft()
            self._bytes -= len(job.payload)
            return job

    def _stop(self) -> None:
        """Mark the thread as ended; the caller holds the lock."""
        self._is_running = self._reported = False
        self._changed.notify_all()

    def wait(self, seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_running, seconds)


def connected(url: str) -> Any:
    """A client of a redis server, which connects at its first call.

    ::

        connected("redis://host:6379/0").ping()
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        words = "the package redis is not installed; run `pip install 'tzero-runtime[redis]'`"
        raise Unavailable(words) from error
    # No retries here: `Reaching` decides when to try again.
    return redis.Redis.from_url(
        url,
        socket_timeout=SOCKET_TIMEOUT,
        socket_connect_timeout=SOCKET_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )


class _Redis:
    """Transport to redis; connects at the first call."""

    def __init__(self, url: str) -> None:
        self._client = connected(url)

    def fetch(self, name: str) -> bytes | None:
        found = self._client.get(name)
        if found is None or isinstance(found, bytes):
            return found
        raise TypeError(f"redis replied with a {type(found).__name__}")

    def send(self, name: str, data: bytes) -> None:
        self._client.set(name, data)


class _Files:
    """Transport to a file system of fsspec. The first call opens it, which may connect."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
            import fsspec.core
        except ImportError as error:
            words = "the package fsspec is not installed; run `pip install 'tzero-runtime[fsspec]'`"
            raise Unavailable(words) from error
        for protocol in re.findall(r"([\w+.-]+)::", url.replace("://", "::")) or ["file"]:
            fsspec.get_filesystem_class(protocol)
        self._url = url
        self._open = fsspec.core.url_to_fs
        self._open_lock = locks.lock()  # held while `_opened` is made
        self._opened: tuple[Any, str] | None = None

    def _place(self, name: str) -> tuple[Any, str]:
        with self._open_lock:
            if self._opened is None:
                self._opened = self._open(self._url)
            files, root = self._opened
        return files, f"{root.rstrip('/')}/{name}"

    def fetch(self, name: str) -> bytes | None:
        files, path = self._place(name)
        try:
            found = files.cat_file(path)
        except FileNotFoundError:
            return None
        if isinstance(found, bytes):
            return found
        raise TypeError(f"fsspec returned a {type(found).__name__}")

    def send(self, name: str, data: bytes) -> None:
        files, path = self._place(name)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if "file" not in _names(files.protocol):
            files.pipe_file(path, data)  # object stores write objects atomically
            return
        temporary = f"{path}.{secrets.token_hex(16)}.tmp"
        try:
            files.pipe_file(temporary, data)
            os.rename(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise


def _names(protocol: str | tuple[str, ...]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _transport(url: str) -> Transport:
    scheme = url.partition("://")[0]
    if scheme.partition(":")[0] == "c10d":
        from tzero.cache import c10d  # here, because few have one

        return c10d.Values(c10d.connection(url))
    return (_Redis if scheme in ("redis", "rediss", "unix") else _Files)(url)


def shown(url: str) -> str:
    """Return a URL without the parts that may be secret.

    >>> shown("redis://:password@host:6379/0?client_name=me")
    'redis://host:6379/0'
    """
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "", url
    # Up to the last @: an unquoted password may contain any character.
    secret, at, place = rest.rpartition("@")
    if set(secret) & set("?#"):
        place = "..."  # the @ is the password's, or part of a parameter
    elif not at:
        place = rest
    if "@" in scheme:
        scheme = "..."
    return f"{scheme}{found}{re.sub(r'[?#].*', '', place, flags=re.DOTALL)}"


def _secrets(url: str) -> set[str]:
    """The parts of a URL that may be secret: before the last @, and after the first ? or #. Parsers
    cut an unquoted password at such characters, drop tabs and line ends, and show a part of it in
    their errors, with other characters escaped."""
    rest = url.partition("://")[2] or url
    before, _, after = rest.rpartition("@")
    secret = rest if set(before) & set("?#") else before + re.sub(r"^[^?#]*", "", after)
    parts = re.split(r"[:/?#@&=\[\]]", secret)
    plain = {each for part in parts for each in (part, urllib.parse.unquote(part))}
    return {piece for each in plain for piece in re.split(r"[^!-~]|['\"\\]", each) if piece}


def reason_of(error: Exception, url: str) -> str:
    """What went wrong, without the secrets of the URL.

    >>> reason_of(OSError("no route to :hush@host"), "redis://:hush@host").partition(",")[0]
    'OSError'
    """
    kind = type(error).__name__
    text = str(error) if isinstance(error, Unavailable) else f"{kind}: {error}"
    for each in _secrets(url):
        # A short part may occur by chance within a word.
        if each in text if len(each) > 3 else re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text):
            return (
                f"{kind}, whose message is not shown, because it contains a part of the URL that "
                "may be secret. In a URL, write the characters # / ? @ : of a password as %23 %2F "
                "%3F %40 %3A"
            )
    return text.rstrip(": .")


def key_name(key: bytes) -> str:
    """A hash of a key, as part of entry names; the key cannot be recovered from it.

    >>> len(key_name(derived("a secret")))
    16
    """
    return hmac.digest(key, b"the name of this key", "sha256").hex()[:16]


_remotes: weakref.WeakSet[Remote] = weakref.WeakSet()


def _after_fork() -> None:
    for remote in list(_remotes):
        remote.reset()


def _at_exit() -> None:
    """Wait for the queues of all remotes, `EXIT_TIMEOUT` seconds in total."""
    until = time.monotonic() + EXIT_TIMEOUT
    for remote in list(_remotes):
        if not remote.flush(max(0.0, until - time.monotonic())):
            reason = f"the shared cache {remote.shown} did not receive all entries before the exit"
            emit(Event("cache", "remote", reason, {"layer": "remote", "url": remote.shown}))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
