"""Users' code that the service runs: done-callbacks and observers that compile, wait, or raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from tests.compile.backends import NestedOnThread, request
from tests.compile.memory import Memory
from tests.compile.waiting import HANG, until
from tzero import settings
from tzero.compile import AsyncCompile, Request
from tzero.compile.delivery import Delivery
from tzero.events import Event, observe

SERVICE_THREADS = ("tzero-lookup", "tzero-compile", "tzero-worker", "tzero-warm")


@pytest.fixture
def service() -> Iterator[AsyncCompile]:
    with settings.override(compile_workers=2):
        made = AsyncCompile(Memory())
        yield made
        made.shutdown()


def echo(text: str) -> Request:
    return request("echo", text)


def program(text: str) -> Request:
    return request("compiler", f'["echo", "{text}"]')


MAKES = {"in a worker": echo, "on a thread": program}
makes = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


@makes
def test_done_callbacks_that_compile_and_wait_do_not_stop_the_service(
    service: AsyncCompile, make: Callable[[str], Request]
) -> None:
    """As many callbacks wait as there are workers, and more."""
    done: list[str] = []

    def compile_more(future: Future[object]) -> None:
        text = f"more {id(future)}"
        service.submit(make(text)).result(HANG)
        service.compile(make(f"{text} again"))
        done.append(text)

    for n in range(6):
        service.submit(make(str(n))).add_done_callback(compile_more)
    until(lambda: len(done) == 6, "the end of six callbacks")
    assert service.submit(make("last")).result(HANG)


@makes
def test_observers_that_compile_and_wait_do_not_stop_the_service(
    service: AsyncCompile, make: Callable[[str], Request]
) -> None:
    seen: list[str] = []

    def compile_more(event: Event) -> None:
        if event.kind == "compile" and len(seen) < 6:
            seen.append(event.kernel)
            service.submit(make(f"more {len(seen)}")).result(HANG)

    with observe(compile_more):
        for future in [service.submit(make(str(n))) for n in range(6)]:
            assert future.result(HANG)
    assert len(seen) == 6


@makes
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_observer_that_raises_answers_the_future(
    service: AsyncCompile, make: Callable[[str], Request], error: BaseException
) -> None:
    def leave(event: Event) -> None:
        raise error

    with observe(leave):
        futures = [service.submit(make(str(n))) for n in range(4)]
        assert all(future.exception(HANG) is error for future in futures)
    assert service.submit(make("next")).result(HANG)
    assert service._in_flight.jobs() == []


@makes
@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_does_not_stop_the_service(
    service: AsyncCompile, make: Callable[[str], Request], error: BaseException
) -> None:
    called: list[object] = []
    here = threading.get_ident()

    def leave(future: Future[object]) -> None:
        if threading.get_ident() != here:  # it runs here if the future has its result already
            raise error

    futures = [service.submit(make(str(n))) for n in range(6)]
    for future in futures:
        future.add_done_callback(leave)
        future.add_done_callback(called.append)
    assert all(future.result(HANG) for future in futures)
    assert service.submit(make("next")).result(HANG)
    if not isinstance(error, KeyboardInterrupt):
        until(lambda: len(called) == 6, "the callbacks behind those that raise")


def test_an_observer_of_a_cache_event_that_raises_answers_the_future(
    service: AsyncCompile,
) -> None:
    asked = echo("text")
    stores = Memory()
    stores.entries[asked.digest] = b"no artifact"
    service._stores = stores

    def leave(event: Event) -> None:
        if event.kind == "cache":
            raise SystemExit(4)

    with observe(leave):
        assert isinstance(service.submit(asked).exception(HANG), SystemExit)
    assert service.submit(asked).result(HANG).files["out"] == b"text"


@makes
def test_no_code_of_a_user_runs_on_a_thread_of_the_service(
    service: AsyncCompile, make: Callable[[str], Request]
) -> None:
    names: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.append(threading.current_thread().name)

    logger, handler = logging.getLogger("tzero"), Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with observe(lambda event: names.append(threading.current_thread().name)):
            for n in range(4):
                future = service.submit(make(str(n)))
                future.add_done_callback(lambda _: names.append(threading.current_thread().name))
                future.result(HANG)
            service.submit(request("no_such_backend")).exception(HANG)
            service.warm_pool()
            service.wait_pool_ready(HANG)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert len(names) > 10
    assert not set(names) & set(SERVICE_THREADS), names


def test_compilers_on_threads_may_request_more_and_wait(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NestedOnThread, "service", service)
    asked = [request("nested_on_thread", f'["echo", "{n}"]') for n in range(6)]
    made = [future.result(HANG) for future in map(service.submit, asked)]
    assert [artifact.files["out"] for artifact in made] == [b"%d\n" % n for n in range(6)]


def test_a_callback_may_shut_the_service_down(service: AsyncCompile) -> None:
    done = threading.Event()

    def end(_: object) -> None:
        service.shutdown()
        done.set()

    service.submit(echo("text")).add_done_callback(end)
    assert done.wait(HANG)
    assert service.submit(echo("text too")).result(HANG)


def test_calls_are_made_in_order_while_none_waits() -> None:
    delivery, made = Delivery(), []
    for n in range(1000):
        delivery.put(lambda n=n: made.append(n))
    assert delivery.drain(HANG)
    assert made == list(range(1000))


def test_calls_behind_one_that_waits_are_made_meanwhile() -> None:
    delivery = Delivery()
    gates = [threading.Event() for _ in range(8)]

    def wait(n: int) -> None:
        if n + 1 < len(gates):
            gates[n + 1].wait(HANG)  # for a call that is behind this one
        gates[n].set()

    for n in range(len(gates)):
        delivery.put(lambda n=n: wait(n))
    assert all(gate.wait(HANG) for gate in gates)
    assert delivery.drain(HANG)
