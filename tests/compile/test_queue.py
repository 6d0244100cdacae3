"""``tzero worker`` and `tzero.compile.queue`, on a real redis: leases, losses, forged messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tzero
from tests.cache.conftest import Server, start_redis
from tests.compile.backends import request
from tests.compile.memory import Memory
from tests.compile.waiting import PYTHONPATH, is_gone, paused_at, until
from tests.integrations.ray import kernels
from tzero import settings
from tzero.cache.remote import Remote
from tzero.cli import app
from tzero.compile import AsyncCompile, on
from tzero.compile.executor_task import Answer, compile_there, this_process
from tzero.compile.redis_queue import COMPILE, DELIVERIES, Desk, Queue, read_request
from tzero.compile.request import Artifact
from tzero.errors import CompileFailed
from tzero.events import Event, observe

HANG = 60.0
KEY = "a secret"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_redis(tmp_path_factory.mktemp("redis"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def client(redis: Server) -> Any:
    import redis as package

    made = package.Redis(port=redis.port)
    made.flushall()
    return made


@pytest.fixture
def start(redis: Server, client: Any, tmp_path: Path) -> Iterator[Start]:
    """Starts workers; those that are left are killed."""
    started: list[subprocess.Popen[str]] = []

    def make(*options: str, key: str = KEY) -> subprocess.Popen[str]:
        variables = {
            **os.environ,
            "PYTHONPATH": PYTHONPATH,
            "TZERO_CACHE_KEY": key,
            "TZERO_CACHE_DIR": str(tmp_path / f"cache{len(started)}"),
            "TZERO_COMPILE_WORKERS": "2",
            kernels.VARIABLE: str(tmp_path),
        }
        command = [sys.executable, "-m", "tzero", "worker", redis.url, *options]
        started.append(subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def service() -> Iterator[AsyncCompile]:
    with settings.override(compile_workers=2, cache_key=KEY):
        made = AsyncCompile(Memory())
        yield made
        made.shutdown()


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def reasons(seen: list[Event]) -> list[str]:
    return [each.reason for each in seen if each.kind == "fallback"]


def test_a_worker_compiles_into_the_shared_cache_and_ends_when_nothing_comes(
    redis: Server, client: Any, start: Start, service: AsyncCompile
) -> None:
    worker = start("--compile", "--idle", "1")
    with tzero.compile.queue(redis.url, patience=HANG) as queue, on(queue):
        made = [service.submit(request("echo", text)) for text in "aabc"]
        assert [future.result(HANG).files["out"] for future in made] == [b"a", b"a", b"b", b"c"]
        with pytest.raises(CompileFailed, match="SyntaxError"):
            service.compile(request("python", "def"))
    assert service.workers() == [] and service.stats().compiled["executor"] == 3
    assert worker.communicate(timeout=HANG)[0] == "3 compiled, 0 tuned\n"
    assert worker.returncode == 0
    kept = Remote(redis.url, KEY).get(request("echo", "b").digest)
    assert kept is not None and Artifact.decode(kept).files["out"] == b"b"
    assert client.xlen(Queue(redis.url, KEY, 1)._redis.stream(COMPILE)) == 0


def test_a_worker_says_in_json_what_it_has_done(redis: Server, start: Start) -> None:
    worker = start("--compile", "--once", "--json")
    assert json.loads(worker.communicate(timeout=HANG)[0]) == {"compiled": 0, "tuned": 0}
    assert worker.returncode == 0


def test_a_request_of_a_killed_worker_goes_to_another(
    redis: Server, start: Start, service: AsyncCompile, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    with tzero.compile.queue(redis.url, patience=HANG) as queue, on(queue):
        first = start("--compile", "--lease", "1")
        future = service.submit(request("pauses", str(place)))
        compiler = paused_at(place)
        first.kill()
        until(lambda: is_gone(compiler), "the end of its compiler")
        place.unlink()
        start("--compile", "--lease", "1")
        assert paused_at(place) != compiler
        place.unlink()
        assert future.result(HANG).facts["pid"] != compiler
    assert service.workers() == []


def test_sigterm_ends_a_worker_at_once_and_its_request_goes_to_another(
    redis: Server, start: Start, service: AsyncCompile, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    with tzero.compile.queue(redis.url, patience=HANG) as queue, on(queue):
        first = start("--compile", "--lease", "600")
        future = service.submit(request("pauses", str(place)))
        compiler = paused_at(place)
        first.send_signal(signal.SIGTERM)
        assert first.communicate(timeout=HANG)[0] == "0 compiled, 0 tuned\n"
        assert first.returncode == 0 and is_gone(compiler)
        place.unlink()
        start("--compile")
        paused_at(place)
        place.unlink()
        future.result(HANG)
    assert service.workers() == []


def test_workers_time_configs_and_one_that_ends_gives_its_search_to_another(
    redis: Server, start: Start, seen: list[Event], tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    first, second = start("--tune", "--lease", "600"), start("--tune", "--lease", "600")
    kernel, x = kernels.kernel(), torch.ones(1000)

    def call() -> None:
        with tzero.compile.queue(redis.url, patience=HANG) as queue, on(queue):
            assert torch.equal(kernel(x), x)

    with (
        settings.override(cache=False, cache_key=KEY),
        settings.applied({kernels.VARIABLE: "/nowhere"}),
        ThreadPoolExecutor(1) as thread,
    ):
        calling = thread.submit(call)
        until(lambda: list(tmp_path.glob("paused-*")), "timing")
        (paused,) = tmp_path.glob("paused-*")
        searching, other = sorted(
            (first, second), key=lambda each: str(each.pid) not in str(paused)
        )
        searching.send_signal(signal.SIGTERM)
        assert searching.communicate(timeout=HANG)[0] == "0 compiled, 0 tuned\n"
        assert searching.returncode == 0
        armed.unlink()
        calling.result(HANG)
    assert kernel.bind(x).choice.variant == tzero.Config(TIMES=1)
    assert any(f"process {other.pid}" in each.reason for each in seen)


def test_without_a_worker_this_process_compiles_and_nothing_is_left(
    redis: Server, client: Any, service: AsyncCompile, seen: list[Event]
) -> None:
    with tzero.compile.queue(redis.url, patience=0.1) as queue, on(queue):
        assert service.submit(request("echo")).result(HANG).facts["pid"] in service.workers()
    assert "no worker is at redis://127.0.0.1" in reasons(seen)[-1]
    assert client.xlen(queue._redis.stream(COMPILE)) == 0


def test_a_redis_that_dies_means_this_process(
    tmp_path: Path, service: AsyncCompile, seen: list[Event]
) -> None:
    server = start_redis(tmp_path)
    with tzero.compile.queue(server.url) as queue, on(queue):
        future = service.submit(request("echo"))
        until(lambda: queue._waiting, "sending")
        server.stop()
        assert future.result(HANG).facts["pid"] in service.workers()
        assert service.compile(request("echo", "later")).facts["pid"] in service.workers()
    assert "ConnectionError" in reasons(seen)[-1]


# -- messages, in this process --------------------------------------------------------------------


def sent(queue: Queue, text: str = "text") -> Any:
    return queue.submit(compile_there, request("echo", text), this_process(), 60)


def answer_of(text: str) -> Answer:
    return Answer(Artifact({"out": text.encode()}).encode(), None, False, "here", 1, 0.5)


def test_a_request_arrives_as_it_was_sent_and_so_does_its_answer(
    redis: Server, client: Any
) -> None:
    queue, desk = Queue(redis.url, KEY, HANG), Desk(redis.url, KEY, [COMPILE], 30)
    desk.renew()
    future = sent(queue)
    (taken,) = desk.take(COMPILE, 5, block=5)
    assert read_request(taken.message) == request("echo", "text")
    desk.answer(taken, answer_of("made"))
    assert future.result(HANG) == answer_of("made")
    assert desk.take(COMPILE, 5, block=0) == []


def test_who_lacks_the_key_sees_nothing_and_is_not_believed(
    redis: Server, client: Any, seen: list[Event]
) -> None:
    queue, desk = Queue(redis.url, KEY, HANG), Desk(redis.url, KEY, [COMPILE], 30)
    desk.renew()
    assert Desk(redis.url, "another", [COMPILE], 30).take(COMPILE, 5, block=0) == []
    future = sent(queue)
    (taken,) = desk.take(COMPILE, 1, block=5)
    forger = Desk(redis.url, "another", [COMPILE], 30)
    forger._redis.base = desk._redis.base
    forger.answer(taken, answer_of("forged"))
    until(lambda: any("is not used" in each.reason for each in seen), "the forged answer")
    desk.answer(taken, answer_of("made"))
    assert future.result(HANG).payload == answer_of("made").payload
    stream = desk._redis.stream(COMPILE)
    client.xadd(stream, {"number": "0" * 32, "message": b"garbage"})
    client.xadd(stream, {"number": taken.number, "message": taken.sealed[:-1] + b"x"})
    client.xadd(stream, {"number": "1" * 32, "message": taken.sealed})
    assert desk.take(COMPILE, 5, block=0) == []
    dropped = [each.reason for each in seen if "is dropped" in each.reason]
    assert len(dropped) == 3 and client.xlen(stream) == 0


def test_a_worker_that_wakes_after_another_took_over_changes_nothing(
    redis: Server, client: Any
) -> None:
    queue = Queue(redis.url, KEY, HANG)
    slept, other = (Desk(redis.url, KEY, [COMPILE], 0.05) for _ in range(2))
    future = sent(queue)
    (first,) = slept.take(COMPILE, 1, block=5)
    time.sleep(0.1)
    (second,) = other.take(COMPILE, 1, block=5)
    assert first.entry == second.entry
    slept.renew()
    (pending,) = client.xpending_range(other._redis.stream(COMPILE), "workers", "-", "+", 5)
    assert pending["consumer"].decode() == other._me
    other.answer(second, answer_of("made"))
    slept.answer(first, answer_of("late"))
    assert future.result(HANG).payload == answer_of("made").payload


def test_a_lease_that_is_renewed_stays(redis: Server, client: Any) -> None:
    queue = Queue(redis.url, KEY, HANG)
    mine, other = (Desk(redis.url, KEY, [COMPILE], 0.3) for _ in range(2))
    sent(queue)
    assert len(mine.take(COMPILE, 1, block=5)) == 1
    for _ in range(5):
        time.sleep(0.1)
        mine.renew()
        assert other.take(COMPILE, 1, block=0) == []


def test_a_request_that_several_workers_died_of_is_given_up(redis: Server, client: Any) -> None:
    queue = Queue(redis.url, KEY, HANG)
    future = sent(queue)
    for _ in range(DELIVERIES):
        assert len(Desk(redis.url, KEY, [COMPILE], 0.001).take(COMPILE, 1, block=5)) == 1
        time.sleep(0.01)
    last = Desk(redis.url, KEY, [COMPILE], 0.001)
    last.renew()
    assert last.take(COMPILE, 1, block=0) == []
    answer = future.result(HANG)
    assert answer.passing and "3 workers were lost" in answer.failure.problem


def test_a_queue_takes_requests_and_nothing_else(redis: Server) -> None:
    with pytest.raises(TypeError, match=r"tzero\.compile\.on"):
        Queue(redis.url, KEY, 1).submit(max, 1, 2)
    assert Queue(redis.url, None, 1).measuring("cpu:x86_64-avx2") is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["redis://127.0.0.1:1/0"], 2, "give --compile, --tune or both"),
        (["redis://127.0.0.1:1/0", "--tune"], 2, "TZERO_CACHE_KEY"),
        (["redis://:hush@127.0.0.1:1/0", "--compile"], 3, "the queue redis://127.0.0.1:1/0"),
        (["http://127.0.0.1:1/", "--compile"], 2, "redis://"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], code: int, words: str) -> None:
    done = CliRunner().invoke(app, ["worker", *arguments])
    assert done.exit_code == code and words in done.output and "hush" not in done.output
