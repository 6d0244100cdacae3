"""A record as text: a table of 80 columns for the terminal, a wide one in Markdown for documents.

Enters: a record. Leaves: text. It must not know how anything is measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import IO, Any

from bench.measure import Spread
from bench.record import Record, Result, above_floor, ratio_to

__all__ = ["markdown", "say", "show"]

WIDTH = 80


# -- for the terminal ------------------------------------------------------------------------------

NAMES: Mapping[str, str] = {
    "native": "tzero",
    "pooled": "tzero, pool",
    "python": "tzero tier 1",
    "plain": "tzero tier 0",
    "tzero, first": "with start-up",
    "triton": "Triton",
    "helion": "Helion",
    "floor": "bare launch",
    "function": "Triton's part",
    "imports": "torch, Triton",
    "graph": "CUDA graph",
    "inline": "no workers",
    "loop": "Python loop",
    "dict": "dict lookup",
    "one": "one entry",
    "hit": "whole call",
    "the function alone": "no tzero",
    "best": "best config",
    "tuned": "tuned config",
    "nearest": "nearest hint",
}
"""What the table calls contenders; others keep their names."""

_OTHERS = ("torch", "torch.compile", "triton", "helion", "graph", "tuned", "best")
"""The contenders that a short table shows besides the baseline."""

_LEGEND = (
    "A ratio is the first time divided by the other: below 1, tzero is faster. ± is half the "
    "distance between the quartiles, ≤ what the row aims at. A bare launch is one from a C loop."
)
_MORE = (
    " Tier 1 is tzero without native code; tier 0 is tzero with Triton's own launches. All figures "
    "are in the record that --json or --markdown writes."
)

_COLOURS = {"pass": "green", "miss": "yellow", "failed": "red"}


def show(record: Record, *, short: bool = False, file: IO[str] | None = None) -> None:
    """Print the table, 80 columns wide, or as wide as a terminal that is narrower."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # with HERE=1 nothing is installed
        print(markdown(record), file=file)
        return
    console = Console(file=file)
    console = Console(file=file, width=min(console.width, WIDTH) if console.is_terminal else WIDTH)
    for line in heading(record):
        console.print(line, markup=False, highlight=False, style="dim")
    console.print(_table(record.rows, short))
    for note in [*busy(record), *notes(record.rows)]:
        console.print(note, markup=False, highlight=False, style="yellow")
    console.print(f"\n{_LEGEND if short else _LEGEND + _MORE}", highlight=False, style="dim")


def _table(rows: Sequence[Result], short: bool) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    made.add_column("", overflow="fold")
    made.add_column("tzero" if short else "result", justify="right", no_wrap=True)
    made.add_column("compared with", no_wrap=True)
    made.add_column("", justify="right", no_wrap=True)
    made.add_column("ratio", no_wrap=True)
    for row in rows:
        about = Text(row.title, style="bold")
        about.append(f"\n{row.id}", style="not bold dim")
        if row.target is not None:
            about.append(f" {target(row)}: ", style="not bold dim")
            about.append(row.verdict, style=f"not bold {_COLOURS[row.verdict]}")
        made.add_row(about, *("\n".join(lines) for lines in columns(row, short)))
    return made


def columns(row: Result, short: bool) -> tuple[list[str], ...]:
    """The lines of a row: its value, the names and values of the others, and the ratios to them."""
    if row.failed:
        return (["failed"], [], [], [])
    others = [name for name in row.values if name not in (row.subject, row.baseline)]
    if short:
        others = [name for name in others if name in _OTHERS or name == row.floor]
    names = [*([row.baseline] if row.baseline is not None else []), *others]
    return (
        [amount(above_floor(row, row.subject), row.unit)],
        [NAMES.get(name, name) for name in names],
        [
            amount(
                row.values[name].median if name == row.floor else above_floor(row, name), row.unit
            )
            for name in names
        ],
        [_ratio(row, name) for name in names],
    )


def _ratio(row: Result, name: str) -> str:
    if name == row.floor:
        return "subtracted"
    if row.unit == "bytes":
        return ""
    value = ratio_to(row, name)
    digits = (
        _three_digits(value)
        if value >= 10
        else f"{value:.2f}"
        if value >= 0.095
        else f"{value:.2g}"
    )
    if name != row.baseline:
        return digits
    measured = row.ratios[row.subject]
    return f"{digits} ±{(measured.q3 - measured.q1) / 2 / abs(value):.0%}"


def amount(value: float, unit: str) -> str:
    """A value to three digits, in the unit that suits it: seconds, or bytes."""
    scaled, name = _scaled(value, unit)
    return f"{_three_digits(scaled)} {name}"


def _scaled(value: float, unit: str) -> tuple[float, str]:
    steps = (
        [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")]
        if unit == "bytes"
        else [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
    )
    factor, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return value / factor, name


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def target(row: Result) -> str:
    """The most that a row may take."""
    assert row.target is not None
    if row.target.of == "ratio":
        return f"≤ {row.target.at_most:.3g}"
    scaled, name = _scaled(row.target.at_most, row.unit)
    return f"≤ {scaled:.3g} {name}"


def say(text: str) -> None:
    """Print a sentence below the table, within its width."""
    print("\n" + textwrap.fill(text, WIDTH))


# -- for documents ---------------------------------------------------------------------------------

COLUMNS = ("id", "measured", "against", "ratio (quartiles)", "target", "", "also measured")
_UNITS = {"ms": 1e3, "us": 1e6, "bytes": 1.0}


def markdown(record: Record) -> str:
    """The wide table, as docs/benchmarks.md has it."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in record.rows]
    footnotes = [f"- {note}" for note in notes(record.rows)]
    return "\n".join([*heading(record), "", *lines, *([""] if footnotes else []), *footnotes])


def cells(row: Result) -> tuple[str, ...]:
    """A row's text in each column."""
    if row.failed:
        return (row.id, "", "", "", "" if row.target is None else target(row), row.verdict, "")
    ratio = row.ratios.get(row.subject)
    return (
        row.id,
        _value(row, row.subject),
        "" if row.baseline is None else _value(row, row.baseline),
        "" if ratio is None else _with_quartiles(ratio),
        "" if row.target is None else target(row),
        row.verdict,
        _beside(row),
    )


def _value(row: Result, contender: str) -> str:
    scaled = row.values[contender].scaled(_UNITS[row.unit])
    return f"{contender} {_number(scaled.median)} {row.unit.replace('us', 'µs')}"


def _with_quartiles(value: Spread) -> str:
    return f"{value.median:.2f} ({value.q1:.2f}–{value.q3:.2f})"


def _beside(row: Result) -> str:
    """The other contenders. For the interpreter only the order of magnitude is of interest."""
    said = []
    for name, value in row.values.items():
        if name == "interpreter":
            said.append(f"interpreter {value.median / row.values[row.subject].median:.0f}×")
        elif name not in (row.subject, row.baseline):
            said.append(_value(row, name))
    return ", ".join([*said, *(["interpreter fails"] if row.notes else [])])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# -- for both --------------------------------------------------------------------------------------


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


def busy(record: Record) -> list[str]:
    """A warning if other programs kept every core busy when the run started."""
    load, cores = record.machine["load_at_start"], record.machine["cores"]
    if load < cores:
        return []
    return [f"The machine was busy (load {load} on {cores} cores); measure again when it is idle."]


def notes(rows: Sequence[Result]) -> list[str]:
    return [f"{row.id}: {note}" for row in rows for note in row.notes]
