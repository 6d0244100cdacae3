"""The fault table of the process that asks: killed, forked, interrupted, ended in the middle.

Each row is a program of its own. It prints what it has got to, and is then done something to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compile.meeting import is_gone, met, until

METHODS = ["subprocess", "fork", "spawn"]
START = """
import os, sys, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored
from pathlib import Path
from tests.compile.backends import request
from tests.compile.memory import Memory
from tzero.compile import AsyncCompile
service = AsyncCompile(Memory())
place = sys.argv[1]
def works(text):
    assert service.submit(request("echo", text)).result(60).files["out"] == text.encode()
"""


@contextmanager
def program(text: str, place: Path, method: str = "subprocess") -> Iterator[subprocess.Popen[str]]:
    names = {"TZERO_START_METHOD": method, "TZERO_COMPILE_WORKERS": "2", "PYTHONWARNINGS": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", START + text, str(place)],
        env={**os.environ, "PYTHONPATH": os.getcwd(), **names},
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
    """What a program said, and how it ended. Its pipes close when all who have them are gone."""
    out, err = process.communicate(timeout=60)
    return out, err, process.returncode


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_parent_leaves_no_orphans(method: str, tmp_path: Path) -> None:
    place, other = tmp_path / "meeting", tmp_path / "idle"
    text = f"""
service.submit(request("meets_with_child", place))
idle = service.submit(request("meets", {str(other)!r})).result()
print(idle.facts["pid"], flush=True)
signal.pause()
"""
    with program(text, place, method) as parent:
        pids = [met(place), met(other)]
        other.unlink()
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) == pids[1]  # that worker is idle now
        pids.append(int(Path(f"{place}.child").read_text()))
        assert not any(map(is_gone, pids))
        parent.kill()
        parent.wait()
        until(lambda: all(map(is_gone, pids)), "the end of all that the parent had")


@pytest.mark.parametrize("method", METHODS)
def test_an_exit_with_jobs_in_flight_is_prompt_and_clean(method: str, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
service.submit(request("meets_with_child", place))
futures = [service.submit(request("meets", place + str(n))) for n in range(3)]
while not os.path.exists(place): pass
print("exits", flush=True)
sys.exit(7)
"""
    with program(text, place, method) as process:
        out, err, code = ended(process)  # nobody goes to the meetings, so no job ever ends
    assert (out, err, code) == ("exits\n", "", 7)
    pids = [int(place.read_text()), int(Path(f"{place}.child").read_text())]
    until(lambda: all(map(is_gone, pids)), "the workers' end")


def test_an_exit_while_a_program_runs_on_a_thread_ends_the_program(tmp_path: Path) -> None:
    text = """
import json
service.submit(request("compiler", json.dumps(["sh", "-c", f"echo $$ > {place}; sleep 1000"])))
while not os.path.exists(place) or not Path(place).read_text().strip(): pass
"""
    place = tmp_path / "pid"
    with program(text, place) as process:
        assert ended(process) == ("", "", 0)
    until(lambda: is_gone(int(place.read_text())), "the program's end")


def test_an_uncaught_exception_leaves_only_its_own_traceback(tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
service.submit(request("meets", place))
while not os.path.exists(place): pass
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
    place = tmp_path / "meeting"
    text = """
from concurrent.futures import CancelledError
future = service.submit(request("meets", place))
while not os.path.exists(place): pass
child = os.fork()
if child == 0:
    works("in the child")
    assert set(service.workers()).isdisjoint({int(Path(place).read_text())})
    try:
        future.result()
    except CancelledError as error:
        assert "Submit the request again" in str(error)
    else:
        raise AssertionError("nobody will ever answer")
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
    with program(text, tmp_path / "meeting") as process:
        assert ended(process) == ("{0}\n2\n", "", 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", ["wait([future])", "compile(request('meets', place))"])
def test_ctrl_c_reaches_the_caller_and_stops_what_it_waits_for(
    method: str, call: str, tmp_path: Path
) -> None:
    place = tmp_path / "meeting"
    text = f"""
from concurrent.futures import CancelledError
works("first")
service.warm_pool(); service.wait_pool_ready()
future = service.submit(request("meets", place)) if {"wait" in call} else None
try:
    service.{call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
if future is not None:
    print(type(future.exception(60)).__name__)
works("next")
"""
    with program(text, place, method) as process:
        pid = met(place)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all in the foreground
        out, err, code = ended(process)
    assert err == ""
    assert out == ("interrupted\nCancelledError\n" if "wait" in call else "interrupted\n")
    assert code == 0
    assert is_gone(pid)


def test_ctrl_c_does_not_stop_what_others_wait_for(tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
future = service.submit(request("meets", place))
same = service.submit(request("meets", place))
try:
    service.wait([future])
except KeyboardInterrupt:
    os.unlink(place)
print(same.result(60).facts["pid"] in service.workers())
"""
    with program(text, place) as process:
        met(place)
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process) == ("True\n", "", 0)


def test_ctrl_c_in_the_caller_that_compiles_leaves_it_to_who_else_waits(tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
from tzero import settings
def also():
    print(service.compile(request("meets", place)).facts["pid"] == os.getpid())
with settings.override(compile_workers=1):
    other = threading.Thread(target=also)
    def begin():
        while not os.path.exists(place): pass
        other.start()
        while not any(job.asked > 1 for job in list(service._flying.values())): pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=begin).start()
    try:
        service.compile(request("meets", place))
    except KeyboardInterrupt:
        while other.is_alive():
            Path(place).unlink(missing_ok=True)
"""
    with program(text, place) as process:
        assert ended(process) == ("True\n", "", 0)


def test_ctrl_c_that_nobody_catches_ends_the_program_with_one_traceback(tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
service.submit(request("echo")).result()
service.wait([service.submit(request("meets", place))])
"""
    with program(text, place) as process:
        pid = met(place)
        os.killpg(process.pid, signal.SIGINT)
        _, err, code = ended(process)
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")
    assert is_gone(pid)


@pytest.mark.parametrize("method", METHODS)
def test_the_death_of_the_resource_tracker_is_survived(method: str, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    text = """
from loky.backend import resource_tracker as lokys
from multiprocessing import resource_tracker as pythons
works("first")
future = service.submit(request("meets", place))
while not os.path.exists(place): pass
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
while service.workers(): pass
works("third")
"""
    with program(text, place, method) as process:
        out, err, code = ended(process)
    assert (out, code) == (f"{method != 'fork'}\nTrue\n", 0)
    # The new tracker complains of names that only the old one knew; that is all.
    assert "tzero" not in err
