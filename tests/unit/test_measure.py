"""A recording has every stage of every call; without one, no span is made."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

import tzero
from tzero import measure

X = torch.zeros(2)


@tzero.kernel
def same(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.fixture(autouse=True)
def fresh() -> None:
    same.reset()


def test_every_call_is_counted_also_hits() -> None:
    same(X)
    with measure.recording() as record:
        for _ in range(3):
            same(X)
        same(X.half())
    same(X)
    for stage in ("call", "key", "bind", "run"):
        assert record.count(stage, "same") == 4


def test_a_call_that_raises_is_counted_and_raises() -> None:
    @tzero.kernel
    def fails(x: torch.Tensor) -> None:
        raise ValueError("no")

    with measure.recording() as record, pytest.raises(ValueError, match="no"):
        fails(X)
    assert record.count("run", "fails") == record.count("call", "fails") == 1


def test_only_the_innermost_recording_records() -> None:
    with measure.recording() as outer:
        with measure.recording() as inner:
            same(X)
        same(X)
    assert (outer.count("call", "same"), inner.count("call", "same")) == (1, 1)
    assert measure.active() is None


def test_stages_lie_within_their_call_on_their_thread() -> None:
    meeting = threading.Barrier(4, timeout=30)

    @tzero.kernel
    def meet(x: torch.Tensor) -> None:
        meeting.wait()  # all four run at once, so no thread id is reused

    with measure.recording() as record:
        threads = [threading.Thread(target=meet, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = {span.thread: span for span in record.spans if span.stage == "call"}
    assert len(record.spans) == 16
    for span in record.spans:
        around = calls[span.thread]
        assert around.start <= span.start <= span.end <= around.end


def test_the_table_has_a_line_for_every_stage() -> None:
    with measure.recording() as record:
        same(X)
        same(X)
    lines = str(record).splitlines()
    assert lines[0].split() == ["kernel", "stage", "times", "total", "µs", "median", "µs"]
    assert sorted(line.split()[1] for line in lines[1:]) == ["bind", "call", "key", "run"]
    assert all(line.split()[2] == "2" for line in lines[1:])


def test_the_trace_has_the_format_that_perfetto_reads(tmp_path: Path) -> None:
    with measure.recording() as record:
        same(X)
    record.write_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert len(trace["traceEvents"]) == 4
    for event in trace["traceEvents"]:
        assert event["ph"] == "X" and event["dur"] >= 0 and event["ts"] > 0
        assert {"name", "cat", "pid", "tid"} <= set(event)


def test_without_a_recording_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*facts: object) -> None:
        raise AssertionError("a span was made")

    monkeypatch.setattr(measure, "Span", made)
    same(X)
    same(X)


def test_overlapping_recordings_end_with_their_own_blocks() -> None:
    first, second = measure.recording(), measure.recording()
    one, two = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert measure.active() is two
    same(X)
    second.__exit__(None, None, None)
    assert measure.active() is None
    assert (one.count("call", "same"), two.count("call", "same")) == (0, 1)


def test_recordings_of_many_threads_leave_none_open() -> None:
    def work() -> None:
        for _ in range(200):
            with measure.recording():
                same(X)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measure.active() is None


def test_a_bind_is_counted_as_one() -> None:
    with measure.recording() as record:
        same.bind(X)
        same.bind(X)
    assert record.count("bind", "same") == 2 and record.count("call", "same") == 0
