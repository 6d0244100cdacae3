"""Events reach every observer and the log, and cost nothing without observers."""

from __future__ import annotations

import logging
import threading

import pytest

from tzero.events import Event, emit, hushed, observe, watched

MISS = Event("miss", "add", "argument 'x' has another dtype")


def test_observers_are_called_in_the_order_they_were_added() -> None:
    told: list[str] = []
    with observe(lambda _: told.append("first")), observe(lambda _: told.append("second")):
        emit(MISS)
    emit(MISS)
    assert told == ["first", "second"]


def test_an_observer_may_be_added_twice_and_removed_once() -> None:
    told: list[Event] = []
    with observe(told.append):
        with observe(told.append):
            emit(MISS)
        emit(MISS)
    assert told == [MISS] * 3


def test_an_observers_exception_propagates_and_its_block_removes_it() -> None:
    def fail(event: Event) -> None:
        raise RuntimeError(event.kernel)

    with pytest.raises(RuntimeError, match="add"), observe(fail):
        emit(MISS)
    assert not watched()
    emit(MISS)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("hit", logging.DEBUG),
        ("launch", logging.DEBUG),
        ("miss", logging.INFO),
        ("compile", logging.INFO),
        ("refusal", logging.DEBUG),
        ("fallback", logging.WARNING),
        ("cache", logging.WARNING),
    ],
)
def test_every_kind_is_logged_at_its_level(
    kind: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="tzero"):
        emit(Event(kind, "add", "because"))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tzero", level)
    prefix = "tzero: " if level == logging.WARNING else ""
    assert record.getMessage() == f"{prefix}add: {kind}: because"


def test_watched_is_true_with_an_observer_or_debug_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not watched()
    with observe(lambda _: None):
        assert watched()
    with caplog.at_level(logging.DEBUG, logger="tzero"):
        assert watched()


def test_an_event_is_immutable() -> None:
    with pytest.raises(AttributeError):
        MISS.kernel = "sub"  # type: ignore[misc]
    with pytest.raises(TypeError):
        MISS.facts["a"] = 1  # type: ignore[index]


def test_many_threads_add_and_remove_observers() -> None:
    missed: list[int] = []

    def observe_own_events(name: int) -> None:
        for _ in range(300):
            mine: list[Event] = []
            with observe(mine.append):
                emit(Event("hit", str(name)))
            if not any(event.kernel == str(name) for event in mine):
                missed.append(name)

    threads = [threading.Thread(target=observe_own_events, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed and not watched()


def test_hushed_suppresses_hits_and_no_other_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    early: list[Event] = []
    late: list[Event] = []
    with caplog.at_level(logging.DEBUG, logger="tzero"), observe(early.append):
        assert watched()
        with hushed():
            assert not watched()
            with observe(late.append), hushed():
                assert not watched()
                emit(Event("miss", "add"))
            assert not watched()
        assert watched()
        assert logging.getLogger("tzero").isEnabledFor(logging.DEBUG)
    assert not watched()
    assert [each.kind for each in early] == [each.kind for each in late] == ["miss"]


@pytest.mark.parametrize(
    ("kernel", "logged"),
    [
        ("add\nWARNING tzero: forged", r"add\nWARNING tzero: forged"),
        ("add\r\x1b[2Kgone", r"add\r\x1b[2Kgone"),
        ("\x9b31mred\x7f\x00", r"\x9b31mred\x7f\x00"),
        ("a\u2028b\u202ec\u2066d", r"a\u2028b\u202ec\u2066d"),
        ("a\u200fb\u061cc\u200bd\ufeff", r"a\u200fb\u061cc\u200bd\ufeff"),
        ("half \udc80", r"half \udc80"),
        ("größe→\\n", "größe→\\n"),
    ],
)
def test_a_name_cannot_forge_lines_of_the_log(
    kernel: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    with caplog.at_level(logging.DEBUG, logger="tzero"), observe(seen.append):
        emit(Event("compile", kernel, f"as {kernel}"))
    (record,) = caplog.records
    assert record.getMessage() == f"{logged}: compile: as {logged}"
    assert seen[0].kernel == kernel  # observers get the name as it is


def test_an_observer_without_calls_leaves_them_native_and_gets_the_rest() -> None:
    told: list[Event] = []
    with observe(told.append, calls=False):
        assert not watched()
        emit(Event("hit", "add"))
        emit(MISS)
        with observe(lambda _: None):
            assert watched()
            emit(Event("launch", "add"))
        assert not watched()
    emit(MISS)
    assert told == [MISS]
