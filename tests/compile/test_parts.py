"""The parts the service is made of, each by itself."""

from __future__ import annotations

import os
import pickle
import threading
import time

import pytest

from tests.compile.backends import Locked, Refused, request
from tests.compile.meeting import is_gone, until
from tzero import settings
from tzero.compile import command, worker
from tzero.compile.crew import Crew
from tzero.compile.recent import Recent
from tzero.compile.request import SCHEMA, Artifact
from tzero.errors import CompileFailed, CompileTimeout, InvalidSetting


def crew_of(size: int, idle: float = 60.0, **more: object) -> Crew[list[object], threading.Event]:
    def do(hand: list[object], gate: threading.Event) -> None:
        hand.append(gate)
        gate.wait(60)

    return Crew("test", hire=list, do=do, size=size, idle=idle, **more)  # type: ignore[arg-type]


def test_a_crew_has_no_more_threads_than_it_may() -> None:
    crew = crew_of(2)
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        crew.give(gate)
    until(lambda: sum(map(len, crew.hands())) == 2, "two at work")
    assert len(crew.hands()) == 2 and crew.take_back(gates[2])
    for gate in gates:
        gate.set()
    assert crew.close() == [] and crew.join(60)


def test_work_that_comes_while_all_are_busy_gets_a_thread_of_its_own() -> None:
    crew = crew_of(2)
    first, second = threading.Event(), threading.Event()
    crew.give(first)
    until(lambda: sum(map(len, crew.hands())) == 1, "one at work")
    crew.give(second)
    until(lambda: sum(map(len, crew.hands())) == 2, "two at work")
    first.set(), second.set()
    crew.close()
    assert crew.join(60)


def test_idle_threads_end_and_part_from_their_hands() -> None:
    parted: list[object] = []
    crew = crew_of(2, idle=0.01, part=parted.append)
    gate = threading.Event()
    gate.set()
    crew.give(gate)
    until(lambda: parted, "the thread's end")
    assert crew.join(60)
    crew.give(gate)  # it starts again
    until(lambda: len(parted) == 2, "the next thread's end")


def test_a_crew_that_shrinks_lets_threads_go() -> None:
    crew = crew_of(3)
    crew.fill()
    assert crew.wait_warm(60)
    until(lambda: len(crew.hands()) == 3, "filling")
    crew.size = 1
    gates = [threading.Event() for _ in range(2)]
    for gate in gates:
        gate.set()
        crew.give(gate)
    until(lambda: len(crew.hands()) <= 2, "shrinking")
    crew.close()
    assert crew.join(60)


def test_a_closed_crew_takes_nothing_and_gives_back_what_is_left() -> None:
    crew = crew_of(1)
    running, queued = threading.Event(), threading.Event()
    crew.give(running)
    until(lambda: sum(map(len, crew.hands())) == 1, "one at work")
    crew.give(queued)
    assert crew.close() == [queued]
    with pytest.raises(RuntimeError, match="closed"):
        crew.give(queued)
    assert not crew.join(0)
    running.set()
    assert crew.join(60)


def test_recent_counts_a_replaced_entry_once() -> None:
    recent = Recent(limit=10)
    for _ in range(5):
        recent.put("a", Artifact({}), 6)
    assert recent.get("a") is not None
    recent.put("b", Artifact({}), 4)
    assert recent.get("a") is not None and recent.get("b") is not None


def test_a_command_is_ended_at_the_deadline_with_what_it_started() -> None:
    with command.deadline("add", 0.2), pytest.raises(CompileTimeout):
        command.run(["sh", "-c", "sleep 1000 & wait"])
    assert command._running == set()


def test_a_nested_deadline_does_not_outlive_its_block() -> None:
    with command.deadline("add", 600):
        with command.deadline("mul", 0):
            assert command.run(["true"]).returncode == 0
        assert command._limits.held[0] == "add"
    assert command._limits.held is None


def test_commands_end_when_asked(tmp_path: object) -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(command.run(["sleep", "1000"]).returncode))
    thread.start()
    until(lambda: command._running, "running")
    (pid,) = (process.pid for process in command._running)
    command.end_all()
    thread.join(60)
    assert done == [-9] and is_gone(pid)


def test_variables_are_there_for_a_block_and_settings_follow() -> None:
    before = settings.current().quiesce
    with settings.applied({"TZERO_QUIESCE": "7", "TZERO_TEST": "1"}):
        assert (os.environ["TZERO_TEST"], settings.current().quiesce) == ("1", 7)
        with settings.applied({"TZERO_QUIESCE": "8"}):
            assert settings.current().quiesce == 8
        assert settings.current().quiesce == 7
    assert "TZERO_TEST" not in os.environ
    assert settings.current().quiesce == before


def test_a_wrong_variable_changes_nothing() -> None:
    with (
        pytest.raises(InvalidSetting),
        settings.applied({"TZERO_TEST": "1", "TZERO_QUIESCE": "soon"}),
    ):
        raise AssertionError("it should not have been entered")
    assert "TZERO_TEST" not in os.environ


def test_a_reply_is_small_plain_and_timed() -> None:
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


def test_a_class_that_is_not_importable_here_is_told_in_words() -> None:
    failure = worker.failure_of(Refused("no"))
    assert failure.error is not None
    foreign = failure._replace(error=failure.error.replace(b"Refused", b"Unknown"))
    error = worker.error_of(foreign, "add", "worker 1")
    assert isinstance(error, CompileFailed)
    assert "Refused: no" in str(error) and "could not be read" in str(error)


def test_an_exception_that_does_not_travel_keeps_its_words() -> None:
    failure = worker.failure_of(Locked("no key"))
    assert failure.error is None
    assert "Locked: no key" in failure.trace and "cannot be pickled" in failure.trace
