"""The corpus notices what it is there to notice: wrong results, arguments, aliasing, statuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.corpus import judge as judging
from tests.corpus import table
from tests.corpus.case import CASES, Case, Draw, Given, given
from tests.corpus.cases import missing
from tests.corpus.judge import Verdict, Wrong, judge
from tests.corpus.record import Entry, Record, read, versions, write
from tests.corpus.same import aliases, difference
from tzero import settings


@triton.jit
def _double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=inside), mask=inside)


def doubled(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y


def doubled_unless_negative(x: torch.Tensor) -> torch.Tensor:
    y = doubled(x)
    return y if y.sum() > 0 else x


def copied(x: torch.Tensor) -> torch.Tensor:
    return doubled(x).mul_(0.5)


def never(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(f"no GPU for {x.numel()} values")


def of(function: Callable[..., Any]) -> Case:
    def make(draw: Draw, n: int) -> Given:
        return given(draw(n))

    return Case("tutorials", function.__name__, lambda: function, ((32,), (64,), (96,)), make, True)


def test_a_case_that_is_replayed_natively_is_native() -> None:
    assert judge(of(doubled)) == Verdict("native")


def test_a_fallback_has_the_reason_of_tzero() -> None:
    verdict = judge(of(doubled_unless_negative))
    assert verdict.status == "fallback"
    assert "reads the value of a tensor" in verdict.reason


def test_a_case_that_raises_plainly_is_skipped_with_the_error() -> None:
    assert judge(of(never)) == Verdict("skipped", "RuntimeError: no GPU for 32 values")


class Spoiled:
    """Makes calls of a kernel, and changes their results or arguments."""

    def __init__(self, kernel: Any, spoil: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        self.kernel, self.spoil = kernel, spoil

    def __call__(self, x: torch.Tensor) -> Any:
        return self.spoil(x, self.kernel(x))


def _last_bit(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.view(torch.int32)[0] ^= 1
    return y


def _argument(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.neg_()
    return y


SPOILED = {
    "result: 1 of": _last_bit,
    "arguments[0][0]: ": _argument,
    "result: sizes": lambda x, y: y[:4],
    "result: strides": lambda x, y: y.as_strided((y.numel(),), (0,)),
    "result has another structure": lambda x, y: (y,),
}


@pytest.mark.parametrize("message", SPOILED)
def test_a_spoiled_call_is_wrong(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = judging.tzero.kernel
    monkeypatch.setattr(judging.tzero, "kernel", lambda f: Spoiled(made(f), SPOILED[message]))
    with pytest.raises(Wrong) as caught:
        judge(of(doubled))
    assert message in str(caught.value)


def test_a_result_on_the_storage_of_an_argument_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judging.tzero.kernel
    monkeypatch.setattr(judging.tzero, "kernel", lambda f: Spoiled(made(f), lambda x, y: x[:]))
    with pytest.raises(Wrong, match="aliasing is"):
        judge(of(copied))


def test_an_error_of_tzero_alone_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(x: torch.Tensor, y: torch.Tensor) -> None:
        raise ValueError("it cannot")

    made = judging.tzero.kernel
    monkeypatch.setattr(judging.tzero, "kernel", lambda f: Spoiled(made(f), fail))
    assert judge(of(doubled)) == Verdict("raises", "ValueError: it cannot")


def test_an_error_in_verify_mode_alone_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def drift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if settings.current().verify:
            raise ValueError("the plan drifts")
        return y

    made = judging.tzero.kernel
    monkeypatch.setattr(judging.tzero, "kernel", lambda f: Spoiled(made(f), drift))
    monkeypatch.setattr(judging, "_observed", lambda *_: Verdict("native"))
    with pytest.raises(Wrong, match="in verify mode: ValueError: the plan drifts"):
        judge(of(doubled))


def test_a_result_that_a_later_call_writes_to_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, torch.Tensor] = {}

    def reuse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(x.numel(), y).copy_(y)

    made = judging.tzero.kernel
    monkeypatch.setattr(judging.tzero, "kernel", lambda f: Spoiled(made(f), reuse))
    monkeypatch.setattr(judging, "_observed", lambda *_: Verdict("native"))
    with pytest.raises(Wrong, match="after all calls"):
        judge(of(doubled))


def test_views_of_one_storage_are_aliases() -> None:
    x = torch.zeros(4)
    assert aliases((x, [x[1:], x], torch.zeros(4))) == [
        ("[0]", "[0]", "[0]"),
        ("[1][0]", "[1][0]", "[0]"),
        ("[1][1]", "[0]", "[0]"),
        ("[2]", "[2]", "[2]"),
    ]


def test_the_sign_of_zero_and_the_bits_of_nan_count() -> None:
    nan = torch.tensor([float("nan")])
    assert difference(nan, nan.clone(), "x") == ""
    assert "1 of 4 bytes" in difference(torch.tensor([0.0]), torch.tensor([-0.0]), "x")


# -- the record and the page -----------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = {"fla/b": Entry("native", "", 2.5), "fla/a": Entry("fallback", "it says 'x'", None)}
    record = Record(versions(), "a machine", entries)
    write(record, tmp_path / "status.json")
    assert read(tmp_path / "status.json") == record


def test_every_case_is_recorded_and_no_other() -> None:
    absent = {case.project for case in CASES.values() if missing(case)}
    if absent:
        pytest.skip(f"not installed here: {', '.join(sorted(absent))}")
    assert sorted(read().entries) == sorted(CASES)


def test_no_recorded_case_is_wrong() -> None:
    assert not [name for name, entry in read().entries.items() if entry.status == "wrong"]


def test_the_page_is_what_the_record_says() -> None:
    text = table.PAGE.read_text()
    assert table.page(text, read()) == text, "run `python -m tests.corpus.table`"


def test_the_table_counts_what_is_recorded() -> None:
    speeds = {"native": 4.0, "python": 1.0, "fallback": 0.5, "raises": None, "skipped": None}
    entries = {f"fla/{status}": Entry(status, "", speed) for status, speed in speeds.items()}
    _, fla, total = table.projects(Record({}, "", entries))
    assert fla[1:] == total[1:] == ["5", "3", "1", "1", "1", "1", "1", "1.26", "2.00", "1"]


def test_reasons_are_counted_without_names_and_places() -> None:
    reason = "it reads the global '{}', and tzero cannot see changes of a set, at fla/{}.py:{}"
    entries = {
        "fla/a": Entry("fallback", reason.format("x", "one", 1), None),
        "fla/b": Entry("fallback", reason.format("y", "two", 2), None),
        "fla/c": Entry("fallback", "it prints", None),
    }
    ((two, said, names), (one, _, _)) = table.reasons(Record({}, "", entries), "fallback")
    assert (two, one, names) == (2, 1, ["fla/a", "fla/b"])
    assert said == "it reads the global '...', and tzero cannot see changes of a set"
