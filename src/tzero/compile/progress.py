"""A progress bar for those who wait at a terminal; for all others nothing.

Enters: futures with names. Leaves: when all of them are done. It must not know what they are for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TextIO

__all__ = ["watch"]

SHOWN = 3
"""How many names stand in the bar."""

PATIENCE = 0.3
"""Seconds before there is a bar: one that flashes by helps nobody."""


def watch(named: Sequence[tuple[str, Future[Any]]], stream: TextIO | None = None) -> None:
    """Wait until all are done; on a terminal, a bar says how many are and names what is not.

    >>> future = Future()
    >>> future.set_result(1)
    >>> watch([("add", future)])
    """
    futures = {future for _, future in named}
    stream = sys.stderr if stream is None else stream
    is_terminal = stream is not None and stream.isatty()
    if not wait(futures, timeout=PATIENCE if is_terminal else None).not_done:
        return
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(file=stream)
    columns = [rich.BarColumn(), rich.MofNCompleteColumn(), rich.TextColumn("{task.description}")]
    # It is drawn when something has changed, which takes no thread.
    with rich.Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=len(futures))
        while left := {future for future in futures if not future.done()}:
            bar.update(
                task,
                completed=len(futures) - len(left),
                description=_names(named, left),
                refresh=True,
            )
            wait(left, return_when=FIRST_COMPLETED)


def _names(named: Sequence[tuple[str, Future[Any]]], left: set[Future[Any]]) -> str:
    names = list(dict.fromkeys(name for name, future in named if future in left))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    # In rich's text, brackets are markup; kernels of generic names have some.
    return "compiling " + ", ".join(names[:SHOWN]).replace("[", r"\[") + more
