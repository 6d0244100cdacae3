"""Judges cases, times them, and prints the table.

    python -m tests.corpus                       all cases
    python -m tests.corpus fla/chunk liger/rope  those whose id contains one of these
    python -m tests.corpus --json                JSON in place of tables
    python -m tests.corpus --write               also update status.json and docs/corpus.md

Exits with 1 if a case is wrong.
"""

from __future__ import annotations

import os
from pathlib import Path

# Before the first import of Triton.
os.environ.setdefault("TZERO_CPU", "1")
os.environ.setdefault("TZERO_CACHE_DIR", str(Path(__file__).parents[2] / "build" / "test-cache"))

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.record import machine
from tests.corpus import table
from tests.corpus.case import Case
from tests.corpus.cases import CASES, missing
from tests.corpus.judge import Wrong, judge
from tests.corpus.record import FILE, Entry, Record, read, versions, write
from tests.corpus.speed import speed


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    given = options(arguments)
    chosen = [
        case
        for case in CASES.values()
        if not given.parts or any(part in case.id for part in given.parts)
    ]
    absent = sorted({missing(case) for case in chosen} - {""})
    if absent:
        print(*absent, sep="\n", file=sys.stderr)
        return 2
    record = Record(versions(), machine()["cpu"], judged(chosen, timed=not given.untimed))
    if given.write:
        store(record)
        table.main([])
    if given.json:
        print(json.dumps(asdict(record), indent=1))
    else:
        show(record)
    return int(any(entry.status == "wrong" for entry in record.entries.values()))


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the ids of cases; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="update status.json and the page")
    parser.add_argument("--untimed", action="store_true", help="judge without timing")
    return parser.parse_args(arguments)


def store(record: Record) -> None:
    """Update status.json; what was not judged or not measured now stays."""
    old = read().entries if FILE.exists() else {}
    entries = {name: entry for name, entry in old.items() if name in CASES}
    for name, entry in record.entries.items():
        if name in old and entry.speed is None and entry.status not in ("raises", "skipped"):
            entry = replace(entry, speed=old[name].speed)
        entries[name] = entry
    write(Record(record.versions, record.machine, entries))


def judged(cases: Sequence[Case], timed: bool) -> dict[str, Entry]:
    """An entry for each case."""
    entries = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for case in progress.track(cases):
            entries[case.id] = entry_of(case, timed)
    return entries


def entry_of(case: Case, timed: bool) -> Entry:
    """Judge and time a case."""
    try:
        verdict = judge(case)
    except Wrong as error:
        return Entry("wrong", str(error), None)
    runs = verdict.status not in ("raises", "skipped")
    ratio = round(speed(case), 2) if timed and runs else None
    return Entry(verdict.status, verdict.reason, ratio)


def show(record: Record) -> None:
    """Print the tables."""
    console = Console(width=None if sys.stdout.isatty() else 220)
    head, *rows = table.projects(record)
    shown = Table(*head, title="plain time / time with tzero")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    for status in ("fallback", "python", "raises", "skipped", "wrong"):
        found = table.reasons(record, status)
        if found:
            why = Table("cases", status, "such as")
            for count, reason, names in found:
                why.add_row(str(count), reason, ", ".join(names[:4]))
            console.print(why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
