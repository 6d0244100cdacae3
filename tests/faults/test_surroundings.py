"""Surroundings that are broken: signals, temporary files, home directories, limits, big outputs.

As a table: what is broken, and what the program must still do, or say. Each row runs a program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compile.backends import request
from tests.compile.memory import Memory
from tests.compile.waiting import PYTHONPATH, is_gone, paused_at, until
from tzero import processes, scratch, settings
from tzero.compile import AsyncCompile, command
from tzero.errors import CompileFailed, CompilerFailed

START = """
import json, logging, os, signal, sys, tempfile
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
{before}
from tests.compile.backends import request
from tzero.compile import AsyncCompile
service = AsyncCompile()

def worker(text):
    assert service.submit(request("echo", text)).result(60).files["out"] == text.encode()

def program(*line):
    return service.submit(request("compiler", json.dumps(line))).result(60)
{during}
worker("text")
assert program("echo", "hello").files["out"] == b"hello\\n"
assert program("sh", "-c", "exit 3").facts["code"] == 3
assert program("sh", "-c", "kill -9 $$").facts["code"] == -9
assert service.stats().failed == 0
service.shutdown()
print("done")
"""


@dataclass(frozen=True)
class Row:
    name: str
    before: str = ""  # runs before tzero is imported
    during: str = ""  # runs before the requests
    says: list[str] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)


GONE = "signal.signal(signal.SIGCHLD, {})"
NO_ENTRY = """
import pwd
def no_entry(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = no_entry
"""
ROWS = [
    Row("SIGCHLD is ignored", GONE.format("signal.SIG_IGN")),
    Row("SIGCHLD is ignored later", during="worker('first')\n" + GONE.format("signal.SIG_IGN")),
    Row(
        "a handler waits for all children",
        """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""
        + GONE.format("reap"),
    ),
    Row("TMPDIR does not exist", env={"TMPDIR": "/nonexistent/place"}),
    Row(
        "TMPDIR is removed",
        before="os.environ['TMPDIR'] = gone = tempfile.mkdtemp(); tempfile.tempdir = None",
        during="""
import shutil, time
worker("first")
service.quiesce()
while service.workers(): time.sleep(0.005)
shutil.rmtree(gone)
""",
        says=["No such file or directory", "is used. Set TMPDIR"],
    ),
    Row(
        "TMPDIR has a directory of our name that is another user's",
        before="""
os.environ['TMPDIR'] = place = tempfile.mkdtemp()
tempfile.tempdir = None
os.mkdir(f"{place}/tzero-{os.getuid()}")
os.chmod(f"{place}/tzero-{os.getuid()}", 0o777)
""",
    ),
    Row(
        "HOME cannot be written",
        env={"HOME": "/proc/nowhere", "XDG_CACHE_HOME": None, "TZERO_CACHE_DIR": None},
        says=["writing /proc/nowhere/.cache/tzero"],
    ),
    Row(
        "no HOME and no entry in passwd",
        before=NO_ENTRY + "os.chdir(tempfile.mkdtemp())",
        during="import atexit; atexit.register(lambda: print(os.listdir()))",
        env={"HOME": None, "XDG_CACHE_HOME": None, "TZERO_CACHE_DIR": None},
        says=["no home directory", "Set HOME, or TZERO_CACHE_DIR", "done\n[]\n"],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_service_works_in_surroundings_where(row: Row, tmp_path: Path) -> None:
    names = {"PYTHONPATH": PYTHONPATH, "TZERO_COMPILE_WORKERS": "2", "PYTHONWARNINGS": ""}
    env = {**os.environ, "TZERO_CACHE_DIR": str(tmp_path), **names, **row.env}
    done = subprocess.run(
        [sys.executable, "-c", START.format(before=row.before, during=row.during)],
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "tzero" not in done.stderr, done.stderr
    assert "done" in done.stdout
    assert all(said in done.stdout for said in row.says), done.stdout


def test_too_few_file_descriptors_for_a_worker_leave_the_caller_to_compile() -> None:
    text = """
import resource
with open(os.devnull) as file:
    limit = file.fileno() + 5
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
made = service.submit(request("echo", "few")).result(60)
assert made.facts["pid"] == os.getpid(), made.facts
print("done")
sys.stdout.flush()
os._exit(0)
"""
    names = {"PYTHONPATH": PYTHONPATH, "TZERO_COMPILE_WORKERS": "2", "TZERO_CACHE": "0"}
    start = START.partition("{during}")[0].format(before="")
    done = subprocess.run(
        [sys.executable, "-c", f"{start}import loky\n{text}"],
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not be started" in done.stdout and "Too many open files" in done.stdout
    assert "done" in done.stdout


# -- output and deadlines of programs --------------------------------------------------------------

PRINTS = "import os\nfor n in range({}): os.write({}, b'x' * 65536)\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_megabytes_of_output_are_cut_while_they_are_read(stream: int) -> None:
    code = PRINTS.format(1 << 12, stream) + f"os.write({stream}, b'the end')"
    asked = [sys.executable, "-c", f"import os; os.write({stream}, b'begin');{code}"]
    before = _memory()
    with command.deadline("add", 120):
        done = command.run(["sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", *asked])
    said = (done.stdout, done.stderr)[stream - 1]
    assert done.returncode == 0
    assert said.startswith(b"begin") and said.endswith(b"the end")
    assert len(said) < 2 * processes.KEPT + 100
    assert b"bytes of output are not shown" in said
    assert _memory() - before < 64 << 20


def _memory() -> int:
    """The most memory that this process has had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def test_output_without_end_is_cut_until_the_deadline() -> None:
    with command.deadline("add", 1), pytest.raises(Exception, match="stopped after 1 s"):
        command.run(["yes"])


def test_an_error_of_megabytes_is_cut_in_the_worker() -> None:
    with settings.override(compile_workers=2):
        service = AsyncCompile(Memory())
        error = service.submit(request("verbose", str(8 << 20))).exception(60)
        service.shutdown()
    assert isinstance(error, CompileFailed)
    assert len(str(error)) < 1 << 18
    assert "ValueError: begin" in str(error) and "the end" in str(error)


def test_a_question_to_a_compiler_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUESTION_LIMIT", 0.2)
    with pytest.raises(CompileFailed, match=r"`sleep 1000` did not end within 0.2 s"):
        command.run(["sleep", "1000"])
    assert command._running == set()


def test_the_first_question_to_the_c_compiler_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tzero.cpu import toolchain

    hangs = tmp_path / "cc"
    hangs.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/pid\nwait\n")
    hangs.chmod(0o700)
    monkeypatch.setattr(toolchain, "_PROBE_LIMIT", 0.5)
    with pytest.raises(CompilerFailed, match=r"did not end within 0.5 s"):
        toolchain.find(settings.Settings(cc=(str(hangs),)))
    until(lambda: is_gone(int((tmp_path / "pid").read_text())), "the end of the compiler")


# -- temporary files -------------------------------------------------------------------------------


def test_temporary_files_of_a_killed_worker_are_swept(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    with settings.override(compile_workers=2):
        service = AsyncCompile(Memory())
        future = service.submit(request("litters", str(place)))
        pid = paused_at(place)
        left = Path(Path(f"{place}.left").read_text())
        assert left.is_file()
        os.kill(pid, signal.SIGKILL)
        until(lambda: paused_at(place) != pid, "another worker")
        assert not left.exists()
        place.unlink()
        assert future.result(60)
        service.shutdown()


def test_temporary_files_of_a_killed_process_are_swept_by_the_next(tmp_path: Path) -> None:
    code = "from tzero import scratch; print(scratch.directory(), flush=True); input()"
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path)}

    def begin() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (killed, left), (lives, kept) = begin(), begin()
    (left / "file").write_text("text")
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    other, own = begin()
    assert not left.exists() and kept.is_dir() and own.is_dir()
    for process in (lives, other):
        process.communicate("\n")
    assert not kept.exists() and not own.exists()


def test_a_forked_child_has_temporary_files_of_its_own() -> None:
    mine = scratch.directory()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if scratch.directory() != mine and os.path.isdir(mine) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    scratch.sweep()
    assert os.path.isdir(mine)
