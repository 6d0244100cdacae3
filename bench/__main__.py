"""`python -m bench`: measure rows, print a table, and write a record if asked.

python -m bench                      the headline rows; about a minute
python -m bench --all                every row; about ten minutes
python -m bench --only 'cpu.*'       every row whose id matches
python -m bench --quick              fewer samples, for a first look
python -m bench --json record.json   also write the record
python -m bench --cuda               the rows for CUDA instead of those for the CPU

The exit status is 0 if every row was measured, 1 if a row failed, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import headline, progress, record, run, table
from bench.record import Record

INTERRUPTED = 130


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--all", action="store_true", help="every row, not only the headline rows")
    rows.add_argument("--only", metavar="PATTERN", help="rows whose id matches, such as 'cpu.*'")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the record as JSON")
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write the record as a wide Markdown table"
    )
    parser.add_argument("--cuda", action="store_true", help="the rows for CUDA")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument(
        "--traceback", action="store_true", help="print the traceback of a row that fails"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    given = options(arguments)
    if not given.cuda:
        # Set before Triton is imported, so that these rows run on the CPU on GPU machines too.
        os.environ.setdefault("TZERO_CPU", "1")
    import torch

    from bench.rows import ROWS

    device = "cuda" if given.cuda else "cpu"
    there = [row for row in ROWS if row.device == device]
    rows = headline.chosen(there, given.only, everything=given.all)
    if given.list:
        print("\n".join(f"{row.id:40} {row.title}" for row in rows))
        return 0
    if given.cuda and not torch.cuda.is_available():
        raise SystemExit("--cuda needs a GPU and a torch built for CUDA; torch finds no GPU here.")
    torch.manual_seed(0)
    machine, versions = record.machine(device), record.versions()
    short = not given.all and given.only is None
    interpreted = 0 if short else sum(row.interpreted for row in rows)
    after = interpreted * run.INTERPRETER_SECONDS
    with progress.shown(rows, quick=given.quick, after=after) as watcher:
        done = run.run(
            rows,
            run.QUICK if given.quick else run.FULL,
            watcher,
            interpret=not short,
            tracebacks=given.traceback,
        )
    finished = Record(record.now(), machine, versions, run.THREADS, given.quick, done.results)
    table.show(finished, short=short)
    if (closing := headline.in_words(finished.rows)) is not None:
        table.say(closing)
    if given.json is not None:
        record.write(finished, given.json)
        progress.say(f"record written to {given.json}")
    if given.markdown is not None:
        given.markdown.write_text(table.markdown(finished) + "\n", encoding="utf-8")
        progress.say(f"table written to {given.markdown}")
    return report(done, asked=len(rows))


def report(done: run.Run, asked: int) -> int:
    """Say what was not measured; the exit status."""
    failed = [result.id for result in done.results if result.failed]
    if done.interrupted:
        progress.say(f"Interrupted after {len(done.results)} of {asked} rows.")
        return INTERRUPTED
    if failed:
        progress.say(
            f"{len(failed)} of {asked} rows failed: {', '.join(failed)}. "
            "The reasons are below the table; --traceback shows where."
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
