"""Events reach every observer and the log, and cost nothing when nobody watches."""

from __future__ import annotations

import logging
import threading

import pytest

from tzero.events import Event, emit, hushed, observe, watched

MISS = Event("miss", "add", "argument 'x' has another dtype")


def test_observers_are_told_in_the_order_they_came() -> None:
    told: list[str] = []
    with observe(lambda _: told.append("first")), observe(lambda _: told.append("second")):
        emit(MISS)
    emit(MISS)
    assert told == ["first", "second"]


def test_one_observer_may_watch_twice_and_leave_once() -> None:
    told: list[Event] = []
    with observe(told.append):
        with observe(told.append):
            emit(MISS)
        emit(MISS)
    assert told == [MISS] * 3


def test_an_observer_that_fails_is_noticed_and_leaves_with_its_block() -> None:
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
        ("refusal", logging.WARNING),
    ],
)
def test_the_log_has_every_kind_at_its_level(
    kind: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="tzero"):
        emit(Event(kind, "add", "because"))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tzero", level)
    assert record.getMessage() == f"add: {kind}: because"


def test_watched_says_whether_a_hit_would_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    assert not watched()
    with observe(lambda _: None):
        assert watched()
    with caplog.at_level(logging.DEBUG, logger="tzero"):
        assert watched()


def test_an_event_does_not_change() -> None:
    with pytest.raises(AttributeError):
        MISS.kernel = "sub"  # type: ignore[misc]
    with pytest.raises(TypeError):
        MISS.facts["a"] = 1  # type: ignore[index]


def test_observers_of_many_threads_come_and_go() -> None:
    missed: list[int] = []

    def come_and_go(name: int) -> None:
        for _ in range(300):
            mine: list[Event] = []
            with observe(mine.append):
                emit(Event("hit", str(name)))
            if not any(event.kernel == str(name) for event in mine):
                missed.append(name)

    threads = [threading.Thread(target=come_and_go, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed and not watched()


def test_while_hushed_nobody_is_told_of_hits_and_all_are_of_the_rest(
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
