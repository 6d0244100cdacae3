"""The progress of a search: a bar on a terminal, a line for each candidate, or nothing.

Enters: how many candidates are done, the best so far, the time left; the setting ``progress``.
Leaves: one line on a terminal, which disappears when the search ends; with ``verbose``, lines that
stay. It must not know what a candidate is.
"""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any, Self, TextIO

from tzero import settings
from tzero.events import one_line
from tzero.tune.seconds import in_words

__all__ = ["Bar"]


class Bar:
    """The line: candidates done, the best so far, the time left.

    >>> with Bar("matmul", 24) as bar:  # shows nothing: doctest's output is not a terminal
    ...     bar.show(3, "Config(BLOCK=64)", 2e-5, left=12.0)
    """

    def __init__(self, title: str, most: int | None, stream: TextIO | None = None) -> None:
        self._title, self._most = one_line(title), most
        self._stream = sys.stderr if stream is None else stream
        self._is_verbose = False
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        # Some programs replace sys.stderr by an object without isatty; and it may be closed.
        isatty = getattr(self._stream, "isatty", None)
        if isatty is None or getattr(self._stream, "closed", False):
            return self
        progress = settings.now().progress
        self._is_verbose = progress == "verbose"
        if progress != "on" or not isatty():
            return self
        rich = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(file=self._stream)
        text = rich.TextColumn
        columns = [
            text("tuning {task.fields[title]}", markup=False),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            text("{task.description}", markup=False),
        ]
        # No thread redraws it, because that would disturb what is being timed.
        self._progress = rich.Progress(
            *columns, console=console, transient=True, auto_refresh=False
        )
        self._progress.start()
        self._task = self._progress.add_task("compiling", total=self._most, title=self._title)
        self._progress.refresh()
        return self

    def show_compiled(self, done: int, of: int) -> None:
        """Show how many of the next candidates are compiled."""
        if self._progress is not None:
            words = f"compiling, {done} of {of} are ready"
            self._progress.update(self._task, description=words, refresh=True)

    def show(self, done: int, best: object, seconds: float | None, left: float | None) -> None:
        """Show how many are done, and the best so far."""
        if self._progress is None and not self._is_verbose:
            return
        words = "none works so far"
        if seconds is not None:
            words = one_line(f"best {in_words(seconds)} {best}")
        if left is not None:
            words += f", {left:.0f} s left"
        if self._is_verbose:
            print(f"tzero: tuning {self._title}: {done} done, {words}", file=self._stream)
            return
        self._progress.update(self._task, completed=done, description=words, refresh=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
