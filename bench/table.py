"""A record as a table: with rich on a terminal, in Markdown elsewhere.

Enters: a record. Leaves: text. It must not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import Spread
from bench.record import Record, Result

__all__ = ["markdown", "show"]

COLUMNS = ("id", "measured", "against", "ratio (quartiles)", "target", "", "beside them")
_UNITS = {"ms": 1e3, "us": 1e6, "bytes": 1.0}


def cells(row: Result) -> tuple[str, ...]:
    """What the columns say of one row."""
    ratio = row.ratios.get(row.subject)
    return (
        row.id,
        _value(row, row.subject),
        "" if row.baseline is None else _value(row, row.baseline),
        "" if ratio is None else _with_quartiles(ratio),
        _target(row),
        row.verdict,
        _others(row),
    )


def _value(row: Result, contender: str) -> str:
    scaled = row.values[contender].scaled(_UNITS[row.unit])
    return f"{contender} {_number(scaled.median)} {row.unit.replace('us', 'µs')}"


def _with_quartiles(value: Spread) -> str:
    return f"{value.median:.2f} ({value.q1:.2f}–{value.q3:.2f})"


def _target(row: Result) -> str:
    if row.target is None:
        return ""
    if row.target.of == "ratio":
        return f"≤ {row.target.at_most:g}"
    return f"≤ {row.target.at_most * _UNITS[row.unit]:g} {row.unit}"


def _others(row: Result) -> str:
    """The contenders that are neither measured nor compared with. Of the interpreter only the order
    of magnitude is of interest."""
    said = []
    for name, value in row.values.items():
        if name == "interpreter":
            said.append(f"interpreter {value.median / row.values[row.subject].median:.0f}×")
        elif name not in (row.subject, row.baseline):
            said.append(_value(row, name))
    return ", ".join([*said, *(["interpreter fails"] if row.notes else [])])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def heading(record: Record) -> list[str]:
    """Where and with what it was measured."""
    machine = record.machine
    cores = f"{machine['cores']} cores, {record.threads} threads"
    return [
        *([machine["gpu"]] if "gpu" in machine else []),
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
