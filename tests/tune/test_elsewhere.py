"""A search by an executor: what is sent, what is refused, and what happens when it fails."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

import tzero
from tzero import settings
from tzero.compile import on
from tzero.events import Event, observe
from tzero.tune import elsewhere, shipping

CONFIGS = [tzero.Config(TIMES=40), tzero.Config(TIMES=1)]
BOTH = [tzero.Config(ADDED=0.0), tzero.Config(ADDED=-0.0)]
called: list[tzero.Config] = []


def shifted(x: torch.Tensor, config: Any) -> torch.Tensor:
    called.append(config)
    return x + config.ADDED


inner = tzero.kernel(configs=BOTH)(shifted)


def repeated(x: torch.Tensor, config: Any) -> torch.Tensor:
    for _ in range(config.TIMES):
        x = x * 1.0
    return x


def nested(x: torch.Tensor, config: Any) -> torch.Tensor:
    return inner(repeated(x, config))


class Elsewhere(Executor):
    """Makes searches at once, in this thread, as ``act`` says."""

    def __init__(self, act: Callable[..., Any] | None = None) -> None:
        self.act, self.sent = act or (lambda function, *args: function(*args)), 0
        self.hardware = ""

    def measuring(self, hardware: str) -> Executor:
        self.hardware = hardware
        return self

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.sent += 1
        future: Future[Any] = Future()
        try:
            future.set_result(self.act(function, *args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append), settings.override(cache=False):
        yield found


def tuned(executor: Executor, function: Any = repeated) -> Any:
    kernel, x = tzero.kernel(configs=CONFIGS)(function), torch.ones(1000)
    with on(executor):
        found = kernel.autotune(x)
    assert found.best == tzero.Config(TIMES=1) == kernel.bind(x).config
    return found


def test_a_search_comes_back_as_it_was_made(seen: list[Event]) -> None:
    executor = Elsewhere()
    found = tuned(executor)
    assert executor.sent == 1 and executor.hardware.startswith(("cpu:", "cuda:", "hip:"))
    assert list(found.outcomes) == CONFIGS and found.ended == "searched"
    assert [step.config for step in found.steps] and found.seconds > 0
    assert [each.reason for each in seen if each.reason.startswith("timed elsewhere")]


def test_what_is_known_ahead_of_time_travels_with_it(tmp_path: Path, seen: list[Event]) -> None:
    path = tmp_path / "pretuned.json"
    x = torch.ones(1000)
    inner.bind(x).set_config(BOTH[1])
    inner.autotune(x)
    entries = [dataclasses.replace(each, config=BOTH[1]) for each in inner.tuning.entries()]
    shipping.Pretuned(entries, str(path)).write(path)
    before = list(shipping._files)
    inner.reset()
    tzero.pretuned(path)
    try:

        def another_process(function: Any, *args: Any) -> Any:
            shipping._files.clear()
            inner.reset()
            called.clear()
            return function(*args)

        tuned(Elsewhere(another_process), nested)
        assert called and {str(each.ADDED) for each in called} == {"-0.0"}
    finally:
        shipping._files[:] = before
        inner.reset()


def test_an_executor_that_fails_means_this_process(seen: list[Event]) -> None:
    def lost(function: Any, *args: Any) -> Any:
        raise ConnectionResetError("the node is gone")

    executor = Elsewhere(lost)
    tuned(executor)
    assert executor.sent == elsewhere.ATTEMPTS
    words = [each.reason for each in seen if "to time it elsewhere failed" in each.reason]
    assert "it is sent again: ConnectionResetError: the node is gone" in words[0]
    assert "this process times it" in words[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"versions": ("2.0", "3.0", "0")}, "and not 2.0, 3.0, 0"),
        ({"hardware": ("cuda:sm_90", "NVIDIA H200")}, "and not ('cuda:sm_90', 'NVIDIA H200')"),
    ],
)
def test_another_machine_refuses(change: Any, words: str, seen: list[Event]) -> None:
    def otherwise(function: Any, parcel: bytes, length: int, task: bytes) -> Any:
        changed = dataclasses.replace(pickle.loads(task), **change)
        return function(parcel, length, cloudpickle.dumps(changed))

    tuned(Elsewhere(otherwise))
    assert any(words in each.reason for each in seen)


def test_no_secret_is_sent(seen: list[Event]) -> None:
    sent: list[bytes] = []

    def noted(function: Any, *args: Any) -> Any:
        sent.extend(each for each in args if isinstance(each, bytes))
        return function(*args)

    with settings.override(cache_key="hush hush", remote_cache="redis://:hush hush@127.0.0.1:1"):
        tuned(Elsewhere(noted))
    assert sent and not any(b"hush hush" in each for each in sent)


def test_what_cannot_be_sent_is_timed_here(seen: list[Event]) -> None:
    lock = threading.Lock()

    def held(x: torch.Tensor, config: Any) -> torch.Tensor:
        with lock:
            return repeated(x, config)

    executor = Elsewhere()
    tuned(executor, held)
    assert executor.sent == 0
    assert any("it is timed in this process" in each.reason for each in seen)
