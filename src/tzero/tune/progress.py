"""How far a search is, for those who wait at a terminal; for all others nothing.

Enters: how many candidates are done, the best so far, the time left. Leaves: one line on a
terminal, which goes when the search ends. It must not know what a candidate is beyond its name.
"""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any, Self, TextIO

from tzero.tune.seconds import in_words

__all__ = ["Bar"]


class Bar:
    """The line: candidates done, the best so far, the time left.

    >>> with Bar("matmul", 24) as bar:  # nothing is shown where nobody waits at a terminal
    ...     bar.show(3, "Config(BLOCK=64)", 2e-5, left=12.0)
    """

    def __init__(self, title: str, most: int | None, stream: TextIO | None = None) -> None:
        self._title, self._most = title, most
        self._stream = sys.stderr if stream is None else stream
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        # What stands in for a terminal need not be a whole file, and may be closed.
        ask = getattr(self._stream, "isatty", None)
        if ask is None or getattr(self._stream, "closed", False) or not ask():
            return self
        rich = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(file=self._stream)
        text = rich.TextColumn
        columns = [
            text("tuning {task.fields[title]}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            text("{task.description}", markup=False),
        ]
        # It is drawn when something has changed: a thread would disturb what is being timed.
        self._progress = rich.Progress(
            *columns, console=console, transient=True, auto_refresh=False
        )
        self._progress.start()
        self._task = self._progress.add_task("compiling", total=self._most, title=self._title)
        self._progress.refresh()
        return self

    def show_compiled(self, done: int, of: int) -> None:
        """Say how many of those that come next are compiled."""
        if self._progress is not None:
            words = f"compiling, {done} of {of} are ready"
            self._progress.update(self._task, description=words, refresh=True)

    def show(self, done: int, best: object, seconds: float | None, left: float | None) -> None:
        """Say how far it is."""
        if self._progress is None:
            return
        words = "none works so far" if seconds is None else f"best {in_words(seconds)} {best}"
        if left is not None:
            words += f", {left:.0f} s left"
        self._progress.update(self._task, completed=done, description=words, refresh=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
