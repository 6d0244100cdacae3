"""Measuring rows one after the other: a row that fails is reported, and the others still run.

Enters: rows, how long to measure, and a watcher that is told about progress. Leaves: one result per
row, failed ones included. It must not know how results are shown or stored.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import interpreter
from bench.measure import Call, Comparison, Effort, Tick, compare, spread
from bench.progress import Watcher
from bench.record import Result

if TYPE_CHECKING:  # importing a row imports torch and Triton
    from bench.rows.row import Row

__all__ = ["FULL", "INTERPRETER_SECONDS", "QUICK", "THREADS", "Run", "measure", "run"]

THREADS = 2
FULL = Effort(rounds=21, sample_seconds=0.02)
QUICK = Effort(rounds=5, sample_seconds=0.005)
INTERPRETER_SECONDS = 10.0
"""Roughly how long the interpreter takes for a row."""


@dataclass(frozen=True, slots=True)
class Run:
    """The results, in the order of the rows, and whether Ctrl-C ended the run early."""

    results: tuple[Result, ...]
    interrupted: bool


def run(
    rows: Sequence[Row],
    effort: Effort,
    watcher: Watcher,
    *,
    interpret: bool,
    tracebacks: bool = False,
) -> Run:
    """Measure the rows; with `interpret`, then run those that can in Triton's interpreter."""
    results: list[Result] = []
    try:
        for row in rows:
            if row.needs is not None and importlib.util.find_spec(row.needs) is None:
                watcher.skip(row, f"left out, {row.needs} is not installed")
                continue
            watcher.begin(row)
            results.append(_measured(row, effort, watcher, tracebacks))
        if interpret:
            results = with_interpreter(results, rows, watcher)
    except KeyboardInterrupt:
        return Run(tuple(results), interrupted=True)
    return Run(tuple(results), interrupted=False)


def _measured(row: Row, effort: Effort, watcher: Watcher, tracebacks: bool) -> Result:
    """A row's result, or a failed result with the reason."""
    try:
        return measure(row, effort, watcher.tick)
    except Exception as error:  # whatever it is, the other rows still run
        reason = f"{type(error).__name__}: {error}".strip()
        watcher.say(f"{row.id} failed: {reason}")
        if tracebacks:
            watcher.say("".join(traceback.format_exception(error)))
        return result_of(row, Comparison({}, {}), notes=(f"failed: {reason}",))


def measure(row: Row, effort: Effort, tick: Tick = lambda share: None) -> Result:
    """Measure one row; its results are checked first."""
    import torch

    torch.set_num_threads(row.threads)
    case = row.make()
    case.check()
    for call in case.contenders.values() if case.calls is None else ():
        call()
    if case.rounds is not None:
        effort = dataclasses.replace(effort, rounds=min(effort.rounds, case.rounds))
    if row.unit == "bytes":
        return result_of(row, gauge(case.contenders, effort.rounds))
    found = compare(
        case.contenders,
        baseline=row.baseline,
        floor=row.floor,
        effort=effort,
        calls=case.calls,
        settle=case.settle,
        tick=tick,
    )
    return result_of(row, found)


def result_of(row: Row, found: Comparison, notes: tuple[str, ...] = ()) -> Result:
    return Result(
        id=row.id,
        title=row.title,
        subject=row.subject,
        baseline=row.baseline,
        floor=row.floor,
        unit=row.unit,
        target=row.target,
        values=found.seconds,
        ratios=found.ratios,
        notes=notes,
    )


def gauge(contenders: Mapping[str, Call], rounds: int) -> Comparison:
    """The numbers that the contenders return, instead of their times."""
    found = [{name: float(str(call())) for name, call in contenders.items()} for _ in range(rounds)]
    return Comparison({name: spread([each[name] for each in found]) for name in contenders}, {})


def with_interpreter(
    results: Sequence[Result], rows: Sequence[Row], watcher: Watcher
) -> list[Result]:
    """The results, with the interpreter's times or the reason why it has none."""
    by_id = {result.id: result for result in results}
    ids = [row.id for row in rows if row.interpreted and row.id in by_id]
    ids = [row_id for row_id in ids if not by_id[row_id].failed]
    for row_id, answer in interpreter.seconds_of(ids, THREADS) if ids else ():
        watcher.say(f"interpreter: {row_id}")
        result = by_id[row_id]
        if isinstance(answer, str):
            notes = (*result.notes, f"Triton's interpreter fails: {answer}")
            by_id[row_id] = dataclasses.replace(result, notes=notes)
        else:
            values = {**result.values, "interpreter": spread(answer)}
            by_id[row_id] = dataclasses.replace(result, values=values)
    return list(by_id.values())
