"""A search as a picture: how long each candidate takes, when it was timed, and the best so far.

Enters: the steps of a search, and the times that decided. Leaves: an SVG file, which browsers and
GitHub show. It must not know how candidates were timed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tzero.tune.seconds import in_words

__all__ = ["svg"]

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 46, 72

# The ground is drawn: a browser shows a file on white, in the dark too.
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #555 }
  .ground { fill: #fff }
  .title { font-size: 14px; fill: #222 }
  .axis { stroke: #bbb; stroke-width: 1; fill: none }
  .grid { stroke: #eee; stroke-width: 1 }
  .candidate { fill: #4878a8 }
  .spread { stroke: #4878a8; stroke-width: 1; fill: none }
  .best { fill: none; stroke: #c0504d; stroke-width: 1.5; stroke-opacity: .6 }
  .chosen { fill: #c0504d }
  .first { stroke: #4878a8; stroke-width: 3; stroke-opacity: .25 }
  .failed { stroke: #888; stroke-width: 1.5; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #bbb } .ground { fill: #1e2129 } .title { fill: #eee }
    .axis { stroke: #666 } .grid { stroke: #343a44 }
    .candidate { fill: #7fb0e0 } .spread, .first { stroke: #7fb0e0 }
    .best { stroke: #ff9a92 } .chosen { fill: #ff9a92 } .failed { stroke: #aaa }
  }
"""
_ABOUT = (
    "dots: the times that decided, with their intervals; wide lines lead from the first timing",
    "red: the chosen one, which is the lowest, or the first if no interval lies below its own",
)


def svg(
    title: str,
    steps: Sequence[Any],
    chosen: Any = None,
    decided: Mapping[Any, Any] = MappingProxyType({}),
) -> str:
    """The steps of a search, each with `at`, `config` and `outcome`, as SVG. `chosen` is the config
    that was chosen, and `decided` the outcomes by which it was: the fastest are timed again.

    >>> svg("matmul", []).startswith("<svg")
    True
    """
    last = [decided.get(each.config, each.outcome) for each in steps]
    timed = [each.median for each in last if each.usable]
    spread = [end for each in last if each.usable for end in _interval(each)]
    first = [each.outcome.median for each in steps if each.outcome.usable]
    low, high = _ends([*timed, *spread, *first])

    def x(number: float) -> float:
        return LEFT + (number + 0.5) / max(len(steps), 1) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        part = (math.log10(seconds) - low) / (high - low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    parts = [_frame(title, steps, low, high, x, y)]
    if timed:
        parts.append(_best(last, x, y))
    for number, (each, outcome) in enumerate(zip(steps, last, strict=True)):
        name = html.escape(repr(each.config))
        if outcome.usable:
            kind = "chosen" if each.config == chosen else "candidate"
            words = f"{in_words(outcome.median)} {name}"
            place = f'cx="{x(number):.1f}" cy="{y(outcome.median):.1f}"'
            if each.outcome.usable:
                ends = f"M{x(number):.1f} {y(each.outcome.median):.1f}V{y(outcome.median):.1f}"
                parts.append(f'<path class="first" d="{ends}"/>')
            parts.append(_whisker(outcome, x(number), y))
            parts.append(f'<circle class="{kind}" {place} r="4.5"><title>{words}</title></circle>')
        else:
            words = html.escape(outcome.problem)
            path = f"M{x(number) - 4:.1f} {TOP + 4}l8 8m0 -8l-8 8"
            parts.append(f'<path class="failed" d="{path}"><title>{name}: {words}</title></path>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>\n{body}\n</svg>\n'
    )


def _interval(outcome: Any) -> tuple[float, ...]:
    """The ends of an outcome's interval; none where it is unknown."""
    known = outcome.low > 0 and math.isfinite(outcome.high)
    return (outcome.low, outcome.high) if known else ()


def _whisker(outcome: Any, x: float, y: Any) -> str:
    """The interval of a candidate, as a line with two ends."""
    ends = _interval(outcome)
    if not ends:
        return ""
    low, high = map(y, ends)
    return f'<path class="spread" d="M{x - 4:.1f} {high:.1f}h8m-4 0V{low:.1f}m-4 0h8"/>'


def _ends(medians: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis of times: a little beyond the fastest and the slowest."""
    if not medians:
        return -6.0, -5.0
    low, high = math.log10(min(medians)), math.log10(max(medians))
    margin = max(0.08 * (high - low), 0.05)
    return low - margin, high + margin


def _frame(title: str, steps: Sequence[Any], low: float, high: float, x: Any, y: Any) -> str:
    lines = [f'<text class="title" x="{LEFT}" y="22">{html.escape(title)}</text>']
    for seconds in _ticks(low, high):
        at = y(seconds)
        lines.append(
            f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{in_words(seconds)}</text>'
        )
    bottom = HEIGHT - BOTTOM
    lines.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>')
    for number in range(0, len(steps), max(1, len(steps) // 6)):
        words = f"{number + 1} ({steps[number].at:.1f} s)"
        lines.append(
            f'<text x="{x(number):.1f}" y="{bottom + 18}" text-anchor="middle">{words}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    for number, words in enumerate(_ABOUT):
        at = HEIGHT - 28 + 18 * number
        lines.append(f'<text x="{middle}" y="{at}" text-anchor="middle">{words}</text>')
    return "\n".join(lines)


def _ticks(low: float, high: float) -> list[float]:
    """Round times within the axis: powers of ten, with digits between where these are few."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        found = [d * 10.0**p for p in powers for d in digits if low <= math.log10(d) + p <= high]
        if len(found) >= 3:
            return found
    return found


def _best(outcomes: Sequence[Any], x: Any, y: Any) -> str:
    """The least median so far, as a staircase."""
    best, path = math.inf, ""
    for number, each in enumerate(outcomes):
        if each.usable and each.median < best:
            best = each.median
            height, at = f"{y(best):.1f}", f"{x(number):.1f}"
            path += f"H{at}V{height}" if path else f"M{at} {height}"
    return f'<path class="best" d="{path}H{WIDTH - RIGHT}"/>'
