"""The fault table of workers: where it breaks, what the caller sees, and that the next one works.

Each row is run for real, in a real worker. What breaks the process that asks, rather than one that
compiles, is in `test_parents`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compile.backends import Locked, Refused, Stubborn, request
from tests.compile.meeting import is_gone, met, until
from tests.compile.memory import Memory
from tzero import settings
from tzero.compile import AsyncCompile
from tzero.errors import (
    BackendMissing,
    CompileFailed,
    CompileTimeout,
    ToolchainMissing,
    WorkerDied,
)

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
    inline: type[Exception] | None = None  # what the caller sees of itself, if it is not the same


ALL = tuple(METHODS)
SMALL = settings.Changes(compile_memory=256)
ROWS = [
    Row("killed by SIGKILL", "killed", WorkerDied, ["SIGKILL (out of memory?)"], methods=ALL),
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
    Row("unsendable result", "unsendable", CompileFailed, ["cannot leave the process", "lock"]),
    Row("no artifact", "no_artifact", CompileFailed, ["None, which is no Artifact"]),
    Row(
        "unpicklable exception",
        "raises",
        CompileFailed,
        ["Locked: no key", "cannot be pickled", "backends.py"],
        program="locked",
        inline=Locked,
    ),
    Row(
        "an exception that cannot be made again",
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


def words_of(error: BaseException) -> str:
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
        words = words_of(error)
        assert all(said in words for said in row.says), words
        assert row.cause is None or type(error.__cause__) is row.cause
        assert row.sees in (BackendMissing, ToolchainMissing, Refused) or "add: " in words
        assert_works(service)
    assert service.stats().failed == 1
    assert "".join(capfd.readouterr()) == ""


# A process does not limit itself, and what kills a worker would kill it.
OF_WORKERS = ("hangs", "hungry")
INLINE = [row for row in ROWS if row.sees is not WorkerDied and row.backend not in OF_WORKERS]


@pytest.mark.parametrize("row", INLINE, ids=[row.name for row in INLINE])
def test_the_caller_sees_the_same_where_it_compiles_itself(row: Row) -> None:
    with settings.override(compile_workers=1, **row.under):
        service = AsyncCompile(Memory())
        with pytest.raises(row.inline or row.sees):
            service.compile(request(row.backend, row.program))
        assert_works(service)


@pytest.mark.parametrize("method", METHODS)
def test_one_that_is_killed_takes_no_other_with_it(
    service: AsyncCompile, method: str, tmp_path: Path
) -> None:
    with settings.override(start_method=method):
        places = [tmp_path / "a", tmp_path / "b"]
        one, other = (service.submit(request("meets", str(place))) for place in places)
        pids = [met(place) for place in places]
        os.kill(pids[0], signal.SIGKILL)
        assert isinstance(one.exception(60), WorkerDied)
        assert not other.done()
        places[1].unlink()
        assert other.result(60).facts["pid"] == pids[1]
        assert_works(service)


def test_what_a_killed_worker_started_ends_too(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    future = service.submit(request("meets_with_child", str(place)))
    pid = met(place)
    child = int(Path(f"{place}.child").read_text())
    os.kill(pid, signal.SIGKILL)
    assert isinstance(future.exception(60), WorkerDied)
    until(lambda: is_gone(child), "the end of what the worker started")


def test_what_a_late_worker_started_ends_too(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    with settings.override(compile_timeout=1):
        future = service.submit(request("meets_with_child", str(place)))
    assert isinstance(future.exception(60), CompileTimeout)
    child = int(Path(f"{place}.child").read_text())
    until(lambda: is_gone(child), "the end of what the worker started")


def test_a_worker_that_dies_idle_costs_nobody_anything(service: AsyncCompile) -> None:
    pid = service.submit(request("echo")).result().facts["pid"]
    os.kill(pid, signal.SIGKILL)
    assert_works(service)
    assert service.stats().failed == 0


def test_a_worker_that_cannot_be_started_is_told(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkstemp", _no_space)
        error = service.submit(request("echo")).exception(60)
    assert isinstance(error, WorkerDied)
    assert "could not be started" in str(error) and "No space left" in str(error)
    assert_works(service)


def _no_space(**_: object) -> None:
    raise OSError(28, "No space left on device")


def test_shutdown_answers_all_who_wait(service: AsyncCompile, tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    running = [service.submit(request("meets", str(place))) for place in places]
    pids = [met(place) for place in places]
    queued = [service.submit(request("echo", str(n))) for n in range(5)]
    service.shutdown()
    for future in running + queued:
        assert isinstance(future.exception(60), CancelledError)
    assert all(map(is_gone, pids))
