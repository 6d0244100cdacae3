"""What a run of the benchmark prints and returns: failures, table, closing sentence, progress."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

import bench.rows
from bench import headline, interpreter, progress, record, table
from bench.__main__ import main
from bench.headline import HEADLINES, in_words
from bench.measure import Spread
from bench.record import Record, Result, Target
from bench.rows import ROWS
from bench.rows.row import Case, Row
from tests.unit.test_bench import FakeClock, example, make_row, result

__all__ = ["example"]  # a fixture


# -- what a run prints and returns -----------------------------------------------------------------


def adding(row_id: str, fail: BaseException | None = None, needs: str | None = None) -> Row:
    """A row that takes no time to speak of, or fails while it is made."""

    def make() -> Case:
        if fail is not None:
            raise fail
        return Case(
            {"triton": lambda: sum(range(90)), "torch": lambda: sum(range(99))}, lambda: None
        )

    return Row(row_id, f"Title of {row_id}", make, unit="us", interpreted=False, needs=needs)


def use(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    monkeypatch.setattr(bench.rows, "ROWS", rows)


MISSING = ModuleNotFoundError("No module named 'packaging'")


def test_a_row_that_fails_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    use(monkeypatch, adding("cpu.first"), adding("cpu.broken", fail=MISSING), adding("cpu.last"))
    file = tmp_path / "record.json"
    assert main(["--all", "--quick", "--json", str(file)]) == 1
    shown, told = capsys.readouterr()
    assert re.search(r"Title of cpu.first +\d", shown)
    assert re.search(r"Title of cpu.broken +failed", shown)
    assert re.search(r"Title of cpu.last +\d", shown)
    assert "cpu.broken: failed: ModuleNotFoundError: No module named 'packaging'" in shown
    assert "1 of 3 rows failed: cpu.broken" in told
    rows = record.read(file).rows
    assert [(row.id, row.failed, row.verdict) for row in rows] == [
        ("cpu.first", False, ""),
        ("cpu.broken", True, "failed"),
        ("cpu.last", False, ""),
    ]


def test_wrong_results_are_a_failure_of_their_row_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> None:
        raise AssertionError("7 is not 8")

    case = Case({"triton": lambda: 7, "torch": lambda: 8}, wrong)
    use(monkeypatch, make_row("cpu.wrong", case), adding("cpu.right"))
    assert main(["--only", "cpu.*", "--quick", "--traceback"]) == 1
    shown, told = capsys.readouterr()
    assert "AssertionError: 7 is not 8" in shown
    assert 'raise AssertionError("7 is not 8")' in told
    assert re.search(r"Title of cpu.right +\d", shown)


def test_the_exit_status_is_zero_if_every_row_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    use(monkeypatch, adding("cpu.first"), adding("cpu.other", needs="no_such_package"))
    file = tmp_path / "record.md"
    assert main(["--all", "--quick", "--markdown", str(file)]) == 0
    assert "cpu.other: left out, no_such_package is not installed" in capsys.readouterr().err
    assert "| cpu.first | triton " in file.read_text(encoding="utf-8")


def test_an_interrupted_run_shows_the_rows_that_are_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, adding("cpu.first"), adding("cpu.stopped", fail=KeyboardInterrupt()))
    assert main(["--all", "--quick"]) == 130
    shown, told = capsys.readouterr()
    assert re.search(r"Title of cpu.first +\d", shown)
    assert "Interrupted after 1 of 2 rows" in told


def test_by_default_the_headline_rows_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, adding("cpu.add.4M.f32"), adding("cpu.softmax.1024x4096.f32"))
    assert main(["--quick"]) == 0
    shown, told = capsys.readouterr()
    assert "cpu.softmax" in shown and "cpu.add" not in shown
    assert re.search(r"In short: kernels on the CPU take \d\.\d of torch's time\.", shown)
    assert re.search(r"\[1/1\] cpu\.softmax\S+ \(about \d+ s left\)", told)


def test_a_run_on_cuda_without_a_gpu_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="torch finds no GPU"):
        main(["--cuda"])


def test_an_interpreter_that_ends_early_is_reported_for_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    found = dict(interpreter.seconds_of(["cpu.first", "cpu.last"], 1))
    assert found == dict.fromkeys(
        ["cpu.first", "cpu.last"], "its process ended early, with status 1"
    )


# -- the table -------------------------------------------------------------------------------------


def widest(row: Row) -> Result:
    """A result of a row, with every value as long as it may be."""
    others = ("torch", "torch.compile", "triton", "helion", "python", "floor", "interpreter")
    names = dict.fromkeys([row.subject, row.baseline, row.floor, *others])
    size = 136_593_408.0 if row.unit == "bytes" else 1.23456e-4
    value = Spread(size, size, size, 21)
    ratios = {row.subject: Spread(0.0123, 0.0023, 0.0223, 21)} if row.baseline else {}
    return Result(
        row.id, row.title, row.subject, row.baseline, row.floor, row.unit, row.target,
        {name: dataclasses.replace(value, median=size * (1 + k)) for k, name in
         enumerate(reversed([name for name in names if name is not None]))},
        ratios,
    )  # fmt: skip


def whole(example: Record) -> Record:
    failed = result("failed.row", 1.0, Target("ratio", 2.0), values={}, notes=("why " * 60,))
    return dataclasses.replace(example, rows=(*map(widest, ROWS), failed))


def printed(record: Record, **how: bool) -> list[str]:
    file = io.StringIO()
    table.show(record, file=file, **how)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_the_table_is_whole_at_80_columns(
    example: Record, monkeypatch: pytest.MonkeyPatch, columns: str, terminal: bool, short: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    record = whole(example)
    lines = printed(record, short=short)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "…" not in text
    first_column = "".join(line[:35].strip() for line in lines).replace(" ", "")
    for row in record.rows:
        assert row.title.replace(" ", "") in first_column
        assert row.id in first_column
        if row.target is not None:
            assert f"{row.id}{table.target(row)}:{row.verdict}".replace(" ", "") in first_column


def test_a_row_shows_its_value_the_others_and_the_ratios_to_them() -> None:
    made = result("a.row", 1.25, None, values={
        "triton": Spread(0.0025, 0.002, 0.003, 5),
        "torch": Spread(0.002, 0.002, 0.002, 5),
        "plain": Spread(2.0, 2.0, 2.0, 5),
        "helion": Spread(0.0001, 0.0001, 0.0001, 5),
    })  # fmt: skip
    assert table.columns(made, short=False) == (
        ["2.50 ms"],
        ["torch", "tzero tier 0", "Helion"],
        ["2.00 ms", "2.00 s", "100 µs"],
        ["1.25 ±8%", "0.0013", "25.0"],
    )
    assert table.columns(made, short=True)[1] == ["torch", "Helion"]


def test_a_busy_machine_is_pointed_out(example: Record) -> None:
    assert not any("busy" in line for line in printed(example))
    machine = {**example.machine, "load_at_start": 2.5}
    lines = printed(dataclasses.replace(example, machine=machine))
    assert "The machine was busy (load 2.5 on 2 cores); measure again when it is idle." in lines


def test_a_floor_is_subtracted_from_what_is_shown() -> None:
    made = result("a.row", 0.1, None, baseline="torch", floor="floor", unit="us", values={
        "triton": Spread(1.5e-6, 1.5e-6, 1.5e-6, 5),
        "torch": Spread(6e-6, 6e-6, 6e-6, 5),
        "floor": Spread(1e-6, 1e-6, 1e-6, 5),
    })  # fmt: skip
    assert table.columns(made, short=True) == (
        ["500 ns"],
        ["torch", "bare launch"],
        ["5.00 µs", "1.00 µs"],
        ["0.10 ±100%", "subtracted"],
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *((1.404e-6, "us", "1.40 µs"), (9.999e-5, "us", "100 µs"), (62.2e-9, "us", "62.2 ns")),
        *((5.223, "ms", "5.22 s"), (0.0928, "ms", "92.8 ms"), (0.0, "ms", "0.00 ns")),
        *((136_593_408, "bytes", "137 MB"), (1522, "bytes", "1.52 kB"), (12, "bytes", "12.0 B")),
    ],
)
def test_amounts_have_three_digits_and_the_unit_that_suits_them(
    value: float, unit: str, text: str
) -> None:
    assert table.amount(value, unit) == text


# -- the closing sentence --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        *((0.79, "0.8 of X"), (0.111, "a ninth of X"), (0.09, "an eleventh of X")),
        *((0.124, "an eighth of X"), (0.25, "a quarter of X"), (0.5, "half of X")),
        *((0.05, "a twentieth of X"), (0.025, "1/40 of X"), (0.4, "0.4 of X")),
        *((1.0, "as much as X"), (1.53, "1.5 times X"), (12.3, "12 times X")),
        *((0.0, "less than a thousandth of X"), (-0.1, "less than a thousandth of X")),
    ],
)
def test_a_ratio_in_words(ratio: float, words: str) -> None:
    assert headline.beside(ratio, "X") == words


def timed(row_id: str, **seconds: float) -> Result:
    values = {name: Spread(time, time, time, 5) for name, time in seconds.items()}
    subject, baseline = list(values)[:2]
    ratio = seconds[subject] / seconds[baseline]
    return result(
        row_id,
        *(1.0, None),
        subject=subject,
        baseline=baseline,
        values=values,
        ratios={subject: Spread(ratio, ratio, ratio, 5)},
    )


CALL = timed("plan.torch.2", native=1.6, torch=2.0, triton=14.4)
HELION = timed("helion.2", tzero=2.0, helion=24.0)
KERNELS: Sequence[Result] = (
    timed("cpu.softmax.1024x4096.f32", triton=1.0, torch=1.6),
    timed("cpu.matmul.512.f32", triton=1.5, torch=1.0),
)


def test_the_closing_sentence_says_what_was_measured() -> None:
    assert in_words([CALL]) == "In short: a call costs 0.8 of torch.add and a ninth of Triton's."
    assert in_words([*KERNELS, HELION, CALL]) == (
        "In short: a call costs 0.8 of torch.add and a ninth of Triton's, a Helion kernel's call a "
        "twelfth of Helion's own, and kernels on the CPU take 0.6 to 1.5 of torch's time."
    )
    gpu = timed("cuda.plan.2", native=7.0, floor=4.0, torch=10.0, triton=28.0)
    assert in_words([gpu]) == (
        "In short: a call on the GPU costs 0.7 of torch.add and a quarter of Triton's."
    )


def test_the_closing_sentence_leaves_out_what_failed_or_was_not_measured() -> None:
    failed = dataclasses.replace(HELION, values={}, ratios={})
    assert in_words([failed, CALL]) == in_words([CALL])
    assert in_words([failed]) is None
    assert in_words([timed("choose.hit", tzero=1.0, dict=2.0)]) is None


def test_the_closing_sentence_speaks_of_headline_rows() -> None:
    ids = {row_id for each in HEADLINES.values() for row_id in each}
    assert {clause.row for clause in headline._CLAUSES} <= ids


# -- progress --------------------------------------------------------------------------------------


def test_the_time_left_follows_the_pace_so_far() -> None:
    assert progress.time_left(0, 60, 0) == 60
    assert progress.time_left(30, 60, 30) == 60
    assert progress.time_left(30, 60, 70) == 120
    assert progress.time_left(90, 0, 70) == 0


def test_without_a_terminal_each_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    rows = [dataclasses.replace(adding(name), seconds=40.0) for name in ("a", "b", "c")]
    watcher = progress.Watcher(rows, quick=False, clock=clock)
    watcher.begin(rows[0])
    clock.now = 90.0
    watcher.begin(rows[1])
    watcher.skip(rows[2], "left out")
    assert capsys.readouterr().err.splitlines() == [
        "[1/3] a (about 2 min left)",
        "[2/3] b (about 3 min left)",
        "[3/3] c: left out",
    ]


def test_on_a_terminal_a_bar_shows_the_row_and_the_time_left() -> None:
    rows = [row for row in ROWS if row.id in HEADLINES["cpu"]]
    file = io.StringIO()
    bar = progress._Bar(rows, False, 0.0, Console(file=file, force_terminal=True, width=80))
    for row in rows:
        bar.begin(row)
        bar.tick(0.5)
    bar.say("a line above the bar")
    bar.stop()
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "a line above the bar" in drawn
    for number, row in enumerate(rows, 1):
        assert re.search(rf"\[{number}/8\].* left, {re.escape(row.id[:30])}", drawn)
    assert max(len(line) for line in re.split(r"[\r\n]", drawn)) <= 80
