"""Calls that native code makes are in the open record, with the stages that others have."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tzero import measure
from tzero.calls.native import NativeKernel

pytestmark = pytest.mark.skipif(
    bool(NativeKernel.unavailable), reason=f"native calls: {NativeKernel.unavailable}"
)

STAGES = ("key", "bind", "run", "call")
X = torch.ones(4)


@triton.jit(do_not_specialize=["n"])
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@tzero.kernel
def doubled(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, 4, BLOCK=64)
    return out


@tzero.kernel
def total(x):
    return float(doubled(x).sum())


@pytest.fixture(autouse=True)
def warm() -> None:
    for _ in range(3):
        doubled(X)
        total(X)


def counts(record: measure.Record) -> Counter[tuple[str, str]]:
    return Counter((span.kernel, span.stage) for span in record.spans)


def replays() -> int:
    found: int = doubled._made()[0]
    return found


def test_replays_and_fallbacks_stay_native_and_are_counted():
    before = replays()
    with measure.recording() as record:
        for _ in range(5):
            assert torch.equal(doubled(X), 2 * X)
        for _ in range(100):  # in the end looked up only now and then
            assert total(X) == 8.0
    assert replays() == before + 105
    assert counts(record) == Counter(
        {**{("doubled", s): 105 for s in STAGES}, **{("total", s): 100 for s in STAGES}}
    )
    assert record.dropped == 0


def test_stages_follow_each_other_within_their_call():
    with measure.recording() as record:
        total(X)
        doubled(X)
    stages: dict[tuple[str, str], list[measure.Span]] = {}
    for span in record.spans:
        stages.setdefault((span.kernel, span.stage), []).append(span)
    inner, alone = ({s: stages["doubled", s][k] for s in STAGES} for k in (0, 1))
    outer = {s: stages["total", s][0] for s in STAGES}
    for call in (inner, outer, alone):
        key, bind, run, whole = (call[stage] for stage in STAGES)
        assert whole.start == key.start <= key.end == bind.start <= bind.end == run.start
        assert run.end == whole.end and whole.thread == threading.get_ident()
    assert outer["run"].start <= inner["call"].start <= inner["call"].end <= outer["run"].end
    assert alone["call"].start >= outer["call"].end


def test_calls_that_python_makes_are_counted_once():
    with measure.recording() as record:
        doubled(X.double())  # recorded
        doubled(X.double())
    assert counts(record) == Counter({("doubled", stage): 2 for stage in STAGES})
    doubled.reset()


def test_a_call_is_in_the_record_that_was_open_when_it_began():
    records = [measure.Record()]

    @tzero.kernel
    def opens(x):
        with measure.recording() as record:
            records[0] = record
            doubled(x)
        return float(x.sum())

    for _ in range(3):
        opens(X)
    with measure.recording() as outer:
        opens(X)
        doubled(X)
    assert counts(records[0]) == Counter({("doubled", stage): 1 for stage in STAGES})
    assert outer.count("call", "opens") == outer.count("call", "doubled") == 1


def test_a_record_can_be_read_while_it_is_open_and_by_many_threads():
    found = []

    def work() -> None:
        for _ in range(200):
            doubled(X)
            found.append(len(record.spans))

    with measure.recording() as record:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert record.count("call", "doubled") == 800 and max(found) == 3200


def test_a_call_that_raises_is_counted():
    @tzero.kernel
    def fails(x):
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            fails(X)
    with measure.recording() as record, pytest.raises(ValueError, match="no"):
        fails(X)
    assert counts(record) == Counter({("fails", stage): 1 for stage in STAGES})


def test_what_finds_no_room_is_counted_and_told():
    with measure.recording() as record:
        for _ in range((1 << 20) + 3):
            doubled(X)
    assert record.dropped == 3


def test_a_trace_has_the_calls(tmp_path: Path):
    with measure.recording() as record:
        doubled(X)
    record.write_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted(event["name"] for event in trace) == sorted(STAGES)
    assert {event["cat"] for event in trace} == {"doubled"}
