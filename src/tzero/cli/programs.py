"""`tzero run`, `bench`, `trace` and `report`: a program is run, and something is said about it.

Enters: a program and its arguments; everything after the script belongs to it, options included.
Leaves: what the program prints, text or JSON about it, and an exit code: that of the program. It
must not do the work. torch is imported when a command runs: the others do not need it.
"""

from __future__ import annotations

import atexit
import json
import os
import statistics
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tzero import settings
from tzero.cache.bundle import MAGIC
from tzero.cli.printing import (
    AsJson,
    check_place,
    exit_on_errors,
    fail,
    listing,
    output_on_stderr,
    stdout_alone,
)

if TYPE_CHECKING:
    from tzero.api.bench import Measured
    from tzero.commands.record import Run

__all__ = ["OWN_ARGUMENTS", "bench", "report", "run", "show_bench", "trace"]

OWN_ARGUMENTS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""How typer leaves everything after the program to it."""

Program = Annotated[
    str, typer.Argument(metavar="TARGET", help="A Python program, or a module after -m.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGUMENTS", help="Its arguments. Options of tzero come before the program."
    ),
]
Watched = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A Python program, a module after -m, or the record of a run."
    ),
]
IsModule = Annotated[bool, typer.Option("-m", help="TARGET is a module's name.")]
INTERRUPTED = 130  # as shells report it


def bench(
    target: Program,
    arguments: Arguments = None,
    is_module: IsModule = False,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs of each kind to count.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program several times, without and with tzero; then say what it gains."""
    # Imported here: these commands alone need torch.
    from tzero.api import bench as measuring

    if not is_module:
        _check_program(target)
    program = measuring.Program(target, arguments or [], is_module)
    tell = _tell if sys.stderr.isatty() else _ignore
    try:
        found = measuring.measure(program, tell, output=2 if as_json else 1, runs=runs)
    except measuring.Failed as failed:
        tell("")
        print(failed.errors, end="", file=sys.stderr)
        fail(failed, failed.status)
    except KeyboardInterrupt:
        tell("")
        fail("interrupted; nothing is reported", INTERRUPTED)
    tell("")
    if as_json:
        print(json.dumps(found.facts()))
    else:
        show_bench(found)
    raise typer.Exit(0 if found.rows else 1)


def _tell(line: str) -> None:
    """Replace the line about progress, which stays if it ends with a newline."""
    print(f"\r\x1b[K{line and f'tzero: {line}'}", end="", file=sys.stderr, flush=True)


def _ignore(line: str) -> None:
    """Do nothing: stderr is no terminal."""


def show_bench(found: Measured) -> None:
    """Print what a program gains, as a table."""
    seconds = statistics.median(found.without)
    title = "µs a call, without and with tzero"
    table = listing(title=title)
    table.add_column("kernel", overflow="fold")
    for name in ("calls", "without", "with", "times", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for row in found.rows:
        numbers = ["" if n is None else f"{n:.1f}" for n in (row.before, row.after, row.times)]
        calls = "" if row.calls is None else f"{row.calls:,}"
        share = row.share(seconds)
        part = "" if share is None else f"{share:.0%}"
        table.add_row(Text(row.kernel), calls, *numbers, part, Text(row.how))
    wide = Console(highlight=False)
    if found.rows:
        wide.print(table)
    else:
        wide.print("The program launched no Triton kernel, and called no kernel of tzero.")
    wide.print(_whole(found))


def _whole(found: Measured) -> str:
    """What the program gains, and how that was measured."""

    def span(seconds: list[float]) -> str:
        return f"{_seconds(min(seconds))} to {_seconds(max(seconds))}"

    one, other = statistics.median(found.without), statistics.median(found.with_tzero)
    runs = len(found.without)
    each = "One run of each"
    if runs > 1:
        each = f"Medians of {runs} runs of each, alternating (without {span(found.without)}, with "
        each += f"{span(found.with_tzero)})"
    return (
        f"The whole program: {_seconds(one)} without tzero, {_seconds(other)} with it, "
        f"{found.times:.2f} times as fast.\n{_trials(found)}"
        f"{each}; the first run of each is not counted. The clock starts at the program's first "
        "line, after torch, Triton and tzero were imported. µs are what one call takes by itself, "
        "with the arguments of the first call. share is the part of the run without tzero that the "
        "calls of a kernel take: their number times their µs."
    )


MUCH = 0.02
"""The part of a run from which on the trials of autotuners are told."""


def _trials(found: Measured) -> str:
    """How much of the program is trials of autotuners, which tzero does not make shorter."""
    if not found.tuned_without or not found.tuned_with:
        return ""
    one, other = statistics.median(found.tuned_without), statistics.median(found.tuned_with)
    if one < MUCH * statistics.median(found.without):
        return ""
    words = (
        f"Of that, Triton's autotuners spent {_seconds(one)} and {_seconds(other)} on trials of "
    )
    words += "configs, which take a fixed time each"
    if found.times_besides is not None:
        words += f"; the rest is {found.times_besides:.2f} times as fast"
    return f"{words}. triton.autotune(..., cache_results=True) keeps what they find.\n"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def run(
    target: Program,
    arguments: Arguments = None,
    is_module: IsModule = False,
    as_json: AsJson = False,
) -> None:
    """Run a program whose Triton and Helion kernels tzero launches; then say how, on stderr."""
    from tzero.api.install import install, installed
    from tzero.calls import program

    if not is_module:
        _check_program(target)
    install()
    settings.hand_down(install=True)
    own = os.getpid()
    out = stdout_alone() if as_json else sys.stderr

    def say() -> None:
        if os.getpid() == own:  # no child of the program
            found = installed()
            print(json.dumps(asdict(found)) if as_json else found, file=out, flush=True)

    if as_json or not settings.current().quiet:
        atexit.register(say)  # before the program's own, to be called after them
    raise typer.Exit(program.status_of(target, arguments or [], is_module=is_module, waits=False))


def trace(
    target: Watched,
    arguments: Arguments = None,
    is_module: IsModule = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="The trace.")] = Path("tzero-trace.json"),
    as_json: AsJson = False,
) -> None:
    """Run a program, and write a trace of its kernels, which ui.perfetto.dev opens."""
    from tzero.commands import tracing
    from tzero.shown import counted

    check_place(out, "-o")
    with exit_on_errors():
        found = _watched(target, arguments, is_module, as_json)
        count = tracing.write(found, out)
    facts = {"trace": str(out), "events": count, "dropped": found.dropped}
    if as_json:
        print(json.dumps({**facts, "seconds": found.seconds, "status": found.status}))
    else:
        missing = f" ({found.dropped:,} calls found no room)" if found.dropped else ""
        words = f"{counted(count, 'event', 'events')} in {out}{missing}"
        print(f"tzero: {words}; open it at ui.perfetto.dev", file=sys.stderr)
    raise typer.Exit(found.status)


def report(
    target: Watched,
    arguments: Arguments = None,
    is_module: IsModule = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("tzero-report.html"),
    save: Annotated[
        Path | None, typer.Option(help="Also write the record, from which a page can be made.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON, and write no page.")
    ] = False,
) -> None:
    """Run a program, and write a page about its kernels: how they were called, and why so."""
    from tzero.commands.report import page

    if not as_json:
        check_place(out, "-o")
    if save is not None:
        check_place(save, "--save")
    with exit_on_errors():
        found = _watched(target, arguments, is_module, as_json)
        if save is not None:
            found.save(save)
        if as_json:
            print(json.dumps(found.facts()))
        else:
            out.write_text(page(found), encoding="utf-8")
            print(f"tzero: the report is in {out}", file=sys.stderr)
    raise typer.Exit(found.status)


def _watched(target: str, arguments: list[str] | None, is_module: bool, is_quiet: bool) -> Run:
    """The record of a run, or of the file that has one. `is_quiet`: the program's output goes to
    stderr."""
    from tzero.commands.record import Run
    from tzero.commands.watching import watch

    if not is_module:
        _check_program(target, takes_records=True)
        if target.endswith(".json"):
            if arguments:
                fail(f"a record has no arguments; options come before it, not {arguments[0]}", 2)
            return Run.read(target)
    with output_on_stderr() if is_quiet else nullcontext():
        return watch(target, arguments or [], is_module=is_module)


def _check_program(script: str, *, takes_records: bool = False) -> None:
    """Exit unless there is such a program. Of a file that is something else of tzero's, say what it
    is: run as Python, it would fail far from the cause."""
    path = Path(script)
    or_record = ", or that of a record, which tzero report --save run.json app.py writes"
    give = f"Give the path of a Python file{or_record if takes_records else ''}."
    if path.is_file():
        what = _other_kind(path, takes_records)
        if what:
            fail(f"{script!r} is {what}, not a program. {give}", 2)
    elif not (path / "__main__.py").is_file():
        is_record = takes_records and path.suffix == ".json"
        fail(f"there is no {'record' if is_record else 'program'} {script!r}. {give}", 2)


def _other_kind(path: Path, takes_records: bool) -> str:
    """What a file is that is surely no Python program; empty if it may be one."""
    if path.suffix == ".json":
        return "" if takes_records else "a file of JSON"
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    return "a bundle, which `tzero bundle inspect` lists" if start == MAGIC else ""
