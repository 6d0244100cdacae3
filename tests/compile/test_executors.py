"""`tzero.compile.on`: requests go to an executor, and come back however it fails."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from tests.compile.backends import Refused, request
from tests.compile.memory import Memory
from tests.compile.waiting import paused_at, until
from tzero import settings
from tzero.compile import AsyncCompile, Request, executors, on
from tzero.compile.executor_task import Answer, compile_there
from tzero.compile.request import Artifact
from tzero.errors import CompileFailed
from tzero.events import Event, observe

HANG = 60.0


def without_cache() -> None:
    os.environ["TZERO_CACHE"] = "0"


def one_process() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=without_cache)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with one_process() as made:
        yield made


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def reasons(seen: list[Event]) -> list[str]:
    return [event.reason for event in seen if event.kind == "fallback"]


class Programmed(Executor):
    """Does with each submission what the next of ``acts`` says, and with all later ones what the
    last one says."""

    def __init__(self, *acts: Callable[..., Any]) -> None:
        self.acts, self.sent = list(acts), 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        act = self.acts[min(self.sent, len(self.acts) - 1)]
        self.sent += 1
        future: Future[Any] = Future()
        act(future, function, args)
        return future


def works(future: Future[Any], function: Any, args: Any) -> None:
    future.set_result(function(*args))


def raises(error: BaseException) -> Callable[..., None]:
    def act(future: Future[Any], function: Any, args: Any) -> None:
        future.set_exception(error)

    return act


def refuses(future: Future[Any], function: Any, args: Any) -> None:
    raise RuntimeError("cannot schedule new futures after shutdown")


def returns(value: object) -> Callable[..., None]:
    return lambda future, function, args: future.set_result(value)


def never(future: Future[Any], function: Any, args: Any) -> None:
    pass


def test_an_executor_compiles_what_no_cache_has(
    service: AsyncCompile, store: Memory, processes: ProcessPoolExecutor, seen: list[Event]
) -> None:
    with on(processes):
        made = [service.submit(request("echo", "a")), service.submit(request("echo", "b"))]
        facts = [future.result(HANG).facts for future in made]
        again = service.compile(request("echo", "c"))
    assert {each["pid"] for each in facts} == set(processes._processes)
    assert again.facts["pid"] == facts[0]["pid"] and again.files["out"] == b"c"
    assert service.workers() == [] and service.stats().compiled["executor"] == 3
    assert len(store.entries) == 3
    assert [event.facts["where"] for event in seen if event.kind == "compile"] == ["executor"] * 3
    inside = service.submit(request("echo", "d")).result(HANG)
    assert inside.facts["pid"] in service.workers()


def test_what_a_cache_has_is_not_sent(service: AsyncCompile, store: Memory) -> None:
    store.entries[request("echo").digest] = Artifact({"out": b"kept"}).encode()
    executor = Programmed(refuses)
    with on(executor):
        assert service.submit(request("echo")).result(HANG).files["out"] == b"kept"
        assert service.compile(request("echo")).files["out"] == b"kept"
    assert executor.sent == 0


def test_threads_of_this_process_are_an_executor_too(service: AsyncCompile) -> None:
    with ThreadPoolExecutor(2) as threads, on(threads):
        made = [service.submit(request("echo", str(k))) for k in range(20)]
        assert {future.result(HANG).facts["pid"] for future in made} == {os.getpid()}
    assert service.stats().compiled["executor"] == 20


def test_a_request_and_its_answer_are_plain_values(service: AsyncCompile) -> None:
    sent: list[bytes] = []

    def notes(future: Future[Any], function: Any, args: Any) -> None:
        sent.append(pickle.dumps(args))
        works(future, function, args)

    with on(Programmed(notes)):
        service.submit(request("echo", "text", environment={"CPATH": "/include"})).result(HANG)
    asked, sender, limit = pickle.loads(sent[0])
    assert type(asked) is Request and (type(sender), type(limit)) == (str, int)
    answer = compile_there(asked, sender, limit)
    assert [type(each) for each in answer] == [bytes, type(None), bool, str, int, float]


def test_errors_of_a_compiler_are_raised_and_not_retried(
    service: AsyncCompile, processes: ProcessPoolExecutor, seen: list[Event]
) -> None:
    with on(processes):
        with pytest.raises(Refused, match="not this one") as found:
            service.compile(request("raises", "own"))
        with pytest.raises(CompileFailed) as wrapped:
            service.submit(request("python", "def")).result(HANG)
    assert "process" in found.value.__notes__[-1]
    assert isinstance(wrapped.value.__cause__, SyntaxError)
    assert service.stats().failed == 2 and reasons(seen) == []


FAILURES = {
    "it loses a worker": (raises(BrokenProcessPool("a process died")), "a process died"),
    "it takes nothing": (refuses, "cannot schedule new futures"),
    "it returns something else": (returns(7), "the executor returned a int"),
    "it returns no artifact": (returns(Answer(b"x", None, False, "h", 1, 0.0)), "not an artifact"),
    "it returns nothing": (returns(Answer(None, None, False, "h", 1, 0.0)), "neither"),
    "it cancels": (lambda future, function, args: future.cancel(), "CancelledError"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_executor_is_asked_again_and_then_this_process_compiles(
    service: AsyncCompile, failure: str, seen: list[Event]
) -> None:
    act, words = FAILURES[failure]
    once, always = Programmed(act, works), Programmed(act)
    with on(once):
        assert service.submit(request("echo", "once")).result(HANG).files["out"] == b"once"
    assert once.sent == 2
    with on(always):
        made = service.submit(request("echo", "always")).result(HANG)
    assert always.sent == 3
    assert made.facts["pid"] in service.workers()
    stats = service.stats()
    assert (stats.failed, stats.compiled["executor"], stats.compiled["process"]) == (0, 1, 1)
    last = reasons(seen)[-1]
    assert last.startswith("this process compiles it, not the executor") and words in last


def test_a_lost_executor_is_not_asked_for_a_while(service: AsyncCompile, seen: list[Event]) -> None:
    executor = Programmed(refuses)
    with on(executor):
        for each in range(5):
            service.submit(request("echo", str(each))).result(HANG)
    assert executor.sent == 3
    assert len(reasons(seen)) == 5 and all("refus" in e or "lost" in e for e in reasons(seen)[1:])


def test_a_process_pool_whose_process_is_killed_fails_no_compile(
    service: AsyncCompile, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    with one_process() as pool, on(pool):
        future = service.submit(request("pauses", str(place)))
        there = paused_at(place)
        assert there in pool._processes
        place.unlink()
        for process in list(pool._processes.values()):
            process.kill()
        if not future.done():
            until(lambda: place.exists() or future.done(), "compiling here")
            place.unlink(missing_ok=True)
        assert future.result(HANG).facts["pid"] != os.getpid()


def test_an_executor_that_never_answers_is_lost_after_the_time_limit(
    service: AsyncCompile, seen: list[Event]
) -> None:
    executor = Programmed(never)
    with settings.override(compile_timeout=1), on(executor):
        made = [service.submit(request("echo", str(each))) for each in range(3)]
        assert {future.result(HANG).facts["pid"] for future in made} <= set(service.workers())
    assert executor.sent == 3
    assert all("it has finished nothing for 1 s" in reason for reason in reasons(seen))


def test_a_machine_with_other_tools_does_not_compile(
    service: AsyncCompile, processes: ProcessPoolExecutor, seen: list[Event]
) -> None:
    with on(processes):
        made = service.submit(request("other_machine", "text")).result(HANG)
    assert made.facts["pid"] in service.workers()
    assert len(reasons(seen)) == 3 and "made with gcc 12.2" in reasons(seen)[-1]


def test_a_backend_that_names_no_tools_is_not_sent(
    service: AsyncCompile, seen: list[Event]
) -> None:
    executor = Programmed(works)
    with on(executor):
        assert service.compile(request("homebound")).facts["pid"] in service.workers()
    assert executor.sent == 0 and "does not say whether another machine" in reasons(seen)[0]


def test_without_workers_the_caller_compiles_what_the_executor_cannot(store: Memory) -> None:
    with settings.override(compile_workers=1), on(Programmed(refuses)):
        service = AsyncCompile(store)
        assert service.compile(request("echo")).facts["pid"] == os.getpid()
        assert service.stats().compiled["inline"] == 1
        service.shutdown()


def test_the_last_block_counts_and_ends_alone(service: AsyncCompile) -> None:
    outer, inner = Programmed(works), Programmed(works)
    first = on(outer)
    with on(inner) as second:
        assert second.executor is inner
        first.end()
        service.compile(request("echo", "a"))
    service.compile(request("echo", "b"))
    assert (outer.sent, inner.sent) == (0, 1)
    assert executors.current() is None


def test_what_is_no_executor_is_refused() -> None:
    with pytest.raises(TypeError, match="takes an executor"):
        on("ray://head:10001")  # type: ignore[arg-type]
    assert executors.current() is None


def test_shutdown_and_stop_end_what_an_executor_has(store: Memory) -> None:
    with settings.override(compile_workers=2), on(Programmed(never)):
        service = AsyncCompile(store)
        stopped, left = (service.submit(request("echo", each)) for each in "ab")
        until(lambda: len(store.reads) == 2, "looking both up")
        service.stop([stopped])
        assert stopped.exception(HANG) is not None
        assert not left.done()
        service.shutdown()
        assert left.exception(HANG) is not None
    waiting = [each for each in threading.enumerate() if each.name == "tzero-executor"]
    for thread in waiting:
        thread.join(HANG)
        assert not thread.is_alive()


def test_a_forked_child_does_not_use_its_parents_executor() -> None:
    with on(Programmed(never)):
        child = os.fork()
        if not child:
            os._exit(0 if executors.current() is None else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_sending_waits_for_no_executor(service: AsyncCompile) -> None:
    def slow(future: Future[Any], function: Any, args: Any) -> None:
        time.sleep(0.3)
        works(future, function, args)

    with on(Programmed(slow)):
        start = time.perf_counter()
        future = service.submit(request("echo"))
        assert not future.done() and time.perf_counter() - start < 0.25
        future.result(HANG)
