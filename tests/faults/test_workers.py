"""Faults of workers, as a table: what breaks, what the caller sees; and the next request works.

Each row runs in a real worker. `test_parents` has the faults of the process that submits requests.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compile.backends import Locked, Refused, Stubborn, request
from tests.compile.memory import Memory
from tests.compile.waiting import is_gone, paused_at, until
from tzero import settings
from tzero.compile import Artifact, AsyncCompile, compilers, pool
from tzero.errors import (
    BackendMissing,
    CompileFailed,
    CompileTimeout,
    ToolchainMissing,
    WorkerDied,
)
from tzero.events import Event, observe

METHODS = ["subprocess", "fork", "spawn"]


@dataclass(frozen=True)
class Row:
    name: str
    backend: str
    sees: type[Exception]
    says: list[str]  # in the message or its notes
    program: str = "text"
    under: settings.Changes = field(default_factory=lambda: settings.Changes())
    methods: tuple[str, ...] = ("subprocess",)
    cause: type[BaseException] | None = None
    inline: type[Exception] | None = None  # what an inline compile raises, if different


ALL = tuple(METHODS)
SMALL = settings.Changes(compile_memory=256)
ROWS = [
    Row("crashes with SIGSEGV", "segfaults", WorkerDied, ["SIGSEGV", "in string_at"], methods=ALL),
    Row("the compiler aborts", "aborts", WorkerDied, ["SIGABRT", "backends.py"]),
    Row("os._exit", "exits", WorkerDied, ["exit code 3", "TZERO_COMPILE_WORKERS=1"], methods=ALL),
    Row("sys.exit", "exits_politely", CompileFailed, ["SystemExit: 4"], cause=SystemExit),
    Row(
        "beyond the memory limit",
        "hungry",
        CompileFailed,
        ["MemoryError", "256 MiB (TZERO_COMPILE_MEMORY)"],
        program="20",
        under=SMALL,
        methods=ALL,
        cause=MemoryError,
    ),
    Row(
        "beyond the memory limit, natively",
        "natively_hungry",
        WorkerDied,
        ["SIGABRT", "256 MiB", "TZERO_COMPILE_MEMORY"],
        program="20",
        under=SMALL,
    ),
    Row(
        "hangs past the deadline",
        "hangs",
        CompileTimeout,
        ["after 1 s", "TZERO_COMPILE_TIMEOUT"],
        under=settings.Changes(compile_timeout=1),
        methods=ALL,
    ),
    Row(
        "a program hangs past the deadline",
        "compiler",
        CompileTimeout,
        ["after 1 s"],
        program=json.dumps(["sleep", "1000"]),
        under=settings.Changes(compile_timeout=1),
    ),
    Row("unsendable result", "unsendable", CompileFailed, ["cannot be encoded", "lock"]),
    Row("no artifact", "no_artifact", CompileFailed, ["None, not an Artifact"]),
    Row(
        "unpicklable exception",
        "raises",
        CompileFailed,
        ["Locked: no key", "cannot be pickled", "backends.py"],
        program="locked",
        inline=Locked,
    ),
    Row(
        "an exception that cannot be unpickled",
        "raises",
        CompileFailed,
        ["Stubborn: no 2", "missing 1 required positional argument"],
        program="stubborn",
        inline=Stubborn,
    ),
    Row(
        "the compiler's own exception",
        "raises",
        Refused,
        ["not this one", "While compiling add in worker", "backends.py"],
        program="own",
    ),
    Row(
        "toolchain missing",
        "raises",
        ToolchainMissing,
        ["Install x.", "While compiling add in worker"],
        program="missing",
    ),
    Row(
        "the program is not there",
        "compiler",
        CompileFailed,
        ["FileNotFoundError", "no-such-compiler"],
        program=json.dumps(["no-such-compiler"]),
        cause=FileNotFoundError,
    ),
    Row(
        "syntax error in the source",
        "python",
        CompileFailed,
        ["SyntaxError", "kernel.py, line 1"],
        program="def (",
        cause=SyntaxError,
    ),
    Row("backend missing", "no_such_backend", BackendMissing, ["no_such_backend"]),
]
CASES = [(row, method) for row in ROWS for method in row.methods]


@pytest.fixture
def service() -> Iterator[AsyncCompile]:
    with settings.override(compile_workers=2):
        made = AsyncCompile(Memory())
        yield made
        made.shutdown()


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def assert_works(service: AsyncCompile) -> None:
    for text in ("next", "and the next"):
        assert service.submit(request("echo", text)).result(60).files["out"] == text.encode()


@pytest.mark.parametrize(
    ("row", "method"), CASES, ids=[f"{row.name}-{method}" for row, method in CASES]
)
def test_the_caller_sees_what_broke_and_the_next_one_works(
    service: AsyncCompile, row: Row, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with settings.override(start_method=method):
        with settings.override(**row.under):
            error = service.submit(request(row.backend, row.program)).exception(60)
        assert type(error) is row.sees
        text = text_of(error)
        assert all(said in text for said in row.says), text
        assert row.cause is None or type(error.__cause__) is row.cause
        assert row.sees in (BackendMissing, ToolchainMissing, Refused) or "add: " in text
        assert_works(service)
    assert service.stats().failed == 1
    assert "".join(capfd.readouterr()) == ""


def test_a_crash_ends_a_forked_worker_whatever_handlers_it_inherits(service: AsyncCompile) -> None:
    """LLVM installs handlers where it compiles, and they may never let a process end."""
    stay = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: signal.pause())
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    before = libc.signal(signal.SIGABRT, stay)
    try:
        with settings.override(start_method="fork"):
            error = service.submit(request("aborts")).exception(60)
    finally:
        libc.signal(signal.SIGABRT, before)
    assert type(error) is WorkerDied
    assert "SIGABRT" in text_of(error)


class Garbage:
    """Part of a cycle; says in which process it was finalized."""

    def __init__(self, place: Path) -> None:
        self.place, self.itself = place, self

    def __del__(self) -> None:
        self.place.write_text(str(os.getpid()))


def test_finalizers_of_the_program_do_not_run_in_a_forked_worker(
    service: AsyncCompile, tmp_path: Path
) -> None:
    """loky collects garbage in each worker after its first answer."""
    gc.collect()
    gc.disable()
    try:
        Garbage(tmp_path / "finalized")
        with settings.override(start_method="fork"):
            assert_works(service)
        assert not (tmp_path / "finalized").exists()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "finalized").read_text() == str(os.getpid())


# Inline compiles have no memory limit or deadline, and a crash would kill this process.
ONLY_IN_WORKERS = ("hangs", "hungry")
INLINE = [row for row in ROWS if row.sees is not WorkerDied and row.backend not in ONLY_IN_WORKERS]


@pytest.mark.parametrize("row", INLINE, ids=[row.name for row in INLINE])
def test_the_caller_sees_the_same_when_it_compiles_itself(row: Row) -> None:
    with settings.override(compile_workers=1, **row.under):
        service = AsyncCompile(Memory())
        with pytest.raises(row.inline or row.sees):
            service.compile(request(row.backend, row.program))
        assert_works(service)


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_does_not_affect_another(
    service: AsyncCompile, method: str, tmp_path: Path
) -> None:
    with settings.override(start_method=method):
        places = [tmp_path / "a", tmp_path / "b"]
        one, other = (service.submit(request("pauses", str(place))) for place in places)
        pids = [paused_at(place) for place in places]
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: paused_at(places[0]) != pids[0], "another worker")
        assert not other.done()
        places[1].unlink()
        assert other.result(60).facts["pid"] == pids[1]
        again = paused_at(places[0])
        places[0].unlink()
        assert one.result(60).facts["pid"] == again
        assert_works(service)


def test_child_processes_of_a_killed_worker_end(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    future = service.submit(request("pauses_with_child", str(place)))
    pid = paused_at(place)
    child = int(Path(f"{place}.child").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(child), "the end of the worker's child process")
    until(lambda: paused_at(place) != pid, "another worker")
    place.unlink()
    assert future.result(60)


def test_child_processes_of_a_worker_past_its_deadline_end(
    service: AsyncCompile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pause"
    real = pool.wait

    def wait_past_the_deadline(futures: list[Future[object]], timeout: float | None) -> object:
        assert timeout == 600
        paused_at(place)
        return real(futures, timeout=0)

    monkeypatch.setattr(pool, "wait", wait_past_the_deadline)
    with settings.override(compile_timeout=600):
        future = service.submit(request("pauses_with_child", str(place)))
        assert isinstance(future.exception(60), CompileTimeout)
    child = int(Path(f"{place}.child").read_text())
    until(lambda: is_gone(child), "the end of the worker's child process")


def test_the_death_of_an_idle_worker_fails_no_request(service: AsyncCompile) -> None:
    pid = service.submit(request("echo")).result().facts["pid"]
    os.kill(pid, signal.SIGKILL)
    assert_works(service)
    assert service.stats().failed == 0


# What keeps a request from being compiled in a worker, and is no fault of the compiler.


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    events: list[Event] = []
    with observe(events.append):
        yield events


def assert_compiled_here(service: AsyncCompile, future: Future[Artifact]) -> None:
    assert future.result(120).facts["pid"] == os.getpid()
    assert service.stats().failed == 0 and service.stats().compiled["inline"] == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_a_request_whose_workers_are_killed_is_compiled_in_the_caller(
    service: AsyncCompile, seen: list[Event], method: str, name: str
) -> None:
    with settings.override(start_method=method):
        assert_compiled_here(service, service.submit(request("killed", name)))
        assert [event.kind for event in seen] == ["fallback", "fallback", "fallback", "compile"]
        assert f"killed by {name}" in seen[0].reason
        assert "attempt 1 failed, another worker compiles it" in seen[0].reason
        assert "attempt 3 failed, the caller does" in seen[2].reason
        assert seen[3].facts["why"] == "3 workers were lost"
        assert_works(service)


def test_a_request_whose_workers_are_stopped_is_compiled_in_the_caller(
    service: AsyncCompile, seen: list[Event]
) -> None:
    with settings.override(compile_timeout=1):
        assert_compiled_here(service, service.submit(request("killed", "SIGSTOP")))
    assert "stopped after 1 s" in seen[0].reason
    assert_works(service)


def test_a_request_is_compiled_in_the_caller_if_no_worker_can_be_started(
    service: AsyncCompile, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkstemp", _no_space)
        assert_compiled_here(service, service.submit(request("echo")))
    assert "could not be started" in seen[0].reason and "No space left" in seen[0].reason
    assert_works(service)


def _no_space(**_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_request_is_compiled_in_the_caller_if_no_worker_answers(
    service: AsyncCompile, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pool, "START_LIMIT", 0.0)
        assert_compiled_here(service, service.submit(request("echo")))
    assert "could not be started" in seen[0].reason
    assert_works(service)


@pytest.mark.parametrize("backend", ["echo", "compiler"])
def test_a_request_is_compiled_in_the_caller_if_no_thread_can_be_started(
    service: AsyncCompile, seen: list[Event], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    text = json.dumps(["echo", "hello"])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        future = service.submit(request(backend, text))
        assert_compiled_here(service, future)
    assert "can't start new thread" in seen[-1].facts["why"]
    assert_works(service)


def test_a_worker_that_crashes_once_is_replaced(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    future = service.submit(request("pauses", str(place)))
    pid = paused_at(place)
    os.kill(pid, signal.SIGSEGV)
    until(lambda: paused_at(place) != pid, "another worker")
    place.unlink()
    assert future.result(60).facts["pid"] != pid


def test_warming_ends_at_its_deadline_with_an_event(
    service: AsyncCompile, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "WARM_LIMIT", 0.2)
    monkeypatch.setattr(compilers, "names", lambda: [request("warms_forever").backend])
    service.warm_pool()
    assert not service.wait_pool_ready(60)
    until(lambda: len(seen) == 2, "the events")
    assert "did not import the backends within 0.2 s" in seen[0].reason
    assert_works(service)


def test_shutdown_cancels_all_pending_futures(service: AsyncCompile, tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    running = [service.submit(request("pauses", str(place))) for place in places]
    pids = [paused_at(place) for place in places]
    queued = [service.submit(request("echo", str(n))) for n in range(5)]
    service.shutdown()
    for future in running + queued:
        assert isinstance(future.exception(60), CancelledError)
    assert all(map(is_gone, pids))
