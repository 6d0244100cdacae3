"""Faults of the process that submits requests: killed, forked, interrupted, exiting during a job.

Each test runs a program, waits until it has reached some point, and then kills or interrupts it.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compile.backends import request
from tests.compile.waiting import HANG, PYTHONPATH, is_gone, paused_at, until
from tzero import compile as compiling
from tzero import settings

METHODS = ["subprocess", "fork", "spawn"]
START = """
import os, sys, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
from pathlib import Path
from tests.compile.backends import request
from tests.compile.memory import Memory
from tzero.compile import AsyncCompile
service = AsyncCompile(Memory())
place = sys.argv[1]
def wait_until(happened):
    while not happened(): time.sleep(0.005)
def wait_for_pause():
    wait_until(lambda: os.path.exists(place))
def works(text):
    assert service.submit(request("echo", text)).result(60).files["out"] == text.encode()
"""


@contextmanager
def program(text: str, place: Path, method: str = "subprocess") -> Iterator[subprocess.Popen[str]]:
    names = {"TZERO_START_METHOD": method, "TZERO_COMPILE_WORKERS": "2", "PYTHONWARNINGS": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", START + text, str(place)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **names},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """The output and exit code of a program. Its pipes close when all its processes are gone."""
    out, err = process.communicate(timeout=60)
    return out, err, process.returncode


def interrupt(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C once the main thread blocks: a terminal signals the whole foreground group.

    A signal that arrives just before the thread blocks would be noticed by the interpreter only
    when it wakes up.
    """
    until(lambda: blocks(process.pid), "blocking")
    os.killpg(process.pid, signal.SIGINT)


def blocks(pid: int) -> bool:
    """Whether the main thread of a process waits for a lock without a timeout. (A thread that waits
    for the GIL has one.) Where that cannot be seen, True."""
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
    except (FileNotFoundError, PermissionError):
        return True
    futex = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), call[0])
    return len(call) > 4 and call[0] == futex and call[4] == "0x0"


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_parent_leaves_no_orphans(method: str, tmp_path: Path) -> None:
    place, other = tmp_path / "pause", tmp_path / "idle"
    text = f"""
service.submit(request("pauses_with_child", place))
idle = service.submit(request("pauses", {str(other)!r})).result()
print(idle.facts["pid"], flush=True)
signal.pause()
"""
    with program(text, place, method) as parent:
        pids = [paused_at(place), paused_at(other)]
        other.unlink()
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) == pids[1]  # so that worker is idle now
        pids.append(int(Path(f"{place}.child").read_text()))
        assert not any(map(is_gone, pids))
        parent.kill()
        parent.wait()
        until(lambda: all(map(is_gone, pids)), "the end of all processes of the parent")


@pytest.mark.parametrize("method", METHODS)
def test_an_exit_with_jobs_in_flight_stops_them_silently(method: str, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
service.submit(request("pauses_with_child", place))
futures = [service.submit(request("pauses", place + str(n))) for n in range(3)]
wait_for_pause()
print("exits", flush=True)
sys.exit(7)
"""
    with program(text, place, method) as process:
        out, err, code = ended(process)  # the jobs stay paused, so none ends by itself
    assert (out, err, code) == ("exits\n", "", 7)
    pids = [int(place.read_text()), int(Path(f"{place}.child").read_text())]
    until(lambda: all(map(is_gone, pids)), "the workers' end")


def test_an_exit_while_a_program_runs_on_a_thread_ends_the_program(tmp_path: Path) -> None:
    text = """
import json
service.submit(request("compiler", json.dumps(["sh", "-c", f"echo $$ > {place}; sleep 1000"])))
wait_until(lambda: os.path.exists(place) and Path(place).read_text().strip())
"""
    place = tmp_path / "pid"
    with program(text, place) as process:
        assert ended(process) == ("", "", 0)
    until(lambda: is_gone(int(place.read_text())), "the program's end")


def test_an_uncaught_exception_leaves_only_its_own_traceback(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
service.submit(request("pauses", place))
wait_for_pause()
raise ValueError("of the program")
"""
    with program(text, place) as process:
        _, err, code = ended(process)
    assert code == 1
    assert err.count("Traceback") == 1 and err.endswith("ValueError: of the program\n")


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_while_a_job_runs_starts_with_a_service_of_its_own(
    method: str, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    text = """
from concurrent.futures import CancelledError
future = service.submit(request("pauses", place))
wait_for_pause()
child = os.fork()
if child == 0:
    works("in the child")
    assert set(service.workers()).isdisjoint({int(Path(place).read_text())})
    try:
        future.result()
    except CancelledError as error:
        assert "Submit the request again" in str(error)
    else:
        raise AssertionError("the child waited for its parent's job")
    sys.exit(5)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
os.unlink(place)
print(future.result(60).facts["pid"] in service.workers())
works("in the parent")
"""
    with program(text, place, method) as process:
        assert ended(process) == ("5\nTrue\n", "", 0)


def test_a_fork_while_a_worker_starts_does_no_harm(tmp_path: Path) -> None:
    text = """
futures = [service.submit(request("echo", str(n))) for n in range(2)]
children = []
for n in range(20):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    children.append(child)
print({os.waitpid(child, 0)[1] for child in children})
print(len(service.wait(futures)))
"""
    with program(text, tmp_path / "pause") as process:
        assert ended(process) == ("{0}\n2\n", "", 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", ["wait([future])", "compile(request('pauses', place))"])
def test_ctrl_c_reaches_the_caller_and_stops_what_it_waits_for(
    method: str, call: str, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    text = f"""
from concurrent.futures import CancelledError
from tzero.compile import compilers
compilers.names = list  # the workers need not import every backend
works("first")
service.warm_pool(); service.wait_pool_ready()
future = service.submit(request("pauses", place)) if {"wait" in call} else None
try:
    service.{call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
if future is not None:
    print(type(future.exception(60)).__name__)
works("next")
"""
    with program(text, place, method) as process:
        pid = paused_at(place)
        interrupt(process)
        out, err, code = ended(process)
    assert err == ""
    assert out == ("interrupted\nCancelledError\n" if "wait" in call else "interrupted\n")
    assert code == 0
    assert is_gone(pid)


def test_ctrl_c_does_not_stop_what_others_wait_for(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
future = service.submit(request("pauses", place))
same = service.submit(request("pauses", place))
try:
    service.wait([future])
except KeyboardInterrupt:
    os.unlink(place)
print(same.result(60).facts["pid"] in service.workers())
"""
    with program(text, place) as process:
        paused_at(place)
        interrupt(process)
        assert ended(process) == ("True\n", "", 0)


def test_after_ctrl_c_in_the_compiling_caller_another_caller_compiles(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
from tzero import settings
def also():
    print(service.compile(request("pauses", place)).facts["pid"] == os.getpid())
with settings.override(compile_workers=1):
    other = threading.Thread(target=also)
    def begin():
        wait_for_pause()
        other.start()
        wait_until(lambda: any(job.requests > 1 for job in service._in_flight.jobs()))
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=begin).start()
    try:
        service.compile(request("pauses", place))
    except KeyboardInterrupt:
        while other.is_alive():
            Path(place).unlink(missing_ok=True)
            time.sleep(0.005)
"""
    with program(text, place) as process:
        assert ended(process) == ("True\n", "", 0)


def test_uncaught_ctrl_c_ends_the_program_with_one_traceback(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
service.submit(request("echo")).result()
service.wait([service.submit(request("pauses", place))])
"""
    with program(text, place) as process:
        pid = paused_at(place)
        interrupt(process)
        _, err, code = ended(process)
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")
    assert is_gone(pid)


@pytest.mark.parametrize("method", METHODS)
def test_the_death_of_the_resource_tracker_is_survived(method: str, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    text = """
from loky.backend import resource_tracker as lokys
from multiprocessing import resource_tracker as pythons
works("first")
future = service.submit(request("pauses", place))
wait_for_pause()
killed = 0
for tracker in (lokys._resource_tracker, pythons._resource_tracker):
    if tracker._pid is not None:
        os.kill(tracker._pid, signal.SIGKILL)
        killed += 1
print(killed > 0, flush=True)
os.unlink(place)
print(future.result(60).facts["pid"] in service.workers())
works("second")
service.quiesce()
wait_until(lambda: not service.workers())
works("third")
"""
    with program(text, place, method) as process:
        out, err, code = ended(process)
    assert (out, code) == (f"{method != 'fork'}\nTrue\n", 0)
    # The new tracker complains about names that only the old one knew. Nothing else may appear.
    assert "tzero" not in err


def compile_in_workers() -> None:
    with settings.override(compile_workers=2, quiesce=3600, cache=False):
        own = compiling.service()
        assert own.submit(request("echo", "text")).result().facts["pid"] in own.workers()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_of_multiprocessing_ends_without_waiting_for_idle_workers(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=compile_in_workers)
    process.start()
    process.join(HANG)
    is_alive = process.is_alive()
    process.kill()
    assert not is_alive and process.exitcode == 0
