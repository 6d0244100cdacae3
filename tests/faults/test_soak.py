"""A killer of workers, seeded: whatever it does, each request gets the right answer."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.compile.backends import request
from tests.compile.memory import Memory
from tests.compile.waiting import is_gone, until
from tzero import scratch, settings
from tzero.compile import AsyncCompile
from tzero.events import Event, observe

SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP]


class Killer:
    """Ends a random worker of a service again and again, until it is told to stop."""

    def __init__(self, service: AsyncCompile, seed: int) -> None:
        self._service, self._random = service, random.Random(seed)
        self._stop = threading.Event()
        self.killed: set[int] = set()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._random.expovariate(20)):
            workers = sorted(self._service.workers())
            if workers:
                pid, number = self._random.choice(workers), self._random.choice(SIGNALS)
                with contextlib.suppress(ProcessLookupError):  # it ended by itself
                    os.kill(pid, number)
                    self.killed.add(pid)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def soak(seed: int, seconds: float) -> int:
    """Compile under a killer; return how many workers it ended."""
    chance, end, answered = random.Random(seed), time.monotonic() + seconds, 0
    events: list[Event] = []
    with (
        settings.override(compile_workers=4, compile_timeout=5),
        observe(events.append),
    ):
        service = AsyncCompile(Memory())
        with Killer(service, seed) as killer:
            while time.monotonic() < end:
                texts = [f"{answered + n} {chance.random()}" for n in range(20)]
                futures = {text: service.submit(request("slow_echo", text)) for text in texts}
                for text, artifact in service.wait(futures).items():
                    assert artifact.files["out"] == text.encode()
                answered += len(texts)
                if chance.random() < 0.1:
                    service.quiesce()
        stats = service.stats()
        service.shutdown()
    assert stats.failed == 0
    assert sum(stats.compiled.values()) == answered
    assert len([event for event in events if event.kind == "compile"]) == answered
    until(lambda: all(map(is_gone, killer.killed)), "the end of all workers")
    until(lambda: not _threads(), "the end of all threads")
    _assert_nothing_is_left()
    return len(killer.killed)


def _threads() -> list[str]:
    names = ("tzero-worker", "tzero-lookup", "tzero-compile")
    return [each.name for each in threading.enumerate() if each.name in names]


def _assert_nothing_is_left() -> None:
    scratch.sweep()
    root = Path(scratch.directory())
    assert [path.name for path in root.iterdir() if path.name.startswith("worker-")] == []


def test_a_killer_of_workers_changes_no_answer() -> None:
    assert soak(seed=1, seconds=5) > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_a_killer_of_workers_changes_no_answer_for_long(seed: int) -> None:
    assert soak(seed, seconds=60) > 50
