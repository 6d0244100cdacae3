"""The compile service when nothing goes wrong; `tests/faults` has the failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.compile.backends import Warm, request
from tests.compile.memory import Memory
from tests.compile.waiting import PYTHONPATH, is_gone, paused_at, until
from tzero import measure, settings
from tzero.cache import stores
from tzero.compile import AsyncCompile, Cost, Request, compilers, warm_pool
from tzero.compile import service as own_service
from tzero.compile.request import Artifact
from tzero.errors import BackendMissing
from tzero.events import Event, observe

# `tzero.compile.service` is the function, which hides the module of that name.
MODULE = sys.modules["tzero.compile.service"]
METHODS = ["subprocess", "fork", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_compiles_a_request_and_sees_no_gpu(service: AsyncCompile, method: str) -> None:
    with settings.override(start_method=method):
        made = service.submit(request("echo", "text")).result()
    assert made.files["out"] == b"text"
    assert made.facts["pid"] != os.getpid()
    assert made.facts["gpu"] == ""
    assert made.facts["interrupt"]
    assert method == "fork" or not made.facts["torch"]


def test_this_process_keeps_its_gpus(service: AsyncCompile) -> None:
    service.submit(request("echo")).result()
    assert os.environ.get("CUDA_VISIBLE_DEVICES", "all") != ""


def test_two_hundred_equal_requests_are_one_compile(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(service.submit, request("pauses", str(place))) for _ in range(200)]
        futures = {future.result() for future in asked}
    paused_at(place)
    place.unlink()
    assert len(futures) == 1
    assert futures.pop().result().facts["pid"] in service.workers()
    stats = service.stats()
    assert (stats.requests, stats.joined, stats.compiled["process"]) == (200, 199, 1)


def test_a_repeated_request_is_answered_from_memory(service: AsyncCompile, store: Memory) -> None:
    first = service.submit(request("echo")).result()
    again = service.submit(request("echo"))
    assert again.done() and again.result() is first
    assert service.stats().hits == {"memory": 1, "disk": 0, "remote": 0}
    assert len(store.reads) == 1


def test_memory_is_limited_in_bytes_and_drops_the_oldest(
    monkeypatch: pytest.MonkeyPatch, store: Memory
) -> None:
    monkeypatch.setattr(MODULE, "MEMORY_LIMIT", 3000)
    with settings.override(compile_workers=1):
        service = AsyncCompile(store)
        for text in "abc":
            service.submit(request("echo", text * 1000))
        service.submit(request("echo", "c" * 1000))
        service.submit(request("echo", "a" * 1000))
    assert service.stats().hits == {"memory": 1, "disk": 1, "remote": 0}


def test_what_a_cache_has_is_not_compiled(service: AsyncCompile, store: Memory) -> None:
    kept = Artifact({"out": b"kept"})
    store.entries[request("echo").digest] = kept.encode()
    assert service.submit(request("echo")).result() == kept
    assert service.stats().hits["disk"] == 1
    assert service.workers() == []


def test_what_was_compiled_is_put_into_the_cache(service: AsyncCompile, store: Memory) -> None:
    made = service.submit(request("echo")).result()
    assert Artifact.decode(store.entries[request("echo").digest]) == made


def test_a_cache_entry_that_is_not_an_artifact_is_replaced_with_an_event(
    service: AsyncCompile, store: Memory
) -> None:
    digest = request("echo").digest
    store.entries[digest] = b"something else"
    seen: list[Event] = []
    with observe(seen.append):
        made = service.submit(request("echo")).result()
    assert [event.kind for event in seen] == ["cache", "compile"]
    assert Artifact.decode(store.entries[digest]) == made


def test_caches_are_read_on_another_thread(service: AsyncCompile, store: Memory) -> None:
    service.submit(request("echo")).result()
    assert threading.get_ident() not in store.threads


def test_one_worker_means_the_caller_compiles(service: AsyncCompile) -> None:
    with settings.override(compile_workers=1):
        future = service.submit(request("echo"))
        assert future.done()
    assert future.result().facts["pid"] == os.getpid()
    assert service.stats().compiled["inline"] == 1


def test_until_the_pool_is_up_compile_is_inline_and_says_so(service: AsyncCompile) -> None:
    seen: list[Event] = []
    with observe(seen.append):
        made = service.compile(request("echo"))
    assert made.facts["pid"] == os.getpid()
    (event,) = seen
    assert event.facts["where"] == "inline"
    assert event.facts["why"] == "the pool is not up"


def test_once_workers_are_up_compile_uses_them(service: AsyncCompile) -> None:
    service.warm_pool()
    assert service.wait_pool_ready(60)
    assert service.compile(request("echo")).facts["pid"] in service.workers()


def test_compile_joins_what_was_submitted(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    future = service.submit(request("pauses", str(place)))
    paused_at(place)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(service.compile, request("pauses", str(place)))
        until(lambda: service.stats().joined == 1, "joining")
        place.unlink()
        assert waiting.result() is future.result()


def test_what_a_caller_waits_for_goes_first(service: AsyncCompile, tmp_path: Path) -> None:
    with settings.override(compile_workers=2):
        places = [tmp_path / "a", tmp_path / "b"]
        for place in places:
            service.submit(request("pauses", str(place)))
            paused_at(place)
        order: list[str] = []
        for text in "cde":
            future = service.submit(request("echo", text))
            future.add_done_callback(lambda f: order.append(f.request.program))
        until(lambda: len(service._compilers._slots._queue) == 3, "queueing")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(service.compile, request("echo", "e"))
            until(lambda: service.stats().joined == 1, "joining")
            places[0].unlink()
            waiting.result()
        until(lambda: len(order) == 3, "the rest")
        places[1].unlink()
    assert order == ["e", "c", "d"]


def test_a_second_kernel_to_compile_starts_the_pool(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "names", list)  # importing all backends is slow
    assert service.compile(request("echo", "a")).facts["pid"] == os.getpid()
    assert not service.wait_pool_ready(60)
    assert service.compile(request("echo", "a")).facts["pid"] == os.getpid()
    assert not service.wait_pool_ready(60)
    assert service.compile(request("echo", "b")).facts["pid"] == os.getpid()
    assert service.wait_pool_ready(60) and len(service.workers()) == 2
    assert service.compile(request("echo", "c")).facts["pid"] in service.workers()


def test_the_pool_does_not_start_by_itself_where_a_setting_says_so(service: AsyncCompile) -> None:
    with settings.override(warm=False):
        for text in "abc":
            assert service.compile(request("echo", text)).facts["pid"] == os.getpid()
    assert not service.wait_pool_ready(60)


def test_what_the_caches_have_starts_no_pool(service: AsyncCompile, store: Memory) -> None:
    for text in "abc":
        store.entries[request("echo", text).digest] = Artifact({"out": b""}).encode()
        service.compile(request("echo", text))
    assert not service.wait_pool_ready(60)


def test_a_block_has_the_pool_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "names", list)
    with warm_pool(2) as service:
        assert service is own_service()
        assert service.wait_pool_ready(60)
        pids = service.workers()
        assert len(pids) == 2
    until(lambda: all(map(is_gone, pids)), "the workers' end")
    with warm_pool(2):
        pass  # ended while they start
    until(lambda: service.workers() == [], "the end of all")


def test_wait_pool_ready_is_false_without_a_pool(service: AsyncCompile) -> None:
    assert not service.wait_pool_ready(0)


def test_warming_calls_the_warm_method_of_backends(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "names", lambda: [request("warm").backend])
    service.warm_pool()
    assert service.wait_pool_ready(60)
    assert len(service.workers()) == 2
    assert service.submit(request("warm")).result().facts["warmed"]
    assert not Warm.warmed


def test_a_backend_that_cannot_be_imported_for_warming_is_an_event(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "names", lambda: ["no.such:module"])
    seen: list[Event] = []
    with observe(seen.append):
        service.warm_pool()
        assert service.wait_pool_ready(60)
        until(lambda: len(seen) == 2, "the events")
    assert "BackendMissing" in seen[0].reason


def test_quiesced_workers_are_gone_and_wake_again(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "names", list)  # importing all backends four times is slow
    service.warm_pool()
    assert service.wait_pool_ready(60)
    before = service.workers()
    service.quiesce()
    until(lambda: all(map(is_gone, before)), "the workers' end")
    until(lambda: service.workers() == [], "an empty list of workers")
    service.wakeup()
    assert service.wait_pool_ready(60)
    assert len(service.workers()) == 2
    assert not set(service.workers()) & set(before)


def test_idle_workers_end_by_themselves(service: AsyncCompile) -> None:
    with settings.override(quiesce=1):
        pid = service.submit(request("echo")).result().facts["pid"]
    until(lambda: is_gone(pid), "the worker's end")
    assert service.submit(request("echo", "again")).result().facts["pid"] != pid


def test_a_busy_worker_is_not_quiesced(service: AsyncCompile, tmp_path: Path) -> None:
    place = tmp_path / "pause"
    future = service.submit(request("pauses", str(place)))
    pid = paused_at(place)
    service.quiesce()
    place.unlink()
    assert future.result().facts["pid"] == pid


def test_a_change_of_the_start_method_reaches_the_next_request(service: AsyncCompile) -> None:
    pids = set()
    for method in METHODS:
        with settings.override(start_method=method):
            pids.add(service.submit(request("echo", method)).result().facts["pid"])
    assert len(pids) == 3


def test_the_environment_travels_with_each_request(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(text: str, **environment: str) -> object:
        asked = request("echo", text, environment=environment)
        return service.submit(asked).result().facts["environment"]

    assert seen("1", TZERO_TEST="one") == {"TZERO_TEST": "one"}
    assert seen("2", TZERO_TEST="two", TZERO_CC="clang") == {
        "TZERO_TEST": "two",
        "TZERO_CC": "clang",
    }
    assert "TZERO_TEST" not in os.environ
    with settings.override(compile_workers=1):
        assert seen("3", TZERO_TEST="three") == {"TZERO_TEST": "three"}
    assert "TZERO_TEST" not in os.environ


def test_a_changed_setting_reaches_the_next_request(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    service._stores = lambda now: seen.append(now.cache_dir) or Memory()
    with settings.override(compile_workers=1):
        for name in ("/a", "/b"):
            monkeypatch.setenv("TZERO_CACHE_DIR", name)
            service.submit(request("echo", name))
    assert seen == ["/a"] * 3 + ["/b"] * 3  # to get, to claim and to publish each


def test_a_compiler_that_is_a_program_runs_on_a_thread(service: AsyncCompile) -> None:
    made = service.submit(request("compiler", json.dumps(["cat"]))).result()
    assert made.files["out"] == b"int x;"
    assert made.facts["pid"] == os.getpid()
    assert service.stats().compiled["thread"] == 1
    assert service.workers() == []


def test_programs_run_beside_each_other(service: AsyncCompile, tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    futures = [service.submit(request("thread_pauses", str(place))) for place in places]
    for place in places:
        paused_at(place)
    for place in places:
        place.unlink()
    assert len({future.result().facts["thread"] for future in futures}) == 2


def test_finished_futures_leave_the_table(service: AsyncCompile) -> None:
    service.submit(request("echo")).result()
    assert service._in_flight.jobs() == []
    with pytest.raises(BackendMissing):
        service.submit(Request("no such", "add", "", "")).result()
    assert service._in_flight.jobs() == []


def test_wait_returns_a_dict_for_a_dict_and_a_list_for_a_list(service: AsyncCompile) -> None:
    futures = {text: service.submit(request("echo", text)) for text in "ab"}
    found = service.wait(futures)
    assert {name: made.files["out"] for name, made in found.items()} == {"a": b"a", "b": b"b"}
    assert [made.files["out"] for made in service.wait(futures.values())] == [b"a", b"b"]
    assert service.wait([]) == []


def test_wait_raises_the_first_failure_and_names_the_others(service: AsyncCompile) -> None:
    scope = {
        "good": service.submit(request("echo")),
        "bad": service.submit(request("python", "def")),
        "worse": service.submit(request("python", "1 +")),
    }
    with pytest.raises(Exception, match="SyntaxError") as caught:
        service.wait(scope)
    assert caught.value is scope["bad"].exception()
    assert caught.value.__notes__ == ["1 more failed: worse: CompileFailed"]


def test_of_many_failures_a_few_are_named(service: AsyncCompile) -> None:
    scope = {f"bad {k}": service.submit(request("python", f"{k} +")) for k in range(8)}
    with pytest.raises(Exception, match="SyntaxError") as caught:
        service.wait(scope)
    (note,) = caught.value.__notes__
    assert note.startswith("7 more failed: bad 1: CompileFailed; bad 2: ")
    assert note.endswith("bad 5: CompileFailed; and 2 more")


def test_a_future_cannot_be_cancelled_by_one_who_shares_it(
    service: AsyncCompile, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    future = service.submit(request("pauses", str(place)))
    paused_at(place)
    assert not future.cancel()
    place.unlink()
    future.result()


def test_after_shutdown_the_caller_compiles(service: AsyncCompile) -> None:
    pid = service.submit(request("echo")).result().facts["pid"]
    service.shutdown()
    assert is_gone(pid)
    assert service.submit(request("echo", "again")).result().facts["pid"] == os.getpid()


def test_submitting_does_not_wait_for_caches(service: AsyncCompile, tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(Memory):
        def get(self, digest: str) -> None:
            gate.wait()

    service._stores = Slow()
    futures = [service.submit(request("echo", str(n))) for n in range(50)]
    assert not any(future.done() for future in futures)
    gate.set()
    service.wait(futures)


def test_every_compile_is_one_event_and_one_log_line(
    service: AsyncCompile, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    with caplog.at_level("INFO", logger="tzero"), observe(seen.append):
        made = service.submit(request("echo")).result()
    (event,) = seen
    assert event.facts["digest"] == request("echo").digest
    assert event.facts["where"] == "process"
    assert event.facts["pid"] == made.facts["pid"]
    assert event.facts["layer"] == "compiled"
    (line,) = caplog.messages
    assert line.startswith("add: compile: digest=") and "seconds=" in line and "\n" not in line


def test_an_exception_of_an_observer_reaches_the_caller(service: AsyncCompile) -> None:
    def fails(event: Event) -> None:
        raise ZeroDivisionError("an observer")

    with observe(fails), pytest.raises(ZeroDivisionError):
        service.submit(request("echo")).result()
    assert service.submit(request("echo")).result()


def test_top_lists_the_slowest_kernels_first(
    service: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0, 1_000_000, 5_000_000, 2_000_000_000 + 5_000_000])  # starts and ends, in ns
    monkeypatch.setattr(compilers, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    with settings.override(compile_workers=1):
        for name in ("fast", "slow"):
            service.compile(request("echo", name=name))
    assert service.top() == [Cost("slow", 1, 2.0), Cost("fast", 1, 0.001)]
    assert service.top(1) == [Cost("slow", 1, 2.0)]
    assert service.stats().seconds == 2.001


def test_the_time_of_a_compile_is_measured_in_the_worker(service: AsyncCompile) -> None:
    with measure.recording() as record:
        for name in ("add", "mul", "sub"):
            service.submit(request("echo", name=name)).result()
    spans = sorted(record.spans, key=lambda span: span.start - span.end)
    assert {span.process for span in spans} <= set(service.workers())
    assert service.top() == [Cost(s.kernel, 1, (s.end - s.start) / 1e9) for s in spans]
    assert service.stats().seconds == sum(span.end - span.start for span in spans) / 1e9


def test_reloads_are_counted(service: AsyncCompile) -> None:
    service.reloaded()
    assert service.stats().reloads == 1


def test_the_trace_has_the_workers(service: AsyncCompile, tmp_path: Path) -> None:
    start = time.perf_counter_ns()
    with measure.recording() as record:
        made = service.submit(request("echo")).result()
    (span,) = record.spans
    assert (span.stage, span.kernel, span.process) == ("compile", "add", made.facts["pid"])
    assert start < span.start < span.end < time.perf_counter_ns()
    record.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert {event["pid"] for event in events} == {made.facts["pid"]}


def test_a_worker_compiles_nested_requests_itself(service: AsyncCompile) -> None:
    facts = service.submit(request("nested")).result().facts
    assert facts["inner"] == facts["pid"] != os.getpid()


def test_the_process_has_one_service_of_its_own() -> None:
    assert own_service() is own_service()


@pytest.mark.parametrize("method", METHODS)
def test_a_script_needs_no_main_guard(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\n"
        "from tests.compile.backends import request\n"
        "from tests.compile.memory import Memory\n"
        "from tzero.compile import AsyncCompile\n"
        "print(AsyncCompile(Memory()).submit(request('echo', 'text')).result().files['out'])\n"
    )
    names = {"PYTHONPATH": PYTHONPATH, "TZERO_START_METHOD": method, "TZERO_COMPILE_WORKERS": "2"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("once\nb'text'\n", "", 0)


def test_what_was_fetched_without_a_key_is_not_trusted_after_one_was_set() -> None:
    asked = request("echo", "text")
    forged = Artifact({"out": b"forged"}).encode()
    remote = "memory://trusted-later"
    with settings.override(compile_workers=1, cache=False, remote_cache=remote):
        own = AsyncCompile()
        stores(settings.now()).put(asked.digest, forged)
        assert stores(settings.now()).flush(60)
        assert own.compile(asked).files["out"] == b"forged"
        assert own.compile(asked).files["out"] == b"forged"
        assert own.stats().hits["memory"] == 1
        with settings.override(cache_key="a secret"):
            assert own.compile(asked).files["out"] == b"text"
        assert own.compile(asked).files["out"] == b"text"  # what was compiled here is trusted
        own.shutdown()


def test_requests_share_a_compile_only_if_they_trust_the_same_remote(tmp_path: Path) -> None:
    place = tmp_path / "pause"
    asked = request("pauses", str(place))
    with settings.override(compile_workers=2, remote_cache="memory://shared-or-not"):
        own = AsyncCompile(Memory())
        one = own.submit(asked)
        assert own.submit(asked) is one
        with settings.override(cache_key="a secret"):
            assert own.submit(asked) is not one
        own.shutdown()
