"""`python -m bench`: measure, show a table, and write a record if asked.

python -m bench                      every row
python -m bench --only 'cpu.*'       the rows whose id matches
python -m bench --quick              fewer rounds, for a first look
python -m bench --json record.json   also write the record
python -m bench --cuda               the rows about CUDA instead of those about the CPU
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import interpreter, record, table
from bench.measure import Call, Comparison, Effort, compare, spread
from bench.record import Record, Result
from bench.rows.row import Row

THREADS = 2
FULL = Effort(rounds=21, sample_seconds=0.02)
QUICK = Effort(rounds=5, sample_seconds=0.005)


def say(text: str) -> None:
    """Progress goes where the table does not."""
    print(text, file=sys.stderr, flush=True)


def chosen(rows: Sequence[Row], pattern: str | None) -> list[Row]:
    """The rows whose id matches a shell pattern, or contains it."""
    if pattern is None:
        return list(rows)
    found = [row for row in rows if fnmatch.fnmatch(row.id, pattern) or pattern in row.id]
    if not found:
        raise SystemExit(f"no row matches {pattern!r}; there are: {', '.join(r.id for r in rows)}")
    return found


def measure(row: Row, effort: Effort) -> Result:
    """One row, its correctness first."""
    import torch

    torch.set_num_threads(row.threads)
    case = row.make()
    case.check()
    for call in case.contenders.values() if case.calls is None else ():
        call()
    if case.rounds is not None:
        effort = dataclasses.replace(effort, rounds=min(effort.rounds, case.rounds))
    if row.unit == "bytes":
        found = gauge(case.contenders, effort.rounds)
    else:
        found = compare(
            case.contenders,
            baseline=row.baseline,
            floor=row.floor,
            effort=effort,
            calls=case.calls,
            settle=case.settle,
        )
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
    )


def gauge(contenders: Mapping[str, Call], rounds: int) -> Comparison:
    """What contenders say of themselves, in turns."""
    said = [{name: float(str(call())) for name, call in contenders.items()} for _ in range(rounds)]
    return Comparison({name: spread([each[name] for each in said]) for name in contenders}, {})


def with_interpreter(results: list[Result], rows: Sequence[Row]) -> list[Result]:
    """The results, with the interpreter's times or the reason why it has none."""
    ids = [row.id for row in rows if row.interpreted]
    by_id = {result.id: result for result in results}
    for row_id, answer in interpreter.seconds_of(ids, THREADS) if ids else ():
        say(f"interpreter: {row_id}")
        result = by_id[row_id]
        if isinstance(answer, str):
            notes = (*result.notes, f"Triton's interpreter fails: {answer}")
            by_id[row_id] = dataclasses.replace(result, notes=notes)
        else:
            values = {**result.values, "interpreter": spread(answer)}
            by_id[row_id] = dataclasses.replace(result, values=values)
    return list(by_id.values())


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", metavar="PATTERN", help="rows whose id matches, such as 'cpu.*'")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the record there")
    parser.add_argument("--cuda", action="store_true", help="the rows about CUDA")
    parser.add_argument("--list", action="store_true", help="say which rows there are")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    given = options(arguments)
    if not given.cuda:
        # Before Triton is imported: these rows are about the CPU, also where there is a GPU.
        os.environ.setdefault("TZERO_CPU", "1")
    import torch

    from bench.rows import ROWS
    from tzero.cpu import toolchain

    device = "cuda" if given.cuda else "cpu"
    rows = chosen([row for row in ROWS if row.device == device], given.only)
    if given.list:
        print("\n".join(f"{row.id:40} {row.title}" for row in rows))
        return
    torch.manual_seed(0)
    machine = record.machine(device)
    results = []
    for number, row in enumerate(rows, 1):
        if row.needs is not None and importlib.util.find_spec(row.needs) is None:
            say(f"[{number}/{len(rows)}] {row.id}: left out, {row.needs} is not installed")
            continue
        say(f"[{number}/{len(rows)}] {row.id}")
        results.append(measure(row, QUICK if given.quick else FULL))
    measured = {result.id for result in results}
    results = with_interpreter(results, [row for row in rows if row.id in measured])
    finished = Record(
        when=record.now(),
        machine=machine,
        versions=record.versions(toolchain.find().version),
        threads=THREADS,
        quick=given.quick,
        rows=tuple(results),
    )
    table.show(finished)
    if given.json is not None:
        record.write(finished, given.json)
        say(f"record written to {given.json}")


if __name__ == "__main__":
    main(sys.argv[1:])
