"""The workers of all processes of a user on a machine share a budget."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compile.backends import request
from tests.compile.memory import Memory
from tests.compile.waiting import HANG, PYTHONPATH, paused_at, until
from tzero import settings
from tzero.compile import AsyncCompile, budget, compilers

RANK = """
import sys
from tests.compile.backends import request
from tests.compile.memory import Memory
from tzero import settings
from tzero.compile import AsyncCompile, compilers
compilers.names = list
service = AsyncCompile(Memory())
service.warm_pool()
service.wait_pool_ready(60)
print(len(service.workers()), flush=True)
sys.stdin.readline()
futures = [service.submit(request("echo", str(n))) for n in range(10)]
print(len(service.wait(futures)), flush=True)
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of our own: tickets in another directory."""
    monkeypatch.setattr(budget.scratch, "shared", lambda: str(tmp_path))
    yield


def test_all_processes_of_a_user_share_the_budget(tmp_path: Path) -> None:
    names = {
        "PYTHONPATH": PYTHONPATH,
        "TMPDIR": str(tmp_path),
        "TZERO_COMPILE_WORKERS": "6",
        "TZERO_MACHINE_WORKERS": "7",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, **names},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    workers = []
    for rank in ranks:
        assert rank.stdout is not None
        workers.append(int(rank.stdout.readline()))
    assert min(workers) >= 1
    assert 7 <= sum(workers) <= 7 + len(ranks) - 1, workers
    assert [rank.communicate("\n", timeout=HANG)[0].split() for rank in ranks] == [["10"]] * 3


def test_a_process_may_always_have_one_worker(tmp_path: Path) -> None:
    taken = budget.Place()
    with settings.override(compile_workers=4, machine_workers=1):
        assert taken.take(1)
        service = AsyncCompile(Memory())
        futures = [service.submit(request("echo", str(n))) for n in range(8)]
        assert len(service.wait(futures)) == 8
        assert len(service.workers()) == 1
        service.shutdown()
    taken.give_back()


@pytest.mark.parametrize("backend", ["pauses", "thread_pauses"])
def test_a_place_that_is_given_back_is_used(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tzero.compile.thread_pool.REFUSED", 0.0)
    taken, places = budget.Place(), [tmp_path / "a", tmp_path / "b"]
    with settings.override(compile_workers=4, machine_workers=2):
        assert taken.take(2)
        service = AsyncCompile(Memory())
        futures = [service.submit(request(backend, str(place))) for place in places]
        pool = service._compilers._slots if backend == "pauses" else service._compilers._threads
        until(lambda: any(place.exists() for place in places), "the first compile")
        until(lambda: pool._refused_until, "a refusal")
        assert len(pool.resources()) == 1 and not all(place.exists() for place in places)
        taken.give_back()
        more = service.submit(request("echo" if backend == "pauses" else "compiler", '["true"]'))
        for place in places:
            paused_at(place)
        for place in places:
            place.unlink()
        service.wait([*futures, more])
        service.shutdown()


def test_an_explicit_number_of_workers_is_a_budget_too() -> None:
    made = compilers.Compilers(None, None, None, None)  # type: ignore[arg-type]
    made._apply(settings.Settings(compile_workers=1000))
    assert made._most_on_machine == 1000
    made._apply(settings.Settings(compile_workers=1000, machine_workers=3))
    assert made._most_on_machine == 3


def test_a_ticket_ends_with_its_process_and_is_no_business_of_a_forked_child() -> None:
    place = budget.Place()
    assert place.take(1)
    pid = os.fork()
    if pid == 0:
        place.disown()
        os._exit(0 if not budget.Place().take(1) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert not budget.Place().take(1)
    place.give_back()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if budget.Place().take(1) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert place.take(1)
    place.give_back()


def test_without_a_shared_directory_there_is_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.scratch, "shared", lambda: None)
    places = [budget.Place() for _ in range(3)]
    assert all(place.take(1) for place in places)
