"""How far a run is and how long it will still take: a bar on a terminal, else a line per row.

Enters: the rows, with the seconds each is expected to take, and calls as they are measured. Leaves:
text on stderr, so that stdout holds the table alone. It must not know what is measured.

Nothing is drawn by a thread, which would be timed together with the contenders. The bar is redrawn
between rounds instead, and stands still while a row compiles.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.rows.row import Row

__all__ = ["Watcher", "say", "shown", "time_left"]

REDRAW_SECONDS = 0.3
QUICK_SHARE = 0.5
"""What a quick run takes of the expected seconds; compiling takes as long as ever."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def time_left(expected_done: float, expected_left: float, elapsed: float) -> float:
    """The expected seconds of what is left, corrected by the pace so far.

    The expectation counts as much as ten seconds of experience, so that the first rows do not make
    the estimate jump.
    """
    return expected_left * (elapsed + 10) / (expected_done + 10)


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s left"
    return f"about {round(seconds / 60)} min left"


class Watcher:
    """Told about each row as it is measured; this one prints a line per row."""

    def __init__(
        self,
        rows: Sequence[Row],
        quick: bool,
        after: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        share = QUICK_SHARE if quick else 1.0
        self._expected = [row.seconds * share for row in rows]
        self._after = after
        self._clock = clock
        self._start = clock()
        self._number = 0

    def begin(self, row: Row) -> None:
        """The next row starts."""
        self._number += 1
        self.say(f"{self._place()} {row.id} ({self._left()})")

    def skip(self, row: Row, reason: str) -> None:
        """The next row is left out."""
        self._number += 1
        self.say(f"{self._place()} {row.id}: {reason}")

    def tick(self, share: float) -> None:
        """So much of the row is measured, between 0 and 1."""

    def say(self, text: str) -> None:
        say(text)

    def _place(self) -> str:
        return f"[{self._number}/{len(self._expected)}]"

    def _done(self, share: float = 0.0) -> float:
        """The expected seconds of what is done."""
        before = self._number - 1
        return sum(self._expected[:before]) + share * self._expected[before]

    def _left(self, share: float = 0.0) -> str:
        done = self._done(share)
        left = sum(self._expected) - done + self._after
        return in_words(time_left(done, left, self._clock() - self._start))


class _Bar(Watcher):
    """One line that is redrawn: a bar, the row, and the time left."""

    def __init__(self, rows: Sequence[Row], quick: bool, after: float, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(rows, quick, after)
        self._console = console
        self._drawn = 0.0
        self._progress = Progress(
            TextColumn("{task.fields[place]}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[left]},"),
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        total = max(sum(self._expected), 1e-9)
        self._task = self._progress.add_task("", total=total, place="", left="")
        self._progress.start()

    def begin(self, row: Row) -> None:
        self._number += 1
        self._draw(0.0, description=row.id)

    def tick(self, share: float) -> None:
        if self._clock() - self._drawn > REDRAW_SECONDS:
            self._draw(share)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        self._progress.stop()

    def _draw(self, share: float, **fields: Any) -> None:
        self._drawn = self._clock()
        fields |= {"place": self._place(), "left": self._left(share)}
        self._progress.update(self._task, completed=self._done(share), refresh=True, **fields)


@contextlib.contextmanager
def shown(rows: Sequence[Row], *, quick: bool, after: float = 0.0) -> Iterator[Watcher]:
    """A watcher for whoever reads stderr: a person at a terminal, or a file. `after` is how many
    seconds the run goes on after the last row."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # with HERE=1 nothing is installed
        yield Watcher(rows, quick, after)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Watcher(rows, quick, after)
        return
    bar = _Bar(rows, quick, after, console)
    try:
        yield bar
    finally:
        bar.stop()
