"""A cache that machines share: the same entries, on redis or at any URL that fsspec knows.

::

    get ── left alone for now? ──► a miss, at once
      └─── a thread asks ── in time ── verify ──► payload, or a miss
                        └── too late, or an error ──► a miss; it is left alone for a while

    put ──► queue (bounded) ── one thread, while there is work ──► sealed, sent

Enters: payloads by digest, and a URL. Leaves: the same payloads, or misses. It must not know what
the payloads are, nor any other layer.

A remote is someone else's machine: it may be down, slow, or lie. No call here waits longer than
`PATIENCE`, whatever the transport does: another thread talks to the remote, and is left behind if
it must be. A remote that failed is left alone, twice as long each time, and that is told once, not
for each kernel. What comes back is opened as any entry is, with the key if there is one, and is a
miss if that fails. Entries of different keys and schemas have different names, so that machines
with different keys do not replace each other's.

A forked child begins with an empty queue and connections of its own; what its parent had in the
queue, the parent sends.
"""

from __future__ import annotations

import atexit
import collections
import hmac
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tzero.cache.entry import SCHEMA, Damaged, derived, opened, request_of, seal
from tzero.events import Event, emit

__all__ = ["Remote", "shown"]

PATIENCE = 2.0
"""Seconds that a caller waits for an answer, at most."""

TRANSFER = 15.0
"""Seconds that a connection to redis may take for one step, in the background."""

FAREWELL = 3.0
"""Seconds that the interpreter's exit waits for what is still to be sent, at most."""

ALONE = (5.0, 300.0)
"""Seconds that a remote is left alone after its first failure, and at most."""

ASKING = 8
"""Threads that ask at the same time, those left behind included."""

QUEUED = (256, 128 << 20)
"""Entries, and bytes, that may wait to be sent."""

_Answer = TypeVar("_Answer")


class _Unavailable(Exception):
    """A transport cannot be had on this machine; the message says what to do."""


class Transport(Protocol):
    """What brings bytes to a remote and back; it may raise anything, and take any time."""

    def fetch(self, name: str) -> bytes | None:
        """The bytes of this name; None where there are none."""

    def send(self, name: str, data: bytes) -> None:
        """Keep bytes under this name, in place of what may be there."""


class Remote:
    """A store behind a URL.

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
        alone: tuple[float, float] = ALONE,
        connect: Callable[[str], Transport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.shown = shown(url)
        self.authenticated = key is not None
        self.patience = patience
        self._key = None if key is None else derived(key)
        self._alone = alone
        self._connect = connect or _transport
        self._clock = clock
        self._said: set[str] = set()
        self.reset()
        _remotes.add(self)

    def __repr__(self) -> str:
        return f"Remote({self.shown!r})"

    def reset(self) -> None:
        """Forget connections, threads and what is queued, as in a child after a fork."""
        self._health = _Health(self._alone, self.patience, self._clock)
        self._asking = threading.BoundedSemaphore(ASKING)
        self._opening = threading.Lock()  # protects `_opened`, so that there is one
        self._opened: Transport | None = None
        self._outbox = _Outbox(self._send, self._dropped)

    def get(self, digest: str) -> bytes | None:
        """The payload of this digest, verified; None where there is none that can be used, or the
        remote does not answer in time."""
        name = self.name_of(digest)
        self._say_if_open()
        if not self._health.may_try():
            return None
        try:
            transport = self._transport()
            data = self._in_time(lambda: transport.fetch(name))
        except Exception as error:  # whatever a transport raises: a remote never fails a compile
            self._failed(error)
            return None
        self._health.worked()
        if data is None:
            return None
        try:
            return opened(data, digest, self._key)
        except Damaged as damage:
            words = f"{self.shown}: the entry {name} is not used: {damage}. It is made anew."
            facts = {"layer": "remote", "digest": digest, "damage": damage.kind}
            emit(Event("cache", digest[:12], words, facts))
            return None

    def put(self, digest: str, payload: bytes) -> None:
        """Have a payload sent, in the background; the caller does not wait."""
        request_of(digest)
        self._say_if_open()
        if self._health.is_left_alone():
            return
        try:
            self._transport()
        except Exception as error:  # as in `get`
            self._failed(error)
            return
        self._outbox.add(digest, payload)

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all that was put is sent or given up; whether it was in time."""
        return self._outbox.wait(seconds)

    def probe(self) -> str | None:
        """Why the remote does not answer; None if it does. Asks even one that is left alone."""
        try:
            transport, name = self._transport(), self.name_of("0" * 64)
            self._in_time(lambda: transport.fetch(name))
        except Exception as error:
            return _reason(error)
        return None

    def name_of(self, digest: str) -> str:
        """The name of an entry at the remote."""
        request_of(digest)
        whose = "open" if self._key is None else _mark(self._key)
        return f"tzero/{SCHEMA}/{whose}/{digest[:2]}/{digest}"

    def _transport(self) -> Transport:
        """Made by the caller, because it imports: a fork in the middle of an import by another
        thread would leave the child with half a module, and at the exit there are no imports."""
        with self._opening:
            if self._opened is None:
                self._opened = self._connect(self.url)
            return self._opened

    def _in_time(self, ask: Callable[[], _Answer]) -> _Answer:
        """What a question brings, asked by another thread. A thread whose answer does not come in
        time is left behind, and keeps its place until it ends: so there are never many of them."""
        until = self._clock() + self.patience
        if not self._asking.acquire(timeout=self.patience):
            raise TimeoutError(f"{ASKING} earlier questions have had no answer yet")
        question = _Question(ask, self._asking)
        try:
            # A daemon, for the interpreter waits without end for threads that are none.
            threading.Thread(target=question.run, name="tzero-remote", daemon=True).start()
        except RuntimeError:
            self._asking.release()  # no more threads: the interpreter ends, or has too many
            raise
        if not question.done.wait(max(0.0, until - self._clock())):
            raise TimeoutError(f"no answer within {self.patience:g} s")
        if question.error is not None:
            raise question.error
        return question.answer  # type: ignore[no-any-return]

    def _send(self, digest: str, payload: bytes) -> None:
        """One entry, sent by the thread of the outbox."""
        if not self._health.may_try():
            return  # it failed since this was put; told when it did
        try:
            data = seal(payload, digest, self._key)
            self._transport().send(self.name_of(digest), data)
        except Exception as error:  # as in `get`
            self._failed(error)
        else:
            self._health.worked()

    def _failed(self, error: Exception) -> None:
        delay = self._health.failed()
        if delay is not None:
            words = (
                f"the shared cache {self.shown} is left alone for {delay:g} s, and longer if it "
                f"fails again: {_reason(error)}. Compiling goes on without it."
            )
            self._say(words, {"error": type(error).__name__})

    def _dropped(self, digest: str, why: str) -> None:
        words = f"some entries are not sent to the shared cache {self.shown}: {why}"
        self._say(words, {"digest": digest})

    def _say_if_open(self) -> None:
        if self._key is None and "open" not in self._said:
            self._said.add("open")
            words = (
                f"the shared cache {self.shown} is used without a key: whoever can write to it "
                "decides what code runs here. Set TZERO_CACHE_KEY to a secret that only those have "
                "whom you trust."
            )
            self._say(words, {})

    def _say(self, words: str, facts: dict[str, Any]) -> None:
        emit(Event("cache", "remote", words, {"layer": "remote", "url": self.shown, **facts}))


class _Question:
    """One call on a transport, made by another thread."""

    def __init__(self, ask: Callable[[], Any], place: threading.BoundedSemaphore) -> None:
        self._ask = ask
        self._place = place
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except Exception as error:  # handed to who asked; nobody listens if that was too long ago
            self.error = error
        finally:
            self._place.release()
            self.done.set()


class _Health:
    """Whether a remote is worth asking: after a failure not before some time has passed, and then
    by one caller alone, until that one knows."""

    def __init__(
        self, alone: tuple[float, float], patience: float, clock: Callable[[], float]
    ) -> None:
        self._first, self._most = alone
        self._patience = patience
        self._clock = clock
        self._change = threading.Lock()  # protects the three below
        self._delay = 0.0  # how long it is left alone since its last failure; 0: it works
        self._until = 0.0
        self._trying = False  # one caller is asking whether it works again

    def is_left_alone(self) -> bool:
        return self._delay > 0.0 and self._clock() < self._until

    def may_try(self) -> bool:
        """Whether the caller may ask; it then says how that went."""
        if self._delay == 0.0:
            return True
        with self._change:
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._patience
            self._trying = True
            return True

    def worked(self) -> None:
        if self._delay:
            with self._change:
                self._delay, self._trying = 0.0, False

    def failed(self) -> float | None:
        """Leave it alone; for how long, if this failure is the first and is to be told."""
        with self._change:
            first = self._delay == 0.0
            # Calls that were under way together fail together: that is one failure.
            if first or self._trying:
                self._delay = self._first if first else min(2 * self._delay, self._most)
                self._until = self._clock() + self._delay
                self._trying = False
            return self._delay if first else None


class _Outbox:
    """What is to be sent, and the thread that sends it, which is there while there is work."""

    def __init__(
        self, send: Callable[[str, bytes], None], dropped: Callable[[str, str], None]
    ) -> None:
        self._send = send
        self._dropped = dropped
        self._change = threading.Condition()  # protects all below
        self._waiting: collections.deque[tuple[str, bytes]] = collections.deque()
        self._bytes = 0
        self._at_work = False
        self._told = False  # that something was dropped, since all was last sent

    def add(self, digest: str, payload: bytes) -> None:
        entries, most = QUEUED
        with self._change:
            if len(self._waiting) >= entries or self._bytes + len(payload) > most:
                why = "it is slower than entries are made"
            else:
                self._waiting.append((digest, payload))
                self._bytes += len(payload)
                why = self._start()
            tell = bool(why) and not self._told
            self._told = self._told or tell
        if tell:
            self._dropped(digest, why)

    def _start(self) -> str:
        """Have the thread run; why it does not. The lock is held by the caller."""
        if self._at_work:
            return ""
        # A daemon, for the interpreter would wait for any other without limit; `_at_exit` waits.
        thread = threading.Thread(target=self._work, name="tzero-remote-put", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is about to end, or there are too many
            self._waiting.clear()
            self._bytes = 0
            return str(error)
        self._at_work = True
        return ""

    def _work(self) -> None:
        try:
            while job := self._next():
                self._send(*job)
        except BaseException:  # of an observer of events: it is shown, and the next put goes on
            with self._change:
                self._rest()
            raise

    def _next(self) -> tuple[str, bytes] | None:
        with self._change:
            if not self._waiting:
                self._rest()
                return None
            digest, payload = self._waiting.popleft()
            self._bytes -= len(payload)
            return digest, payload

    def _rest(self) -> None:
        """The thread ends; the lock is held by the caller."""
        self._at_work = self._told = False
        self._change.notify_all()

    def wait(self, seconds: float | None) -> bool:
        with self._change:
            return self._change.wait_for(lambda: not self._at_work, seconds)


class _Redis:
    """On redis; connections are made by the calls."""

    def __init__(self, url: str) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            words = "the package redis is not installed; run `pip install 'tzero-runtime[redis]'`"
            raise _Unavailable(words) from error
        # Trying again is for `_Health` to decide, which knows what it costs the caller.
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=TRANSFER,
            socket_connect_timeout=TRANSFER,
            retry=Retry(NoBackoff(), 0),
        )

    def fetch(self, name: str) -> bytes | None:
        found = self._client.get(name)
        if found is None or isinstance(found, bytes):
            return found
        raise TypeError(f"redis answered with a {type(found).__name__}")

    def send(self, name: str, data: bytes) -> None:
        self._client.set(name, data)


class _Files:
    """On a file system of fsspec, which is opened by the first call: some connect to do so."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
            import fsspec.core
        except ImportError as error:
            words = "the package fsspec is not installed; run `pip install 'tzero-runtime[fsspec]'`"
            raise _Unavailable(words) from error
        for protocol in re.findall(r"([\w+.-]+)::", url.replace("://", "::")) or ["file"]:
            fsspec.get_filesystem_class(protocol)
        self._url = url
        self._open = fsspec.core.url_to_fs
        self._opening = threading.Lock()  # protects `_opened`, so that there is one
        self._opened: tuple[Any, str] | None = None

    def _place(self, name: str) -> tuple[Any, str]:
        with self._opening:
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
        raise TypeError(f"fsspec answered with a {type(found).__name__}")

    def send(self, name: str, data: bytes) -> None:
        files, path = self._place(name)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if "file" not in _names(files.protocol):
            files.pipe_file(path, data)  # object stores show an object when it is whole
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
    return (_Redis if scheme in ("redis", "rediss", "unix") else _Files)(url)


def shown(url: str) -> str:
    """A URL without what may be secret in it.

    >>> shown("redis://:password@host:6379/0?client_name=me")
    'redis://host:6379/0'
    """
    # Up to the last @: a password may hold any character, also where it should not.
    return re.sub(r"[?#].*", "", re.sub(r"//.*@", "//", url, flags=re.DOTALL), flags=re.DOTALL)


def _reason(error: Exception) -> str:
    words = str(error) if isinstance(error, _Unavailable) else f"{type(error).__name__}: {error}"
    return words.rstrip(": .")


def _mark(key: bytes) -> str:
    """A name for a key, from which the key cannot be had."""
    return hmac.digest(key, b"the name of this key", "sha256").hex()[:16]


_remotes: weakref.WeakSet[Remote] = weakref.WeakSet()


def _after_fork() -> None:
    for remote in list(_remotes):
        remote.reset()


def _at_exit() -> None:
    """Give what is still to be sent some time, for all remotes together."""
    until = time.monotonic() + FAREWELL
    for remote in list(_remotes):
        if not remote.flush(max(0.0, until - time.monotonic())):
            words = f"the shared cache {remote.shown} did not take all entries before the exit"
            emit(Event("cache", "remote", words, {"layer": "remote", "url": remote.shown}))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
