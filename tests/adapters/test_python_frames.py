"""Frames: the values on the stack of a running function, with each supported Python."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType
from typing import Any

import pytest

from tests.unit.test_locks import forked
from tzero.adapters import python_frames
from tzero.adapters.python_frames import Seen

pytestmark = [
    pytest.mark.skipif(sys.version_info >= (3, 15), reason="the newest supported Python is 3.14"),
    pytest.mark.skipif(find_spec("tzero._native") is None, reason="the extension is not built"),
]


def test_the_frames_of_this_python_can_be_read():
    assert python_frames.is_supported()


class Counter:
    def count(self, *args: Any, **named: Any) -> int:
        return len(args) + len(named)


def count(*args: Any, **named: Any) -> int:
    return len(args) + len(named)


counter = Counter()
CALLS = {
    "function": (lambda: count(1, 2), count, [1, 2], ()),
    "keywords": (lambda: count(1, by=2), count, [1, 2], ("by",)),
    "method": (lambda: counter.count(1), Counter.count, [counter, 1], ()),
    "keyword of a method": (lambda: counter.count(by=1), Counter.count, [counter, 1], ("by",)),
    "bound method": (lambda: (counter.count)(1), Counter.count, [counter, 1], ()),
    "method of None": (lambda: None.__eq__(1), type(None).__eq__, [None, 1], ()),
    "None as an argument": (lambda: count(None), count, [None], ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_shows_its_function_and_arguments(name: str) -> None:
    host, function, args, names = CALLS[name]
    seen: list[Any] = []
    keywords: tuple[str, ...] = ()

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal keywords
        if frame.f_code is not host.__code__:
            return None
        if event == "call":
            return python_frames.trace_instructions(frame, look)
        at = python_frames.decoded(frame.f_code)[frame.f_lasti]
        if at.name == "KW_NAMES":
            keywords = host.__code__.co_consts[at.arg]
        if event == "opcode" and at.name in ("PRECALL", "CALL", "CALL_KW") and not seen:
            values = python_frames.operands(frame, at, python_frames.arity(at))
            if at.name == "CALL_KW":
                *values, keywords = values
            seen.append((*python_frames.call_in(values), keywords))
        return look

    with python_frames.traced(look):
        host()
    assert seen == [(function, args, names)]


def test_a_call_with_stars_shows_its_function_and_arguments():
    seen: list[Any] = []

    def host(args: list[int], named: dict[str, int]) -> int:
        return count(*args, **named) + count(*args)

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not host.__code__:
            return None
        if event == "call":
            return python_frames.trace_instructions(frame, look)
        at = python_frames.decoded(frame.f_code)[frame.f_lasti]
        if event == "opcode" and at.name == "CALL_FUNCTION_EX":
            values = python_frames.operands(frame, at, python_frames.arity(at))
            *called, given = values[: len(values) - (at.arg & 1)]
            seen.append((*python_frames.call_in(called), list(given)))
        return look

    with python_frames.traced(look):
        assert host([1, 2], {"by": 3}) == 5
    assert seen == [(count, [], [1, 2]), (count, [], [1, 2])]


def test_a_block_that_is_not_traced_is_not_seen():
    seen: list[str] = []

    def shown() -> None: ...

    def hidden() -> None: ...

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        seen.append(frame.f_code.co_name)

    block = python_frames.untraced()
    with python_frames.traced(look):
        shown()
        with block:
            hidden()
            with block:
                hidden()
            hidden()
        with pytest.raises(ValueError, match="as ever"), block:
            raise ValueError("as ever")
        shown()
    assert seen.count("shown") == 2
    assert "hidden" not in seen


def test_a_block_that_was_not_entered_cannot_end():
    with pytest.raises(RuntimeError, match="was not entered"):
        python_frames.untraced().__exit__(None, None, None)


def test_an_interrupt_leaves_nothing_traced_and_garbage_collected(interrupted: Any) -> None:
    entered = 0

    def work() -> None:
        nonlocal entered
        while True:
            with python_frames.traced(lambda *_: None):
                entered += 1

    assert interrupted(work, 200)
    assert entered
    assert sys.gettrace() is None
    assert collects()


def test_an_interrupt_in_a_block_that_is_not_traced_leaves_the_thread_traceable(
    interrupted: Any,
) -> None:
    seen: list[str] = []

    def work() -> None:
        with python_frames.traced(lambda *_: None):
            while True:
                with python_frames.untraced():
                    pass

    def shown() -> None: ...

    assert interrupted(work, 200)
    with python_frames.traced(lambda frame, *_: seen.append(frame.f_code.co_name)):
        shown()
    assert "shown" in seen


@pytest.fixture
def interrupted() -> Iterator[Any]:
    """Calls a function that does not end, a number of times, until a signal handler raises."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    def repeat(work: Any, times: int) -> bool:
        for each in range(times):
            with pytest.raises(InterruptedError):
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + each * 1e-6)
                work()
        return True

    before = signal.signal(signal.SIGALRM, interrupt)
    yield repeat
    signal.signal(signal.SIGALRM, before)


def collects() -> bool:
    """Whether garbage collections begin by themselves."""
    return gc.isenabled() and gc.get_threshold()[0] > 0


def test_blocks_of_several_threads_let_collections_run_again_when_the_last_one_ends() -> None:
    def nothing(*_: object) -> None: ...

    def other() -> None:
        with python_frames.traced(nothing):
            inside.set()
            leave.wait()

    inside, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with python_frames.traced(nothing):
        thread.start()
        inside.wait()
    assert not collects()
    # A child has no other thread; one that is forked in a block is still in it.
    assert forked(collects) == 0
    with python_frames.traced(nothing):
        assert forked(lambda: not collects()) == 0
    leave.set()
    thread.join()
    assert collects()


def test_a_thread_that_disables_collections_for_a_while_finds_them_enabled_beside_a_block() -> None:
    def other() -> None:
        with python_frames.traced(lambda *_: None):
            inside.set()
            leave.wait()

    inside, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    before = gc.isenabled()  # as `timeit` does
    leave.set()
    thread.join()
    gc.disable()
    if before:
        gc.enable()
    is_on = collects()
    gc.enable()
    assert is_on


def test_thresholds_that_are_set_in_a_block_stay() -> None:
    before = gc.get_threshold()
    try:
        with python_frames.traced(lambda *_: None):
            gc.set_threshold(321, 5, 6)
        assert gc.get_threshold() == (321, 5, 6)
        with python_frames.traced(lambda *_: None):
            assert not collects()
            gc.set_threshold(0, 7, 8)
        assert gc.get_threshold() == (321, 7, 8)
    finally:
        gc.set_threshold(*before)
    gc.set_threshold(0, *before[1:])
    with python_frames.traced(lambda *_: None):
        pass
    is_off = not collects()
    gc.set_threshold(*before)
    assert is_off


def test_a_block_is_traced_once() -> None:
    block = python_frames.traced(lambda *_: None)
    with block, pytest.raises(RuntimeError, match="a block is traced once"):
        block.__enter__()
    assert sys.gettrace() is None
    assert collects()


# -- followers -------------------------------------------------------------------------------------


def followed(host: Any, step: Any = lambda *_: python_frames.answers().goes_on) -> Any:
    """A block in which the frames of a function are followed, and how often they began."""
    began: list[FrameType] = []
    looks = {place: Seen("always", 0, 0, "entry") for place in range(0, 200, 2)}

    def begin(frame: FrameType) -> Any:
        if frame.f_code is not host.__code__:
            return None
        began.append(frame)
        return python_frames.seen_by_follower(frame.f_code, looks)

    return python_frames.traced(python_frames.follower(begin, step, lambda _: None, {})), began


def test_an_error_of_a_follower_reaches_the_caller_and_ends_the_following() -> None:
    def step(*_: object) -> int:
        raise ArithmeticError("as ever")

    block, began = followed(count, step)
    with block:
        with pytest.raises(ArithmeticError, match="as ever"):
            count(1)
        assert count(1, 2) == 2
    assert len(began) == 1
    assert sys.gettrace() is None
    assert collects()


def test_a_follower_sees_no_frames_of_other_threads() -> None:
    block, began = followed(count)
    with block:
        other = threading.Thread(target=count)
        other.start()
        other.join()
        assert not began
        count()
    assert len(began) == 1


def test_frames_of_libraries_are_shown_only_if_their_code_is_among_those_to_see() -> None:
    def shown(among: Any) -> list[str]:
        found: list[str] = []

        def begin(frame: FrameType) -> None:
            found.append(frame.f_code.co_name)

        answer = python_frames.answers().goes_on
        table = python_frames.seen_by_follower(host.__code__, {0: Seen("always", 0, 0, "entry")})

        def first(frame: FrameType) -> Any:
            begin(frame)
            return table if frame.f_code is host.__code__ else None

        modules = {each.__module__: True for each in (count, gc.get_objects)}
        follower = python_frames.follower(
            first, lambda *_: answer, lambda _: None, modules, (python_frames.Codes(among),)
        )
        with python_frames.traced(follower):
            host()
        return found

    def host() -> None:
        count(1)

    assert shown([]) == ["host"]
    assert shown([count.__code__]) == ["host", "count"]


by_monitoring = pytest.mark.skipif(
    sys.version_info[:2] != (3, 12), reason="only CPython 3.12 is followed by sys.monitoring"
)


def tools() -> list[Any]:
    """The names of the tools that use `sys.monitoring`."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    return [monitoring.get_tool(tool) for tool in range(6)]


@by_monitoring
def test_only_the_code_that_is_followed_shows_its_instructions() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    seen: list[int] = []

    def step(*_: object) -> int:
        tool = tools().index("tzero")
        seen.append(monitoring.get_events(tool) & monitoring.events.INSTRUCTION)
        seen.append(monitoring.get_local_events(tool, tools.__code__))
        return python_frames.answers().goes_on

    block, began = followed(count, step)
    with block:
        count()
    assert began and seen and not any(seen)
    assert tools() == [None] * 6
    assert all(monitoring.get_local_events(k, count.__code__) == 0 for k in range(6))


@by_monitoring
def test_a_call_is_followed_although_other_tools_leave_no_number() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    for tool in (3, 4):
        monitoring.use_tool_id(tool, "another")
    try:
        block, began = followed(count)
        with block:
            count()
    finally:
        for tool in (3, 4):
            monitoring.free_tool_id(tool)
    assert len(began) == 1
    assert sys.gettrace() is None


@by_monitoring
def test_a_child_that_another_thread_forks_is_not_followed() -> None:
    def fork() -> None:
        codes.append(forked(lambda: tools() == [None] * 6))

    codes: list[int] = []
    block, _ = followed(count)
    with block:
        other = threading.Thread(target=fork)
        other.start()
        other.join()
        assert "tzero" in tools()
    assert codes == [0]
