"""How commands print: JSON or tables, and errors without a traceback.

Enters: facts. Leaves: text. It must not know any command. rich leaves colours out where
``NO_COLOR`` is set, or stdout is no terminal.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tzero.errors import BundleRefused, CacheRefused, InvalidArgument, InvalidSetting

__all__ = [
    "AsJson",
    "Facts",
    "amount",
    "check_place",
    "console",
    "day",
    "exit_on_errors",
    "fail",
    "listing",
    "number_of",
    "output_on_stderr",
    "pairs",
    "plain",
    "print_facts",
    "stdout_alone",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Facts = dict[str, Any]


def console() -> Console:
    """Where people read. Without a terminal, rows are not wrapped, so that they can be searched."""
    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Print expected errors without a traceback, and exit."""
    try:
        yield
    except (InvalidSetting, InvalidArgument) as error:
        fail(error, 2)
    except (BundleRefused, CacheRefused, OSError) as error:
        fail(error, 3)


@contextmanager
def output_on_stderr() -> Iterator[None]:
    """Send what programs write to stdout to stderr, until the block ends: what follows is JSON.
    What they print when this process ends goes there too."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr):
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    # Registered after the program's own functions, so that it is called before them.
    atexit.unregister(_end_stdout)
    atexit.register(_end_stdout)


def stdout_alone() -> TextIO:
    """A file for stdout, on which nothing else is written any more: what programs write to stdout
    goes to stderr from now on.

    ::

        print(json.dumps(found), file=stdout_alone())
    """
    sys.stdout.flush()
    alone = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return alone


def _end_stdout() -> None:
    sys.stdout.flush()
    os.dup2(2, 1)


def fail(error: Exception | str, code: int) -> NoReturn:
    """Print an error, and exit."""
    print(f"tzero: {error}", file=sys.stderr)
    raise typer.Exit(code) from (error if isinstance(error, Exception) else None)


def check_place(out: str | Path, option: str) -> None:
    """Exit if a file cannot be written there. Asked before a program runs, which may take hours."""
    path = Path(out)
    if path.is_dir():
        why = "it is a directory"
    elif not path.parent.is_dir():
        why = f"there is no directory {str(path.parent)!r}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    else:
        return
    fail(f"{path} cannot be written: {why}. Give another place with {option}.", 3)


def print_facts(facts: Facts, as_json: bool, show: Callable[[Facts], Table]) -> None:
    """Print facts as JSON, or as a table."""
    if as_json:
        print(json.dumps(facts, sort_keys=True))
    else:
        console().print(show(facts))


def pairs(rows: list[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, plain(value))
    return table


def listing(*names: str, title: str = "") -> Table:
    """A table with a row for each of several things, below the names of its columns. All commands
    that list something print it so.

    >>> listing("kernel", "size").row_count
    0
    """
    shown = Text(title) if title else None
    return Table(*names, box=None, pad_edge=False, title=shown, title_justify="left")


def number_of(what: str, kind: type[float] | type[int]) -> Callable[[str], Any]:
    """What reads a number from 0 on of an option, for typer.

    >>> number_of("days", float)("30")
    30.0
    """

    def read(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            found = -1
        if not 0 <= found < math.inf:
            like = "a number" if kind is float else "a whole number"
            raise typer.BadParameter(f"{text!r} is not {like} of {what} from 0 on, such as 30.")
        return found

    return read


def plain(text: str) -> Text:
    """A text as it is: a path may contain what rich would read as markup."""
    return Text(text)


def amount(count: int) -> str:
    """A number of bytes, in words.

    >>> amount(2048)
    '2.0 KiB'
    """
    left = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if left < 1024:
            return f"{left:.0f} {unit}" if unit == "bytes" else f"{left:.1f} {unit}"
        left /= 1024
    return f"{left:.1f} GiB"


def day(seconds: float | None) -> str:
    """A time, in words.

    >>> day(None)
    'never'
    """
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
