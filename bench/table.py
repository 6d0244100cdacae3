"""A record as a table: with rich on a terminal, in Markdown elsewhere.

Enters: a record. Leaves: text. It must not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import Spread
from bench.record import Record, Result

__all__ = ["markdown", "show"]

COLUMNS = ("id", "triton", "torch", "ratio (quartiles)", "target", "", "interpreter")
_UNITS = {"ms": 1e3, "us": 1e6}


def cells(row: Result) -> tuple[str, ...]:
    """What the columns say of one row."""
    ratio = row.ratios.get(row.subject)
    return (
        row.id,
        _time(row, row.subject),
        _time(row, "torch"),
        "" if ratio is None else _with_quartiles(ratio),
        _target(row),
        row.verdict,
        _interpreter(row),
    )


def _time(row: Result, contender: str) -> str:
    found = row.seconds.get(contender)
    if found is None:
        return ""
    scaled = found.scaled(_UNITS[row.unit])
    return f"{_number(scaled.median)} {row.unit.replace('u', 'µ')}"


def _with_quartiles(value: Spread) -> str:
    return f"{value.median:.2f} ({value.q1:.2f}–{value.q3:.2f})"


def _target(row: Result) -> str:
    if row.target is None:
        return ""
    if row.target.of == "ratio":
        return f"≤ {row.target.at_most:g}"
    return f"≤ {row.target.at_most * _UNITS[row.unit]:g} {row.unit}"


def _interpreter(row: Result) -> str:
    found = row.seconds.get("interpreter")
    if found is None:
        return "fails" if row.notes else ""
    return f"{found.median / row.seconds[row.subject].median:.0f}×"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def heading(record: Record) -> list[str]:
    """Where and with what it was measured."""
    machine = record.machine
    cores = f"{machine['cores']} cores, {record.threads} threads"
    return [
        f"{machine['cpu']}, {cores}, {machine['system']}, load {machine['load_at_start']}",
        ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        f"{'quick, ' if record.quick else ''}{record.when}",
    ]


def notes(rows: Sequence[Result]) -> list[str]:
    return [f"{row.id}: {note}" for row in rows for note in row.notes]


def markdown(record: Record) -> str:
    """The table as Markdown, as docs/benchmarks.md has it."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in record.rows]
    footnotes = [f"- {note}" for note in notes(record.rows)]
    return "\n".join([*heading(record), "", *lines, *([""] if footnotes else []), *footnotes])


def show(record: Record) -> None:
    """Print the table for whoever is reading: a person at a terminal, or a file."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(markdown(record))
        return
    console = Console()
    if not console.is_terminal:
        print(markdown(record))
        return
    table = Table(title="\n".join(heading(record)), title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "id" else "right", no_wrap=True)
    colours = {"pass": "green", "miss": "red", "": None}
    for row in record.rows:
        *before, verdict, last = cells(row)
        colour = colours[verdict]
        table.add_row(*before, f"[{colour}]{verdict}[/]" if colour else verdict, last)
    console.print(table)
    for note in notes(record.rows):
        console.print(note, markup=False)
