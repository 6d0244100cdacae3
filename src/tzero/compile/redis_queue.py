"""A queue of requests on redis: `queue` is the client's end, an executor; `Desk` the worker's.

::

    Queue.submit ──► stream: sealed requests ──► Desk.take ── a lease, renewed while it works
        ▲                                          │
        └── future ◄── list of one client: sealed answers ◄── Desk.answer

Enters: requests and searches, as bytes. Leaves: their answers. It must not know what is compiled
or timed, nor what a worker does with a request.

Each message is sealed as an entry of the shared cache is, with the key of ``TZERO_CACHE_KEY`` if
there is one (`tzero.cache.entry`). A seal names the queue and the request, so a message counts only
where it was sent. Names contain a hash of the key. Nothing that comes back is unpickled. Redis
keeps the leases, by its own clock: a request that its worker has not renewed for that long goes to
another worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, NamedTuple

from tzero import locks, settings
from tzero.cache.entry import SCHEMA, Damaged, derived, opened, seal
from tzero.cache.remote import key_name, reason_of, shown
from tzero.compile.executor_task import Answer, compile_there
from tzero.compile.request import Artifact, Malformed, Request
from tzero.compile.worker import Failure
from tzero.errors import ToolchainMissing
from tzero.events import Event, emit

__all__ = [
    "COMPILE",
    "Desk",
    "Queue",
    "Taken",
    "measure_name",
    "queue",
    "read_request",
    "redis_errors",
    "warn_open",
]

COMPILE = "compile"
"""The name of the queue of compile requests."""

DELIVERIES = 3
"""How many workers may be lost with a request."""

_GROUP = "workers"
_KEPT = 3600  # seconds that redis keeps answers that nobody takes
_TIMEOUT = 15.0  # seconds of a reply


def measure_name(hardware: str) -> str:
    """The name of the queue of searches for a class of devices.

    >>> measure_name("cuda:sm_90")
    'measure/cuda:sm_90'
    """
    return f"measure/{hardware}"


def redis_errors() -> tuple[type[Exception], ...]:
    """What the package redis raises.

    ::

        except redis_errors() as error:
    """
    return (importlib.import_module("redis").RedisError,)


class _Redis:
    """A connection, and the names and seals of one key."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            redis = importlib.import_module("redis")
            backoff = importlib.import_module("redis.backoff")
            retry = importlib.import_module("redis.retry")
        except ImportError as error:
            raise ToolchainMissing(
                backend="redis",
                searched=["the package redis"],
                advice="Run `pip install 'tzero-runtime[redis]'`.",
            ) from error
        self.url = url
        self.key = None if key is None else derived(key)
        named = "open" if self.key is None else key_name(self.key)
        self.base = f"tzero/{SCHEMA}/{named}/queue"
        self.client = redis.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            retry=retry.Retry(backoff.NoBackoff(), 0),  # a message must not be sent twice
        )

    def stream(self, name: str) -> str:
        return f"{self.base}/{name}"

    def alive(self, name: str) -> str:
        return f"{self.base}/alive/{name}"

    def sealed(self, made: Artifact, *context: str) -> bytes:
        return seal(made.encode(), _digest(context), self.key)

    def opened(self, data: bytes, *context: str) -> Artifact:
        """The content of a message; `Damaged` or `Malformed` if it is not authentic, or no
        message."""
        return Artifact.decode(opened(data, _digest(context), self.key))


def _digest(context: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(["tzero queue", *context]).encode()).hexdigest()


# -- the client -----------------------------------------------------------------------------------


def queue(url: str, *, patience: float = 10.0) -> Queue:
    """An executor whose work is done by processes that run ``tzero worker URL``, for
    `tzero.compile.on`.

    With ``TZERO_CACHE_KEY`` set, only who has the same key can send requests and answers; searches
    are sent only then. Where no worker has been there for ``patience`` seconds, this process
    compiles.

    ::

        with tzero.compile.queue("redis://host:6379/0") as workers, tzero.compile.on(workers):
            serve()
    """
    key = settings.now().cache_key
    if key is None:
        warn_open(url)
    return Queue(url, key, patience)


def warn_open(url: str) -> None:
    """Say that a queue is not authenticated.

    >>> warn_open("redis://host:6379/0")
    """
    reason = (
        f"the queue {shown(url)} is not authenticated: whoever can write to it decides what is "
        "compiled, and what is loaded. Set TZERO_CACHE_KEY to the same secret on every machine."
    )
    emit(Event("cache", "queue", reason, {"layer": "remote", "url": shown(url)}))


class _Waiting(NamedTuple):
    future: Future[Answer]
    name: str
    entry: bytes  # its id in the stream


class Queue(Executor):
    """Compile requests, and searches, for workers at a redis server; `queue` makes it.

    ::

        future = workers.submit(compile_there, request, sender, limit)
    """

    def __init__(self, url: str, key: str | None, patience: float) -> None:
        self.shown = shown(url)
        self._redis = _Redis(url, key)
        self._patience = patience
        self._me = secrets.token_hex(16)
        self._owner = os.getpid()
        self._lock = locks.lock()  # protects everything below
        self._waiting: dict[str, _Waiting] = {}
        self._deserted: set[str] = set()  # queues that had no worker when they were last asked
        self._is_running = False
        self._is_shut = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a compile request; ``function`` must be that of `tzero.compile.on`."""
        if function is not compile_there:
            raise TypeError(
                f"workers at {self.shown} compile requests, and do not call "
                f"{getattr(function, '__name__', function)!r}; use it with tzero.compile.on"
            )
        return self._send(COMPILE, _written(args[0]))

    def measuring(self, hardware: str) -> _Searches | None:
        """An executor for searches on devices of a class; None without a key: a search is a pickle,
        and workers open only those of who has the key."""
        return None if self._redis.key is None else _Searches(self, measure_name(hardware))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Send nothing more. With ``wait``, wait for the answers."""
        with self._lock:
            self._is_shut = True
            waiting = list(self._waiting.values())
        for each in waiting:
            if cancel_futures:
                each.future.cancel()
            elif wait:
                each.future.exception()

    def _send(self, name: str, message: Artifact) -> Future[Answer]:
        if self._owner != os.getpid():
            raise BrokenExecutor("a forked process makes a queue of its own")
        number = secrets.token_hex(16)
        future: Future[Answer] = Future()
        facts = {**message.facts, "answer to": self._me}
        sealed = self._redis.sealed(Artifact(message.files, facts), "request", name, number)
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            with self._unreachable():
                if name in self._deserted:
                    if not self._redis.client.exists(self._redis.alive(name)):
                        raise BrokenExecutor(f"no worker is at {self.shown}")
                    self._deserted.discard(name)
                fields = {"number": number, "message": sealed}
                entry = self._redis.client.xadd(self._redis.stream(name), fields)
            self._waiting[number] = _Waiting(future, name, entry)
            if not self._is_running:
                # A daemon thread: answers that never come must not keep the process from ending.
                thread = threading.Thread(target=self._read, name="tzero-queue", daemon=True)
                thread.start()
                self._is_running = True
        return future

    @contextlib.contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except BrokenExecutor:
            raise
        except Exception as error:  # of redis, or of the network
            words = reason_of(error, self._redis.url)
            raise BrokenExecutor(f"{self.shown}: {words}") from None

    def _read(self) -> None:
        """Take answers while some are awaited; give up when redis or all workers are gone."""
        alone_since: dict[str, float] = {}
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                names = {each.name for each in self._waiting.values()}
            try:
                with self._unreachable():
                    lost = self._without_workers(names, alone_since)
                    place = f"{self._redis.base}/answers/{self._me}"
                    found = self._redis.client.blpop([place], timeout=1)
            except BrokenExecutor as error:
                self._fail(names, str(error))  # redis is gone, and with it what was sent
                continue
            if found is not None:
                self._take(found[1])
            elif lost:
                words = f"no worker has been at {self.shown} for {self._patience:g} s"
                with self._lock:
                    self._deserted |= lost
                self._fail(lost, words, withdraw=True)

    def _without_workers(self, names: set[str], alone_since: dict[str, float]) -> set[str]:
        """The queues that no worker has looked into for some time."""
        now = time.monotonic()
        for name in names:
            if self._redis.client.exists(self._redis.alive(name)):
                alone_since.pop(name, None)
            else:
                alone_since.setdefault(name, now)
        return {n for n in names if n in alone_since and now - alone_since[n] >= self._patience}

    def _take(self, data: bytes) -> None:
        number, sealed = data[:32].decode("ascii", "replace"), data[32:]
        with self._lock:
            waiting = self._waiting.get(number)
        if waiting is None:
            return  # another worker was faster, or it was given up
        try:
            answer = _answer_of(self._redis.opened(sealed, "answer", number))
        except (Damaged, Malformed, KeyError) as error:
            # Not an answer of a worker that has the key: the true one may come yet.
            reason = f"an answer at {self.shown} is not used: {error}"
            emit(Event("cache", number[:12], reason))
            return
        with self._lock:
            self._waiting.pop(number, None)
        if waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(answer)

    def _fail(self, names: set[str], words: str, withdraw: bool = False) -> None:
        with self._lock:
            failed = {n: each for n, each in self._waiting.items() if each.name in names}
            for number in failed:
                del self._waiting[number]
        for each in failed.values():
            with contextlib.suppress(BrokenExecutor), self._unreachable():
                if withdraw:
                    self._redis.client.xdel(self._redis.stream(each.name), each.entry)
            if each.future.set_running_or_notify_cancel():
                each.future.set_exception(BrokenExecutor(words))


class _Searches(Executor):
    """Searches for workers that have a device of one class."""

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue, self._name = queue, name

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        parcel, length, task = args
        message = Artifact({"parcel": parcel, "task": task}, {"length": length})
        return self._queue._send(self._name, message)


def _written(request: Request) -> Artifact:
    facts = {
        "backend": request.backend,
        "name": request.name,
        "program": request.program,
        "toolchain": request.toolchain,
        "environment": dict(request.environment),
        "schema": request.schema,
    }
    return Artifact({}, facts)


def read_request(message: Artifact) -> Request:
    """The compile request in a message; `Malformed` if there is none.

    >>> request = Request("cpp", "add", "int main() {}", "gcc 12")
    >>> read_request(_written(request)) == request
    True
    """
    try:
        fields = {name: message.facts[name] for name in ("backend", "name", "program", "toolchain")}
        environment, schema = message.facts["environment"], message.facts["schema"]
    except KeyError as error:
        raise Malformed(f"the request has no {error}") from error
    texts = [*fields.values(), *environment, *environment.values()]
    if not all(type(each) is str for each in texts) or type(schema) is not int:
        raise Malformed("the request has something that is no text")
    return Request(**fields, environment=environment, schema=schema)


def _answer_of(message: Artifact) -> Answer:
    facts = message.facts
    failure = None
    if "payload" not in message.files:
        failure = Failure(str(facts["problem"]), str(facts["trace"]), None)
    about = str(facts["where"]), int(facts["pid"]), float(facts["seconds"])
    return Answer(message.files.get("payload"), failure, facts["passing"] is True, *about)


# -- the worker -----------------------------------------------------------------------------------


class Taken(NamedTuple):
    """A request that this worker has a lease on.

    ::

        for taken in desk.take("compile", 4, block=1.0):
            desk.answer(taken, compile_there(read_request(taken.message), "", 600))
    """

    name: str
    entry: bytes
    number: str
    sealed: bytes
    message: Artifact


class Desk:
    """Where one worker takes requests, and leaves answers. Its methods raise what redis raises.

    ::

        desk = Desk("redis://host:6379/0", key=None, names=["compile"], lease=30)
    """

    def __init__(self, url: str, key: str | None, names: Sequence[str], lease: float) -> None:
        self._redis = _Redis(url, key)
        self._names, self._lease = names, lease
        self._me = secrets.token_hex(8)
        self._lock = locks.lock()  # protects `_taken`
        self._taken: dict[bytes, Taken] = {}  # by entry
        for name in names:
            self._open(name)

    def _open(self, name: str) -> None:
        redis = importlib.import_module("redis")
        try:
            self._redis.client.xgroup_create(self._redis.stream(name), _GROUP, "0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another worker has made it
                raise

    def take(self, name: str, count: int, block: float) -> list[Taken]:
        """Take requests whose worker is lost, else new ones; wait ``block`` seconds for one."""
        client, stream = self._redis.client, self._redis.stream(name)
        least = int(self._lease * 1000)
        entries = client.xautoclaim(stream, _GROUP, self._me, least, "0-0", count=count)[1]
        if not entries:
            found = client.xreadgroup(
                _GROUP, self._me, {stream: ">"}, count=count, block=max(1, int(block * 1000))
            )
            entries = found[0][1] if found else []
        return [taken for entry, fields in entries if (taken := self._read(name, entry, fields))]

    def _read(self, name: str, entry: bytes, fields: Mapping[bytes, bytes]) -> Taken | None:
        """The request of an entry; one that is not authentic is dropped, with an event."""
        number = fields.get(b"number", b"").decode("ascii", "replace")
        sealed = fields.get(b"message", b"")
        try:
            message = self._redis.opened(sealed, "request", name, number)
            taken = Taken(name, entry, number, sealed, message)
            str(message.facts["answer to"])
        except (Damaged, Malformed, KeyError) as error:
            reason = f"a request at {shown(self._redis.url)} is dropped: {error}"
            emit(Event("cache", number[:12] or "queue", reason))
            self._drop(self._redis.client, name, entry)
            return None
        if self._deliveries(name, entry) > DELIVERIES:
            self._answer_lost(taken)
            return None
        with self._lock:
            self._taken[entry] = taken
        return taken

    def _deliveries(self, name: str, entry: bytes) -> int:
        found = self._redis.client.xpending_range(
            self._redis.stream(name), _GROUP, min=entry, max=entry, count=1
        )
        return int(found[0]["times_delivered"]) if found else 1

    def _answer_lost(self, taken: Taken) -> None:
        words = f"{DELIVERIES} workers were lost with it"
        self.answer(taken, Answer(None, Failure(words, "", None), True, "the queue", 0, 0.0))

    def _drop(self, client: Any, name: str, entry: bytes) -> None:
        client.xack(self._redis.stream(name), _GROUP, entry)
        client.xdel(self._redis.stream(name), entry)

    def answer(self, taken: Taken, answer: Answer) -> None:
        """Send an answer, and end the lease."""
        files = {} if answer.payload is None else {"payload": answer.payload}
        facts: dict[str, Any] = {
            "passing": answer.passing,
            "where": answer.where,
            "pid": answer.pid,
            "seconds": answer.seconds,
        }
        if answer.failure is not None:
            facts |= {"problem": answer.failure.problem, "trace": answer.failure.trace}
        sealed = self._redis.sealed(Artifact(files, facts), "answer", taken.number)
        place = f"{self._redis.base}/answers/{taken.message.facts['answer to']}"
        with self._redis.client.pipeline(transaction=True) as together:
            together.rpush(place, taken.number.encode() + sealed)
            together.expire(place, _KEPT)
            self._drop(together, taken.name, taken.entry)
            together.execute()
        with self._lock:
            self._taken.pop(taken.entry, None)

    def give_back(self) -> None:
        """Let other workers have all that this one has not answered, at once."""
        with self._lock:
            left, self._taken = list(self._taken.values()), {}
        for taken in left:
            with self._redis.client.pipeline(transaction=True) as together:
                fields = {"number": taken.number, "message": taken.sealed}
                together.xadd(self._redis.stream(taken.name), fields)
                self._drop(together, taken.name, taken.entry)
                together.execute()

    def renew(self) -> None:
        """Renew the leases, and say that a worker is here. A lease that another worker has by now,
        because this process was stopped for a while, stays with it."""
        client = self._redis.client
        for name in self._names:
            client.set(self._redis.alive(name), b"1", px=int(self._lease * 1000))
        with self._lock:
            taken = list(self._taken.values())
        for each in taken:
            stream = self._redis.stream(each.name)
            mine = client.xpending_range(
                stream, _GROUP, min=each.entry, max=each.entry, count=1, consumername=self._me
            )
            if mine:
                client.xclaim(stream, _GROUP, self._me, 0, [each.entry], justid=True)

    def close(self) -> None:
        """Leave the group; what was not answered goes to others."""
        self.give_back()
        for name in self._names:
            self._redis.client.xgroup_delconsumer(self._redis.stream(name), _GROUP, self._me)
        self._redis.client.close()
