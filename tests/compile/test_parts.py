"""The parts of the compile service, each on its own."""

from __future__ import annotations

import os
import pickle
import threading
import time

import pytest

from tests.compile.backends import Locked, Refused, request
from tests.compile.waiting import is_gone, until
from tzero import settings
from tzero.compile import command, worker
from tzero.compile.recent import Recent
from tzero.compile.request import SCHEMA, Artifact
from tzero.compile.thread_pool import ThreadPool
from tzero.errors import CompileFailed, CompileTimeout, InvalidSetting


def pool_of(
    size: int, idle: float = 60.0, **more: object
) -> ThreadPool[list[object], threading.Event]:
    """A pool whose work is an event to wait for; a thread's resource lists what it has begun."""

    def run(begun: list[object], gate: threading.Event) -> None:
        begun.append(gate)
        gate.wait(60)

    return ThreadPool("test", make=list, run=run, size=size, idle=idle, **more)  # type: ignore[arg-type]


def running(pool: ThreadPool[list[object], threading.Event]) -> int:
    return sum(map(len, pool.resources()))


def test_a_thread_pool_does_not_exceed_its_size() -> None:
    pool = pool_of(2)
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        pool.put(gate)
    until(lambda: running(pool) == 2, "two running")
    assert len(pool.resources()) == 2 and pool.remove(gates[2])
    for gate in gates:
        gate.set()
    assert pool.close() == [] and pool.join(60)


def test_idle_threads_are_stopped_also_right_after_their_work() -> None:
    pool = pool_of(1, idle=1000.0)
    gate = threading.Event()
    pool.put(gate)
    until(lambda: running(pool) == 1, "one running")
    pool.stop_idle()  # as by a caller who has the result before the thread waits for more work
    gate.set()
    assert pool.join(60)


def test_work_put_while_all_threads_are_busy_starts_another() -> None:
    pool = pool_of(2)
    first, second = threading.Event(), threading.Event()
    pool.put(first)
    until(lambda: running(pool) == 1, "one running")
    pool.put(second)
    until(lambda: running(pool) == 2, "two running")
    first.set(), second.set()
    pool.close()
    assert pool.join(60)


def test_idle_threads_end_and_release_their_resources() -> None:
    released: list[object] = []
    pool = pool_of(2, idle=0.01, release=released.append)
    gate = threading.Event()
    gate.set()
    pool.put(gate)
    until(lambda: released, "the thread's end")
    assert pool.join(60)
    pool.put(gate)  # starts a new thread
    until(lambda: len(released) == 2, "the next thread's end")


def test_a_thread_pool_made_smaller_ends_threads() -> None:
    pool = pool_of(3)
    pool.start_all()
    assert pool.wait_warm(60)
    until(lambda: len(pool.resources()) == 3, "three threads")
    pool.size = 1
    gates = [threading.Event() for _ in range(2)]
    for gate in gates:
        gate.set()
        pool.put(gate)
    until(lambda: len(pool.resources()) <= 2, "the end of a thread")
    pool.close()
    assert pool.join(60)


def test_a_closed_thread_pool_accepts_no_work_and_returns_its_queue() -> None:
    pool = pool_of(1)
    begun, queued = threading.Event(), threading.Event()
    pool.put(begun)
    until(lambda: running(pool) == 1, "one running")
    pool.put(queued)
    assert pool.close() == [queued]
    with pytest.raises(RuntimeError, match="closed"):
        pool.put(queued)
    assert not pool.join(0)
    begun.set()
    assert pool.join(60)


def test_recent_counts_a_replaced_entry_once() -> None:
    recent = Recent(limit=10)
    for _ in range(5):
        recent.put("a", Artifact({}), 6)
    assert recent.get("a") is not None
    recent.put("b", Artifact({}), 4)
    assert recent.get("a") is not None and recent.get("b") is not None


def test_a_command_is_killed_at_the_deadline_with_all_it_started() -> None:
    with command.deadline("add", 0.2), pytest.raises(CompileTimeout):
        command.run(["sh", "-c", "sleep 1000 & wait"])
    assert command._running == set()


def test_a_nested_deadline_does_not_outlive_its_block() -> None:
    with command.deadline("add", 600):
        with command.deadline("mul", 0):
            assert command.run(["true"]).returncode == 0
        assert command._thread.limit[0] == "add"
    assert command._thread.limit is None


def test_end_all_kills_running_commands() -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(command.run(["sleep", "1000"]).returncode))
    thread.start()
    until(lambda: command._running, "running")
    (pid,) = (process.pid for process in command._running)
    command.end_all()
    thread.join(60)
    assert done == [-9] and is_gone(pid)


def test_applied_sets_variables_and_settings_for_a_block() -> None:
    before = settings.current().quiesce
    with settings.applied({"TZERO_QUIESCE": "7", "TZERO_TEST": "1"}):
        assert (os.environ["TZERO_TEST"], settings.current().quiesce) == ("1", 7)
        with settings.applied({"TZERO_QUIESCE": "8"}):
            assert settings.current().quiesce == 8
        assert settings.current().quiesce == 7
    assert "TZERO_TEST" not in os.environ
    assert settings.current().quiesce == before


def test_an_invalid_variable_changes_nothing() -> None:
    with (
        pytest.raises(InvalidSetting),
        settings.applied({"TZERO_TEST": "1", "TZERO_QUIESCE": "soon"}),
    ):
        raise AssertionError("the block must not run")
    assert "TZERO_TEST" not in os.environ


def test_a_reply_is_small_and_timed() -> None:
    start = time.perf_counter_ns()
    reply = worker.run(request("echo", "text"), 0)
    assert start < reply.start < reply.end
    assert reply.pid == os.getpid() and reply.resident > 0 and reply.failure is None
    assert len(pickle.dumps(reply)) < 1000
    assert reply.payload is not None
    assert Artifact.decode(reply.payload).files["out"] == b"text"


def test_a_request_of_another_schema_is_refused() -> None:
    asked = request("echo", "text", schema=SCHEMA + 1)
    reply = worker.run(asked, 0)
    assert reply.failure is not None
    error = worker.error_of(reply.failure, "add", "worker 1")
    assert isinstance(error, CompileFailed) and f"schema {SCHEMA + 1}" in str(error)


def test_an_exception_class_that_is_not_importable_here_is_described() -> None:
    failure = worker.failure_of(Refused("no"))
    assert failure.error is not None
    foreign = failure._replace(error=failure.error.replace(b"Refused", b"Unknown"))
    error = worker.error_of(foreign, "add", "worker 1")
    assert isinstance(error, CompileFailed)
    assert "Refused: no" in str(error) and "could not be unpickled" in str(error)


def test_an_exception_that_cannot_be_pickled_is_described() -> None:
    failure = worker.failure_of(Locked("no key"))
    assert failure.error is None
    assert "Locked: no key" in failure.trace and "cannot be pickled" in failure.trace
