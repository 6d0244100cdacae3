"""What choosing a variant by shape costs: one of 16, for two inputs and an output of rank 2.

Compared with a plain Python loop: log2 of every size, and the L1 distance to every hint, whose
logarithms are computed beforehand. Nothing is compiled or launched.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Callable
from typing import Any

from bench.measure import Loop
from bench.record import Target
from bench.rows.row import Case, Row
from tzero.tune.select import KEPT, Hint, Selector

__all__ = ["ROWS"]

HINTS = 16
RANKS = (2, 2, 2)
BITS = 24
CALLS = 2 * KEPT
"""The calls of a sample: the memo of choices fills up and is dropped equally often in each."""

Shapes = tuple[tuple[int, ...], ...]
Choose = Callable[[Any], object]


def _hints() -> list[Hint[int]]:
    chance = random.Random(0)
    return [
        Hint(k, [tuple(2 ** chance.randrange(BITS) for _ in range(rank)) for rank in RANKS])
        for k in range(HINTS)
    ]


def _loop(hints: list[Hint[int]]) -> Callable[[Shapes], int]:
    """The straightforward implementation."""
    known = [[math.log2(size) for shape in each.shapes for size in shape] for each in hints]

    def choose(shapes: Shapes) -> int:
        asked = [math.log2(size) for shape in shapes for size in shape]
        distances = [sum(abs(a - b) for a, b in zip(asked, each, strict=True)) for each in known]
        return distances.index(min(distances))

    return choose


class _Fresh(collections.deque[Shapes]):
    """Shapes of which no size was seen before."""

    def __init__(self) -> None:
        super().__init__()
        self._made = 0

    def fill(self) -> None:
        while len(self) < CALLS:
            self.append(tuple(tuple(self._size() for _ in range(rank)) for rank in RANKS))

    def _size(self) -> int:
        # An odd factor modulo a power of two: scattered, and no size repeats.
        self._made += 1
        return self._made * 2654435761 % (1 << BITS) + 1


def _each(choose: Choose, shapes: _Fresh) -> Loop:
    def run(times: int) -> None:
        take = shapes.popleft
        for _ in range(times):
            choose(take())

    return Loop(run)


def _again(choose: Choose, shapes: Shapes) -> Loop:
    def run(times: int) -> None:
        for _ in range(times):
            choose(shapes)

    return Loop(run)


def _check(hints: list[Hint[int]], fresh: _Fresh) -> None:
    """The native and Python twins agree, and match the loop up to the rounding of logarithms."""
    loop, native, python = _loop(hints), Selector(hints), Selector(hints, native=False)

    def distance(shapes: Shapes, number: int) -> float:
        pairs = zip(sum(shapes, ()), sum(hints[number].shapes, ()), strict=True)
        return sum(abs(math.log2(a) - math.log2(b)) for a, b in pairs if b is not None)

    fresh.fill()
    for _ in range(1000):
        shapes = fresh.popleft()
        chosen = native.select(shapes)
        assert chosen == python.select(shapes) == native.select(shapes)
        least = distance(shapes, loop(shapes))
        assert least <= distance(shapes, chosen.variant) <= least + 2 * sum(RANKS) / 1024


def _miss() -> Case:
    hints, fresh = _hints(), _Fresh()
    contenders = {
        "tzero": _each(Selector(hints).select, fresh),
        "loop": _each(_loop(hints), fresh),
        "python": _each(Selector(hints, native=False).select, fresh),
    }
    return Case(contenders, lambda: _check(hints, fresh), calls=CALLS, settle=fresh.fill)


def _hit() -> Case:
    hints, fresh = _hints(), _Fresh()
    selector = Selector(hints)
    fresh.fill()
    shapes = fresh.popleft()
    choice = selector.select(shapes)
    contenders = {
        "tzero": _again(selector.select, shapes),
        "dict": _again({shapes: choice}.__getitem__, shapes),
        "loop": _again(_loop(hints), shapes),
    }

    def check() -> None:
        _check(hints, fresh)
        assert selector.select(shapes) is choice

    return Case(contenders, check)


ROWS = (
    Row(
        "choose.miss",
        "Nearest of 16 hints, new shapes",
        _miss,
        subject="tzero",
        baseline="loop",
        unit="us",
        target=Target("value", 2e-6),
        interpreted=False,
    ),
    Row(
        "choose.hit",
        "Nearest of 16 hints, known shapes",
        _hit,
        subject="tzero",
        baseline="dict",
        unit="us",
        target=Target("ratio", 2.0),
        interpreted=False,
    ),
)
