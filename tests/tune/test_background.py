"""A shape near a tuned one gets that one's config at once, and a better one when it is found."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tzero
from tests.tune.kernels import LARGE, SMALL, X, double, kernel, observed
from tzero import Config, settings
from tzero.arguments.host import read_host
from tzero.events import Event, observe
from tzero.launches.current_call import current
from tzero.tune import background as module
from tzero.tune import later
from tzero.tune.background import Background, Job, Stopped, background
from tzero.tune.isolated import Isolated
from tzero.tune.kernel_search import KernelSearch, _Polite
from tzero.tune.outcome import Outcome
from tzero.tune.select import Choice
from tzero.tune.tuner import Search, Step
from tzero.tune.turn import TURN

pytestmark = pytest.mark.usefixtures("own_memory")

Y = X[:500].clone()
SOON = 60.0


@pytest.fixture(autouse=True)
def in_background(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TZERO_TUNE_WHEN", raising=False)
    yield
    assert background.wait(SOON)


@pytest.fixture
def real() -> None:
    """Configs are really timed, each search in the background in a process of its own."""


@pytest.fixture(autouse=True)
def known_times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches find that LARGE is twice as fast as SMALL in the background, and the other way round
    in a call."""
    if "real" in request.fixturenames:
        return
    times = {SMALL: Outcome(2e-5), LARGE: Outcome(1e-5)}
    steps = tuple(Step(0.1, config, outcome) for config, outcome in times.items())

    def apart(self: Any, bench: Any, *given: Any) -> Search:
        given[-1]()
        return Search(times, steps, 0.1, "searched", (), SMALL)

    def here(self: Any, function: Any, args: Any, *given: Any) -> Search:
        function(*args, SMALL)  # as a search does
        other = {SMALL: Outcome(1e-5), LARGE: Outcome(2e-5)}
        return Search(other, steps, 0.1, "searched", (), SMALL)

    monkeypatch.setattr(KernelSearch, "_search_apart", apart)
    monkeypatch.setattr(KernelSearch, "search_here", here)


def tuned_at_x() -> Any:
    made = kernel()
    made(X)
    assert made.bind(X).choice.how in ("tuned", "cached")
    return made


def test_the_first_shape_of_a_kernel_is_tuned_in_its_call() -> None:
    made = kernel()
    made(X)
    assert made.bind(X).choice.how == "tuned"
    assert background.wait(0)


def test_a_new_shape_gets_the_nearest_config_and_a_better_one_replaces_it(tier: int) -> None:
    made = tuned_at_x()
    found, watching = observed()
    with watching:
        with tzero.pause_tuning():
            for _ in range(4):
                torch.testing.assert_close(made(Y), Y * 2)
            bound = made.bind(Y)
            now = bound.choice
            assert now.how == "nearest" and now.variant == SMALL
            assert "a search in the background may replace it" in str(made.explain(Y))
        assert tzero.wait_for_tuning(SOON)
    for _ in range(4):
        torch.testing.assert_close(made(Y), Y * 2)
    assert made.bind(Y) is bound and bound.config == LARGE
    assert bound.choice.how == "tuned"
    expected = f"in the background, in place of {SMALL!r}, 2.00 times as fast"
    assert expected in bound.choice.why and expected in str(made.explain(Y))
    (said,) = (each for each in found if "is replaced by" in each)
    assert f"{SMALL!r} is replaced by {LARGE!r}, 2.00 times as fast" in said
    assert made.arguments(Y) in said
    if tier:
        assert "(x, t1, 500, 256, 2)" in str(made.explain(Y).plan)


def test_another_process_finds_what_the_background_found() -> None:
    tuned_at_x()(Y)
    assert tzero.wait_for_tuning(SOON)
    again = kernel()
    again(Y)
    assert again.bind(Y).choice.how == "cached" and again.bind(Y).config == LARGE


def test_the_search_is_a_real_one_and_changes_no_argument(real: None) -> None:
    made = tuned_at_x()
    given = Y.clone()
    made(given)
    assert tzero.wait_for_tuning(SOON)
    assert torch.equal(given, Y)
    choice = made.bind(Y).choice
    assert choice.how == "tuned"
    assert "of 2 that were timed" in choice.why or "is as fast as" in choice.why
    assert made.tuning.searches[made.arguments(Y)].outcomes.keys() == {SMALL, LARGE}


def test_the_arguments_of_the_call_are_not_kept() -> None:
    made = tuned_at_x()
    given = Y.clone()
    gone = weakref.ref(given)
    with tzero.pause_tuning():
        made(given)
        given.fill_(7)  # the search works on what it was
        del given
        gc.collect()
        assert gone() is None
    assert tzero.wait_for_tuning(SOON)


def test_copies_are_dropped_once_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    plain = KernelSearch._search_apart

    def apart(self: Any, bench: Any, *given: Any) -> Any:
        gc.collect()
        alive = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        held.extend(each for each in alive if each.shape == (500,) and each is not Y)
        return plain(self, bench, *given)

    monkeypatch.setattr(KernelSearch, "_search_apart", apart)
    made = tuned_at_x()
    made(Y)
    assert tzero.wait_for_tuning(SOON)
    assert not held


def test_a_config_that_was_set_meanwhile_stays() -> None:
    made = tuned_at_x()
    found, watching = observed()
    pinned = Config(BLOCK=64, BY=2)
    with watching:
        with tzero.pause_tuning():
            made(Y)
            made.bind(Y).set_config(pinned)
        assert tzero.wait_for_tuning(SOON)
    assert made.bind(Y).choice.how == "pinned" and made.bind(Y).config == pinned
    assert any("is not used: another config was set" in each for each in found)


def test_two_kernels_alike_share_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    plain = KernelSearch._search_apart
    monkeypatch.setattr(
        KernelSearch, "_search_apart", lambda *given: begun.append(1) or plain(*given)
    )
    made = tuned_at_x()
    with tzero.pause_tuning():
        made(Y)
        one = made.bind(Y)
        made.reset()
        made(Y)
        assert made.bind(Y) is not one
    assert tzero.wait_for_tuning(SOON)
    assert len(begun) == 1
    assert made.bind(Y).choice.how == "tuned"


def test_a_kernel_that_is_gone_is_no_error() -> None:
    made = tuned_at_x()
    with tzero.pause_tuning():
        made(Y)
        made.reset()
        gc.collect()
    assert tzero.wait_for_tuning(SOON)
    made(X)


# -- who may tune when -----------------------------------------------------------------------------


def test_a_call_waits_where_the_setting_says_so() -> None:
    made = tuned_at_x()
    with settings.override(tune_when="call"):
        made(Y)
    assert made.bind(Y).choice.how == "tuned"


def test_nothing_is_searched_for_until_it_is_asked_for() -> None:
    with settings.override(tune_when="asked"):
        made = kernel()
        made(X)
        assert made.tuning.searches == {}
        assert "TZERO_TUNE_WHEN is 'asked'" in made.bind(X).choice.why
        made.autotune(X)
        made(Y)
        assert made.bind(Y).choice.how == "nearest"
        made.warmup(X[:300])
        assert made.bind(X[:300]).choice.how == "tuned"
    assert background.wait(0)


def test_warmup_waits_for_its_search() -> None:
    made = tuned_at_x()
    made.warmup(Y)
    assert made.bind(Y).choice.how == "tuned"


def test_autotune_takes_the_place_of_a_search_in_the_background() -> None:
    made = tuned_at_x()
    found, watching = observed()
    with watching:
        with tzero.pause_tuning():
            made(Y)
            made.autotune(Y)
        assert tzero.wait_for_tuning(SOON)
    assert not any("replaced" in each for each in found)


def test_kernels_in_a_search_are_tuned_in_it() -> None:
    inner = tuned_at_x()

    def outer(x: torch.Tensor, config: Config) -> torch.Tensor:
        return inner(x)

    tzero.kernel(configs=[Config(A=1), Config(A=2)])(outer)(Y)
    assert inner.bind(Y).choice.how == "tuned"


# -- not disturbing --------------------------------------------------------------------------------


def test_a_sealed_process_searches_for_nothing() -> None:
    made = tuned_at_x()
    found, watching = observed()
    with watching, tzero.pause_tuning():
        made(Y)
        with tzero.seal("error"):
            assert tzero.wait_for_tuning(SOON)
            with pytest.raises(tzero.SealBroken, match="tuning"):
                made(X[:300])
    assert any("the process is sealed" in each for each in found)
    assert made.bind(Y).choice.how == "nearest"


def test_nothing_is_replaced_once_the_process_is_sealed() -> None:
    made = tuned_at_x()
    with tzero.pause_tuning():
        made(Y)
        bound = made.bind(Y)
        near = bound.choice
        better = Choice.tuned(LARGE if near.variant == SMALL else SMALL, tried=2, seconds=1e-5)
        with tzero.seal("error"):
            assert not bound.improve(better, near)
            made(Y)
        assert bound.improve(better, near) and not bound.improve(better, near)


def test_a_capture_is_waited_for() -> None:
    from tzero.adapters import torch_captures

    class Graph:
        def capture_begin(self) -> None:
            done.append("began")

        def capture_end(self) -> None:
            done.append("ended")

    done: list[str] = []
    torch_captures.watch(Graph)
    torch_captures.watch(Graph)
    graph = Graph()
    graph.capture_begin()

    def work() -> None:
        with torch_captures.between_captures():
            done.append("works")
            time.sleep(0.1)
            done.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    graph.capture_end()
    while "works" not in done:
        time.sleep(0.001)
    graph.capture_begin()  # waits for the work
    graph.capture_end()
    thread.join()
    assert done == ["began", "ended", "works", "worked", "began", "ended"]


def test_a_capture_that_does_not_begin_is_not_waited_for() -> None:
    from tzero.adapters import torch_captures

    class Graph:
        def capture_begin(self) -> None:
            raise RuntimeError("no device")

        def capture_end(self) -> None:
            raise RuntimeError("nothing was captured")

    torch_captures.watch(Graph)
    with pytest.raises(RuntimeError, match="no device"):
        Graph().capture_begin()
    with pytest.raises(RuntimeError, match="nothing"):
        Graph().capture_end()
    with torch_captures.between_captures():
        pass


def test_one_search_runs_at_a_time_and_pauses_hold_it() -> None:
    queue, running, most = Background(), [], []

    def run(ready: Any) -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()

    pause, other = queue.pause(), queue.pause()
    for number in range(4):
        assert not queue.submit(Job(str(number), "add", run, 0))
    assert not queue.wait(0.1) and not most
    pause.resume()
    pause.resume()  # once
    assert not queue.wait(0.1) and not most
    other.resume()
    assert queue.wait(SOON) and most == [1] * 4
    queue.end()
    assert queue.submit(Job("5", "add", run, 0)) == "the process ends"


def test_a_search_in_a_call_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, done = Background(), []
    with TURN:
        assert not queue.submit(Job("key", "add", lambda ready: done.append(1), 0))
        assert not queue.wait(0.2) and not done
    assert queue.wait(SOON) and done
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with TURN:  # the call may wait for what this search has claimed
        queue.submit(Job("key", "add", lambda ready: done.append(2), 0))
        assert queue.wait(SOON) and done == [1, 2]
    queue.end()


def test_a_search_that_fails_or_is_dropped_is_an_event() -> None:
    queue = Background()
    found, watching = observed()
    began = threading.Event()

    def fail(ready: Any) -> None:
        raise ValueError("no such kernel")

    def until_dropped(ready: Any) -> None:
        began.set()
        while True:
            ready()
            time.sleep(0.01)

    with watching:
        queue.submit(Job("one", "add", fail, 0))
        queue.submit(Job("two", "add", until_dropped, 0))
        assert began.wait(SOON)
        assert queue.join("two", print) and not queue.join("three", print)
        queue.drop("two")
        assert not queue.join("two", print)
        assert queue.wait(SOON)
    queue.end()
    assert "ValueError: no such kernel" in found[0]
    assert "a call searches for the same" in found[1]
    with pytest.raises(Stopped):
        queue.ready()


def test_an_observer_that_raises_ends_no_other_search(monkeypatch: pytest.MonkeyPatch) -> None:
    raised, done = [], []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    queue = Background()

    def fail(ready: Any) -> None:
        raise ValueError("no such kernel")

    def observer(event: Event) -> None:
        raise TypeError("an observer's own")

    with observe(observer, calls=False):
        with queue.pause():
            queue.submit(Job("one", "add", fail, 0))
            queue.submit(Job("two", "add", lambda ready: done.append(1), 0))
        assert queue.wait(SOON) and done == [1]
    assert not queue.submit(Job("three", "add", lambda ready: done.append(2), 0))
    assert queue.wait(SOON) and done == [1, 2]
    queue.end()
    assert [each.exc_type for each in raised] == [TypeError]


def test_without_a_thread_a_call_gets_the_nearest_config(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuned_at_x()
    found, watching = observed()
    monkeypatch.setattr(module, "background", Background())
    monkeypatch.setattr(later, "background", module.background)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with watching, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert torch.equal(made(Y), Y * 2)
    assert made.bind(Y).choice.how == "nearest"
    assert any("can't start new thread; autotune tunes it" in each for each in found)
    made(X[:300])
    assert module.background.wait(SOON) and made.bind(X[:300]).choice.how == "tuned"
    module.background.end()


def test_a_config_that_is_as_fast_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuned_at_x()  # with SMALL
    times = {LARGE: Outcome(1e-5, 0.9e-5, 1.2e-5), SMALL: Outcome(1e-5, 0.9e-5, 1.1e-5)}

    def apart(self: Any, bench: Any, *given: Any) -> Search:
        steps = tuple(Step(0.1, config, outcome) for config, outcome in times.items())
        return Search(times, steps, 0.1, "searched", (), LARGE)

    monkeypatch.setattr(KernelSearch, "_search_apart", apart)
    monkeypatch.setattr(KernelSearch, "_first", LARGE)
    found, watching = observed()
    with watching:
        made(Y)
        assert tzero.wait_for_tuning(SOON)
    assert made.bind(Y).config == SMALL and made.bind(Y).choice.how == "tuned"
    assert any(f"no config is faster than {SMALL!r}" in each for each in found)


def test_a_process_that_ends_remembers_nothing_about_a_config_that_it_killed() -> None:
    class Bench:
        def outcome(self, config: Config, **given: Any) -> Outcome:
            queue.end()
            return Outcome(problem="it crashed", passing=True)

    queue = Background()
    with pytest.raises(Stopped):
        _Polite(cast("Any", Bench()), queue.ready).outcome(SMALL, budget=1.0, best=None)


PROGRAM = """
    import sys, torch
    from tests.tune.kernels import X, kernel
    made = kernel()
    made(X)
    made(X[:500])
    assert made.bind(X[:500]).choice.how == "nearest"
"""


def test_a_program_that_ends_during_a_search_ends_as_always(real: None, tmp_path: Path) -> None:
    variables = {**os.environ, "TZERO_CACHE_DIR": str(tmp_path), "TZERO_LOGS": "tune"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr and "Bad file descriptor" not in ended.stderr


def test_a_job_that_does_nothing_in_python_is_waited_for_at_the_end() -> None:
    queue, began, ended = Background(), threading.Event(), threading.Event()

    def run(ready: Any) -> None:
        began.set()
        time.sleep(0.2)
        ended.set()

    queue.submit(Job("key", "add", run, 0))
    assert began.wait(SOON)
    queue.end()
    assert ended.is_set()


def test_a_process_that_times_a_config_is_killed_when_nobody_wants_it() -> None:
    queue, asked = Background(), threading.Event()
    errors: list[BaseException] = []

    def run(ready: Any) -> None:
        def check() -> None:
            asked.set()
            queue.check()

        slow = Isolated(read_host(sleeps, SMALL), (X,), reference=SMALL, check=check)
        try:
            slow.reference_problem()
        except Stopped as error:
            errors.append(error)
        assert slow.pid is None

    queue.submit(Job("key", "sleeps", run, 0))
    assert asked.wait(SOON)
    queue.drop("key")
    assert queue.wait(SOON)
    assert [str(each) for each in errors] == ["a call searches for the same"]
    queue.end()


def sleeps(x: torch.Tensor, config: Config) -> None:
    time.sleep(SOON)


def test_copies_that_take_too_much_memory_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuned_at_x()
    found, watching = observed()
    monkeypatch.setattr(later, "MOST_BYTES", 100)
    with watching:
        made(Y)
    assert made.bind(Y).choice.how == "nearest"
    assert "may replace" not in made.bind(Y).choice.why
    assert any("autotune tunes it" in each for each in found)
    queue = Background()
    with queue.pause():
        assert not queue.submit(Job("1", "add", print, module.MOST_BYTES))
        assert "too much with others" in queue.submit(Job("2", "add", print, 1))
        queue.end()


def test_a_function_that_cannot_be_sent_keeps_the_nearest() -> None:
    lock = threading.Lock()  # no pickle

    def locked(x: torch.Tensor, config: Config) -> torch.Tensor:
        with lock:
            return double(x, config)

    made = tzero.kernel(configs=(SMALL, LARGE))(locked)
    made(X)
    found, watching = observed()
    with watching:
        made(Y)
        assert tzero.wait_for_tuning(SOON)
    assert made.bind(Y).choice.how == "nearest"
    assert any("not tuned in the background: " in each for each in found)


def test_a_forked_child_has_no_jobs() -> None:
    queue = Background()
    with queue.pause():
        queue.submit(Job("key", "add", lambda ready: None, 0))
        queue._forget()
        assert queue._thread is None and not queue._jobs
    pid = os.fork()
    if pid == 0:
        os._exit(0 if background.wait(0) and background._thread is None else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_flag_of_a_search_is_reset() -> None:
    tuned_at_x()
    assert not current.is_asked
