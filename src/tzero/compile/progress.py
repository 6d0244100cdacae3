"""Wait for futures, with a progress bar if stderr is a terminal, or with a line for each.

Enters: futures with names, and the setting ``progress``. Leaves: nothing; returns when all are
done. It must not know what the futures are for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from typing import Any, TextIO

from tzero import settings
from tzero.events import one_line

__all__ = ["watch"]

SHOWN = 3
"""How many names the bar shows."""

PATIENCE = 0.3
"""Seconds before the bar appears, so that it does not flash for short waits."""


def watch(named: Sequence[tuple[str, Future[Any]]], stream: TextIO | None = None) -> None:
    """Wait until all are done. On a terminal, a bar shows how many are and names the rest; with
    ``TZERO_PROGRESS=verbose`` each has a line of its own, also where there is no terminal.

    >>> future = Future()
    >>> future.set_result(1)
    >>> watch([("add", future)])
    """
    futures = {future for _, future in named}
    stream = sys.stderr if stream is None else stream
    progress = settings.now().progress
    if progress == "verbose" and stream is not None:
        _write_lines(named, stream)
        return
    is_terminal = progress == "on" and stream is not None and stream.isatty()
    if not wait(futures, timeout=PATIENCE if is_terminal else None).not_done:
        return
    if not is_terminal:
        return
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(file=stream)
    text = rich.TextColumn("{task.description}", markup=False)  # names may have brackets
    columns = [rich.BarColumn(), rich.MofNCompleteColumn(), text]
    # Redrawn after each completed future, which needs no refresh thread.
    with rich.Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=len(futures))
        while left := {future for future in futures if not future.done()}:
            bar.update(
                task,
                completed=len(futures) - len(left),
                description=_description(named, left),
                refresh=True,
            )
            wait(left, return_when=FIRST_COMPLETED)


def _write_lines(named: Sequence[tuple[str, Future[Any]]], stream: TextIO) -> None:
    names = {future: name for name, future in named}
    for done, future in enumerate(as_completed(names), 1):
        failed = future.cancelled() or future.exception() is not None
        words = "failed" if failed else "is ready"
        print(f"tzero: {one_line(names[future])} {words} ({done} of {len(names)})", file=stream)


def _description(named: Sequence[tuple[str, Future[Any]]], left: set[Future[Any]]) -> str:
    names = list(dict.fromkeys(name for name, future in named if future in left))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "compiling " + ", ".join(map(one_line, names[:SHOWN])) + more
