"""Several processes that need the same kernels: one compiles, and what happens if it is lost.

Nodes are services with a disk cache each, in this process; a fleet is what they share. Where a
process is killed or stopped, it is a real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cache.conftest import Server, redis_server, start_redis
from tests.compile.backends import request
from tests.compile.waiting import HANG, PYTHONPATH, paused_at, until
from tzero.cache import c10d
from tzero.cache.claims import Claims
from tzero.cache.claims_directory import Directory
from tzero.cache.disk import Disk
from tzero.cache.fleet import Fleet
from tzero.cache.reaching import Reaching
from tzero.cache.remote import Remote
from tzero.cache.store import Layers
from tzero.compile import AsyncCompile
from tzero.events import Event, observe

__all__ = ["redis_server"]  # a fixture

FLEETS = ("file", "c10d", "redis")


@pytest.fixture
def events() -> Iterator[list[Event]]:
    seen: list[Event] = []
    with observe(seen.append):
        yield seen


@contextmanager
def fleet_at(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a fleet of this kind."""
    with ExitStack() as stack:
        if kind == "redis":
            server = start_redis(folder)
            stack.callback(server.stop)
            yield server.url
        elif kind == "c10d":
            import torch.distributed as dist

            yield c10d.url_of(dist.FileStore(str(folder / "store"), -1))
        else:
            yield f"file://{folder}/shared"


class Nodes:
    """Makes services with a disk each, at one fleet."""

    def __init__(self, url: str, folder: Path, stack: ExitStack, lease: float = 30.0) -> None:
        self._url, self._folder, self._stack, self._lease = url, folder, stack, lease
        self._count = 0

    def __call__(self, key: str = "key", patience: float = 2.0) -> AsyncCompile:
        self._count += 1
        root = self._folder / f"node {self._count}"
        reaching = Reaching(patience, (60.0, 60.0), connecting=20.0)
        claims = (
            Claims(Directory(str(root / "claims")), self._lease),
            Fleet(self._url, key, self._lease, reaching=reaching).claims,
        )
        remote = Remote(self._url, key, patience=patience, backoff=(60.0, 60.0))
        made = AsyncCompile(lambda _: Layers(Disk(root), remote, claims))
        self._stack.callback(made.shutdown)
        return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def compiles(service: AsyncCompile) -> int:
    return sum(service.stats().compiled.values())


@pytest.mark.parametrize("kind", FLEETS)
def test_of_the_nodes_of_a_fleet_one_compiles(
    kind: str, tmp_path: Path, stack: ExitStack, events: list[Event]
) -> None:
    place = tmp_path / "pause"
    asked = request("thread_pauses", str(place))
    with fleet_at(kind, tmp_path) as url:
        nodes = Nodes(url, tmp_path, stack)
        one, other, third = nodes(), nodes(), nodes()
        first = one.submit(asked)
        paused_at(place)
        later = [other.submit(asked), third.submit(asked)]
        until(lambda: len(other._claiming._parked) == 1, "waiting")
        place.unlink()
        made = [each.result(HANG) for each in (first, *later)]
        assert made[0] == made[1] == made[2]
        assert [compiles(each) for each in (one, other, third)] == [1, 0, 0]
        assert other.stats().hits["remote"] == 1
        assert other.compile(asked) == made[0]
        # Whoever has another key neither waits for them nor trusts what they made.
        stranger = nodes(key="another")
        theirs = stranger.submit(asked)
        paused_at(place)
        place.unlink()
        assert theirs.result(HANG).facts["thread"] != 0 and compiles(stranger) == 1
        assert stranger._stores(None).flush(HANG)  # type: ignore[arg-type]
    assert not [each for each in events if each.kind == "cache" and "layer=" not in each.reason]


def test_a_large_artifact_travels_in_chunks_and_a_larger_one_does_not(
    tmp_path: Path, stack: ExitStack, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c10d, "CHUNK", 1000)
    monkeypatch.setattr(c10d, "LIMIT", 9000)
    with fleet_at("c10d", tmp_path) as url:
        nodes = Nodes(url, tmp_path, stack)
        one, other = nodes(), nodes()
        for size in (5000, 20000):
            asked = request("compiler", f'["head", "-c", "{size}", "/dev/zero"]')
            assert one.submit(asked).result(HANG).files["out"] == bytes(size)
            assert one._stores(None).flush(HANG)  # type: ignore[arg-type]
            assert other.submit(asked).result(HANG).files["out"] == bytes(size)
    assert (compiles(one), compiles(other)) == (2, 1)
    assert [e.reason for e in events if "bytes, and c10d stores take 9000" in e.reason]


def test_a_store_that_lies_costs_a_compile(
    redis_server: Server, tmp_path: Path, stack: ExitStack, events: list[Event]
) -> None:
    import redis

    asked = request("compiler", '["echo", "right"]')
    nodes = Nodes(redis_server.url, tmp_path, stack, lease=0.3)
    one, other = nodes(), nodes()
    one.submit(asked).result(HANG)
    assert one._stores(None).flush(HANG)  # type: ignore[arg-type]
    client = redis.Redis(port=redis_server.port)
    names = client.keys("*")
    assert names
    for name in names:
        client.set(name, b"anything at all")
    fleet = Fleet(redis_server.url, "key", 0.3)
    client.set(fleet.claims._prefix + asked.digest, b"a claim that is none")
    assert other.submit(asked).result(HANG).files["out"] == b"right\n"
    assert compiles(other) == 1
    assert any("it does not begin with the magic bytes" in event.reason for event in events)


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_store_that_dies_or_hangs_in_the_middle_means_compiling_alone(
    how: str, redis_server: Server, tmp_path: Path, stack: ExitStack, events: list[Event]
) -> None:
    place = tmp_path / "pause"
    asked = request("thread_pauses", str(place))
    nodes = Nodes(redis_server.url, tmp_path, stack)
    one, other = nodes(), nodes(patience=0.3)
    first = one.submit(asked)
    paused_at(place)
    later = other.submit(asked)
    until(lambda: len(other._claiming._parked) == 1, "waiting")
    getattr(redis_server, how)()
    try:
        until(lambda: not other._claiming._parked, "compiling alone")
        until(lambda: threads_pausing() == 2, "two compiles")
        place.unlink()
        assert later.result(HANG).facts != {}
        assert compiles(other) == 1
    finally:
        redis_server.resume()
    assert first.result(HANG).facts != {}
    assert any("Each process compiles what it needs" in event.reason for event in events)


def threads_pausing() -> int:
    """How many threads of this process pause in a backend."""
    count = 0
    for frame in sys._current_frames().values():
        while frame is not None and frame.f_code.co_name != "pause_at":
            frame = frame.f_back  # type: ignore[assignment]
        count += frame is not None
    return count


def test_an_error_is_that_of_each_process(tmp_path: Path, stack: ExitStack) -> None:
    with fleet_at("file", tmp_path) as url:
        nodes = Nodes(url, tmp_path, stack)
        one, other = nodes(), nodes()
        asked = request("python", "def")
        futures = [service.submit(asked) for service in (one, other)]
        assert ["invalid syntax" in str(each.exception(HANG)) for each in futures] == [True, True]
        fixed = request("compiler", '["true"]')
        assert other.submit(fixed).result(HANG).facts["code"] == 0


def test_a_waiting_job_can_be_stopped_and_ends_with_its_service(
    tmp_path: Path, stack: ExitStack
) -> None:
    from concurrent.futures import CancelledError

    places = [tmp_path / "pause", tmp_path / "another"]
    with fleet_at("file", tmp_path) as url:
        nodes = Nodes(url, tmp_path, stack)
        one, other = nodes(), nodes()
        asked = [request("thread_pauses", str(place)) for place in places]
        first = [one.submit(each) for each in asked]
        for place in places:
            paused_at(place)
        later = [other.submit(each) for each in asked]
        until(lambda: len(other._claiming._parked) == 2, "waiting")
        other.stop(later[:1])
        assert isinstance(later[0].exception(HANG), CancelledError)
        other.shutdown()
        assert isinstance(later[1].exception(HANG), CancelledError)
        for place in places:
            place.unlink()
        for each in first:
            each.result(HANG)


@pytest.mark.parametrize("waiting", [False, True], ids=["in the background", "in the caller"])
def test_an_empty_mark_costs_a_lease(
    waiting: bool, tmp_path: Path, stack: ExitStack, events: list[Event]
) -> None:
    asked = request("compiler", '["echo", "right"]')
    with fleet_at("file", tmp_path) as url:
        node = Nodes(url, tmp_path, stack, lease=0.3)()
        for claims in node._stores(None).claims:  # type: ignore[arg-type]
            assert isinstance(claims.board, Directory)
            place = Path(claims.board._place(claims._prefix + asked.digest))
            place.parent.mkdir(parents=True, mode=0o700)
            place.touch()
        call = (lambda: node.compile(asked)) if waiting else node.submit(asked).result
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(call).result(HANG).files["out"] == b"right\n"
    assert compiles(node) == 1
    assert sum("is no mark" in event.reason for event in events) == 2


# -- real processes that share a disk --------------------------------------------------------------

START = """
import json, os, sys
from tests.compile.backends import request
from tzero.compile import AsyncCompile
service = AsyncCompile()
"""


@contextmanager
def program(text: str, folder: Path, **names: str) -> Iterator[subprocess.Popen[str]]:
    cache = {"TZERO_CACHE_DIR": str(folder / "cache"), "TZERO_COMPILE_WORKERS": "2"}
    process = subprocess.Popen(
        [sys.executable, "-c", START + text],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **cache, **names},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def result(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0
    return out


def test_processes_that_start_together_compile_each_kernel_once(tmp_path: Path) -> None:
    text = """
print("ready", flush=True)
sys.stdin.readline()
asked = [request("slow_echo", str(k)) for k in range(8)]
made = service.wait([service.submit(each) for each in asked])
assert [each.files["out"] for each in made] == [str(k).encode() for k in range(8)]
print(json.dumps([sum(service.stats().compiled.values()), [each.facts["pid"] for each in made]]))
"""
    with ExitStack() as stack:
        each = [stack.enter_context(program(text, tmp_path)) for _ in range(3)]
        for process in each:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in each:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        counts, pids = zip(*(json.loads(result(process)) for process in each), strict=True)
    assert sum(counts) == 8
    assert pids[0] == pids[1] == pids[2]  # all have the artifacts of whoever compiled them
    left = [path for path in (tmp_path / "cache" / "claims").rglob("*") if path.is_file()]
    assert left == []


PAUSE = """
made = service.submit(request("pauses", sys.argv[1] if len(sys.argv) > 1 else PLACE)).result()
print(made.facts["pid"], sum(service.stats().compiled.values()), flush=True)
"""


def test_the_compile_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = PAUSE.replace("PLACE", repr(str(place)))
    with (
        program(text, tmp_path, TZERO_LEASE="600") as owner,
        program(text, tmp_path, TZERO_LEASE="600") as other,
    ):
        first = paused_at(place)
        owners = {owner.pid: owner, other.pid: other}
        killed = next(each for pid, each in owners.items() if is_child(first, pid))
        left = next(each for each in owners.values() if each is not killed)
        killed.kill()
        killed.wait()
        until(lambda: place.exists() and paused_at(place) != first, "a take over")
        place.unlink()
        assert result(left).split()[1] == "1"


def is_child(pid: int, parent: int) -> bool:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent


def test_of_a_process_that_was_stopped_and_its_successor_one_result_counts(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = PAUSE.replace("PLACE", repr(str(place)))
    with program(text, tmp_path, TZERO_LEASE="1") as owner:
        first = paused_at(place)
        owner.send_signal(signal.SIGSTOP)
        with program(text, tmp_path, TZERO_LEASE="1") as other:
            until(lambda: place.exists() and paused_at(place) != first, "a take over")
            second = paused_at(place)
            place.unlink()
            assert result(other).split() == [str(second), "1"]
        owner.send_signal(signal.SIGCONT)
        assert result(owner).split() == [str(second), "1"]  # it compiled, and that did not count


def test_a_read_only_disk_is_one_event_and_each_compiles(tmp_path: Path, stack: ExitStack) -> None:
    place = tmp_path / "file"
    place.write_text("no directory")
    seen: list[Event] = []
    with observe(seen.append):
        claims = Claims(Directory(str(place / "claims")), 30.0)
        service = AsyncCompile(lambda _: Layers(Disk(place), None, (claims,)))
        stack.callback(service.shutdown)
        futures = [service.submit(request("compiler", f'["echo", "{k}"]')) for k in range(3)]
        assert [each.result(HANG).facts["code"] for each in futures] == [0, 0, 0]
    assert sum("claims at" in each.reason for each in seen) == 1


def test_without_a_place_on_the_machine_a_process_leaves_its_jobs_to_others_for_a_while(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tzero.compile import claiming
    from tzero.compile.budget import Place

    monkeypatch.setattr(Place, "take", lambda self, most: False)
    monkeypatch.setattr(claiming, "AFTER_PROGRESS", HANG)
    root = tmp_path / "cache"
    claims = [Claims(Directory(str(root / "claims")), 30.0) for _ in range(2)]
    one, other = (AsyncCompile(lambda _, c=c: Layers(Disk(root), None, (c,))) for c in claims)
    for each in (one, other):
        stack.callback(each.shutdown)
    asked = [request("compiler", f'["echo", "{k}"]') for k in range(3)]
    waiting = [other.submit(each) for each in asked[:2]]
    until(lambda: len(other._claiming._parked) == 2, "waiting")
    monkeypatch.setattr(Place, "take", lambda self, most: True)
    one.submit(asked[0]).result(HANG)
    assert waiting[0].result(HANG).files["out"] == b"0\n"  # found, though nobody else asks for it
    assert not waiting[1].done() and compiles(other) == 0
    monkeypatch.setattr(claiming, "AFTER_PROGRESS", 0.0)  # nobody finishes anything
    monkeypatch.setattr(Place, "take", lambda self, most: False)
    assert waiting[1].result(HANG).files["out"] == b"1\n"
    assert other.submit(asked[2]).result(HANG).files["out"] == b"2\n"
    assert compiles(other) == 2
