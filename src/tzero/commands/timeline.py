"""When a program waited for binaries and searches, as a picture.

Enters: a `Run`. Leaves: an SVG, whose colours the page around it sets. It must not know the page.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from tzero.commands.record import Run
from tzero.events import one_line

__all__ = ["svg"]

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 96, 16, 22, 8
LEAST = 1.5
"""The least width of a bar, so that it is seen."""


class _Bar(NamedTuple):
    kind: str
    start: float
    end: float
    words: str


def svg(run: Run) -> str:
    """Bars for each thread that compiled or loaded, each worker and the searches; red lines for
    fallbacks. Empty if there is nothing to show.

    >>> svg(Run(("app.py",), 0, 1.5, "2026-11-18", {}, "the CPU"))
    ''
    """
    rows = _rows(run)
    if not rows:
        return ""
    first = min(0.0, *(bar.start for _, bars in rows for bar in bars))
    last = max(run.seconds, *(bar.end for _, bars in rows for bar in bars))
    scale = (WIDTH - LEFT - RIGHT) / max(last - first, 1e-9)
    bottom = TOP + ROW * len(rows)

    def x(at: float) -> float:
        return LEFT + (at - first) * scale

    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + 26}" role="img" aria-label="timeline">']
    for at in _ticks(first, last):
        parts.append(f'<path class="grid" d="M{x(at):.1f} {TOP}V{bottom}"/>')
        parts.append(
            f'<text x="{x(at):.1f}" y="{bottom + 18}" text-anchor="middle">{at:g} s</text>'
        )
    for number, (name, bars) in enumerate(rows):
        y = TOP + number * ROW
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{name}</text>')
        parts += [_drawn(bar, x(bar.start), y, (bar.end - bar.start) * scale) for bar in bars]
    for told in run.events:
        if told.kind == "fallback":
            words = _safe(f"{told.kernel}: {told.reason}")
            path = f"M{x(told.at):.1f} {TOP}V{bottom}"
            parts.append(f'<path class="told" d="{path}"><title>{words}</title></path>')
    return "\n".join([*parts, "</svg>"])


def _drawn(bar: _Bar, x: float, y: float, width: float) -> str:
    place = f'x="{x:.1f}" y="{y + 3}" width="{max(width, LEAST):.1f}" height="{ROW - 6}"'
    words = _safe(f"{bar.words}, {bar.end - bar.start:.3f} s")
    return f'<rect class="{bar.kind}" {place} rx="2"><title>{words}</title></rect>'


def _safe(text: str) -> str:
    return html.escape(one_line(text))


def _rows(run: Run) -> list[tuple[str, list[_Bar]]]:
    threads: dict[str, list[_Bar]] = {}
    numbers: dict[int, int] = {}
    for each in sorted(run.compiles, key=lambda each: each.start):
        if "worker" in each.where:
            name = f"worker {each.process}"
        else:
            name = f"thread {numbers.setdefault(each.thread, len(numbers) + 1)}"
        kind = "compiled" if each.where.startswith("compiled") else "loaded"
        bar = _Bar(kind, each.start, each.end, f"{each.kernel}, {each.where}")
        threads.setdefault(name, []).append(bar)
    rows = sorted(threads.items())
    searches = [
        _Bar("search", each.at - each.seconds, each.at, f"search for {each.kernel}")
        for each in run.searches
        if each.seconds
    ]
    return [*rows, ("searches", searches)] if searches else rows


def _ticks(first: float, last: float) -> Sequence[float]:
    """Round numbers of seconds, five to ten of them."""
    step = 1e-6
    for factor in (2, 2.5, 2) * 9:
        if (last - first) / step <= 8:
            break
        step *= factor
    return [round(k * step, 9) for k in range(int(first / step), int(last / step) + 1)]
