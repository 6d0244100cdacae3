"""`TZERO_LOGS` prints the events that it names, once each, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tzero import logs, settings
from tzero.errors import InvalidSetting
from tzero.events import Event, emit, watched


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The logger, which has no other handlers and gets back what it had."""
    logger, root = logging.getLogger("tzero"), logging.getLogger()
    before = logger.level, list(logger.handlers), list(root.handlers)
    root.handlers[:] = []
    yield logger
    logger.setLevel(before[0])
    logger.handlers[:], root.handlers[:] = before[1], before[2]
    logs._handler = None


def told(capsys: pytest.CaptureFixture[str], text: str) -> list[str]:
    """What is printed of one event of each kind."""
    with settings.override(logs=settings.read({"TZERO_LOGS": text}).logs):
        logs.begin()
    for kind in logs.KINDS:
        emit(Event(kind, "add", "because"))  # type: ignore[arg-type]
    return capsys.readouterr().err.splitlines()


def test_only_the_kinds_that_are_named_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["tzero: add: miss: because", "tzero: add: compile: because"]
    assert told(capsys, "compile, miss") == lines


def test_warnings_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "fallback") == ["tzero: add: fallback: because"]


def test_all_kinds_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(told(capsys, "all")) == len(logs.KINDS) == 9


def test_calls_are_not_watched_unless_hits_or_launches_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(capsys, "fallback,compile,tune,cache,miss")
    assert not watched()


def test_a_program_that_logs_gets_the_events_too(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    assert told(capsys, "fallback") == ["tzero: add: fallback: because"]
    assert any("fallback" in record.getMessage() for record in caplog.records)


def test_nothing_changes_if_it_is_not_set(logger: logging.Logger) -> None:
    before = logger.level, list(logger.handlers)
    logs.begin()
    assert (logger.level, logger.handlers) == before


def test_an_unknown_kind_is_an_error_that_names_them_all() -> None:
    with pytest.raises(InvalidSetting, match="some of hit, miss, fallback"):
        settings.read({"TZERO_LOGS": "fallback,compilers"})


def test_kinds_may_be_in_the_plural() -> None:
    read = settings.read({"TZERO_LOGS": "fallbacks, compile,tune,misses,hits"})
    assert read.logs == ("fallback", "compile", "tune", "miss", "hit")


def test_a_digest_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.override(logs=("compile",)):
        logs.begin()
    digest = "0123456789abcdef" * 4
    emit(Event("compile", "add", f"{digest} was compiled in 0.3 s"))
    assert capsys.readouterr().err == "tzero: add: compile: 0123456789ab… was compiled in 0.3 s\n"
